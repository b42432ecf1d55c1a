"""Which tokens end a generation, and why: a part of what ``tok --check`` and ``show`` print."""

from typing import Any

import rml
from rml.cli.console import table

__all__ = ["facts_of_stops", "print_stops"]


def facts_of_stops(tokenizer: rml.Tokenizer) -> list[dict[str, Any]]:
    """Each stop token: its id, its text and the reasons for which it is one."""
    return [
        {
            "id": token,
            "text": tokenizer.token_bytes(token).decode("utf-8", "backslashreplace"),
            "why": list(reasons),
        }
        for token, reasons in tokenizer.end_tokens.items()
    ]


def print_stops(tokenizer: rml.Tokenizer) -> None:
    """Print a table of the stop tokens."""
    rows = [
        (stop["id"], repr(stop["text"])[1:-1], ", ".join(stop["why"]))
        for stop in facts_of_stops(tokenizer)
    ]
    table(("STOP TOKEN", "TEXT", "WHY"), rows, right="rll")

"""The OpenAI API's words for a completion, as clients of that API expect them.

Tokens are named by their text where it can be known, else ``token_id:123``, as vLLM does on
request. A cancelled generation has no word there: its reason is null, as of one that goes on.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rml.generation.results import TokenLogprob

__all__ = ["chat_logprobs", "finish_reason", "text_logprobs"]

TokenBytes = Callable[[int], bytes]


def finish_reason(reason: str) -> str | None:
    """Translate the reason for the end."""
    return None if reason == "cancelled" else reason


def chat_logprobs(
    entries: "Sequence[TokenLogprob]", token_bytes: TokenBytes | None
) -> dict[str, Any]:
    """Make the ``logprobs`` object of a chat completion's choice."""

    def named(token: int, logprob: float) -> dict[str, Any]:
        data = None if token_bytes is None else token_bytes(token)
        return {
            "token": _name(token, data),
            "logprob": logprob,
            "bytes": None if data is None else list(data),
        }

    return {
        "content": [
            {
                **named(entry.id, entry.logprob),
                "top_logprobs": [named(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
    }


def text_logprobs(
    entries: "Sequence[TokenLogprob]", token_bytes: TokenBytes | None
) -> dict[str, Any]:
    """Make the ``logprobs`` object of a text completion's choice."""

    def name(token: int) -> str:
        return _name(token, None if token_bytes is None else token_bytes(token))

    return {
        "tokens": [name(entry.id) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            {name(token): logprob for token, logprob in entry.top} for entry in entries
        ],
        "text_offset": [] if token_bytes is None else _offsets(entries, token_bytes),
    }


def _offsets(entries: "Sequence[TokenLogprob]", token_bytes: TokenBytes) -> list[int]:
    """Whole characters before each token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = [0]
    for entry in entries:
        offsets.append(offsets[-1] + len(decoder.decode(token_bytes(entry.id))))
    return offsets[:-1]


def _name(token: int, data: bytes | None) -> str:
    return f"token_id:{token}" if data is None else data.decode("utf-8", "replace")

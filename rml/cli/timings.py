"""What is said of a finished generation, on stderr."""

import click

from rml.cli.console import say
from rml.generation.results import Completion

__all__ = ["ROOM", "report"]


ROOM = "-c N makes room for N tokens"


def report(result: Completion, *, n_given: bool, advice: str = ROOM) -> None:
    """Print what was left out or cut; with ``-v`` also speed, seed and the reason for the end.

    Parameters
    ----------
    result : Completion
        What was generated.
    n_given : bool
        Whether the user has limited the length, and is not surprised by it.
    advice : str
        What helps against a full context.
    """
    n = len(result.token_ids)
    if result.stop_reason == "context" and result.finish_reason == "length":
        say(
            f"[the answer is cut: the context is full with {result.usage.total_tokens} tokens; "
            f"{advice}]"
        )
    elif result.finish_reason == "length" and not n_given:
        say(f"[stopped after {n} tokens; -n sets another length, -n -1 goes on to the end]")
    if result.usage.dropped_tokens:
        say(f"[{result.usage.dropped_tokens} tokens of the oldest text were left out]")
    if not click.get_current_context().meta.get("rml.verbose"):
        return
    timings = result.timings
    ended = f" ({result.stop_reason!r})" if result.stop_reason is not None else ""
    say(
        f"prompt: {timings.cache_n} tokens cached, {timings.prompt_n} evaluated at "
        f"{timings.prompt_per_second:.1f} tokens/s\n"
        f"answer: {n} tokens at {timings.predicted_per_second:.1f} tokens/s, "
        f"ended by {result.finish_reason}{ended}, seed {result.seed}"
    )

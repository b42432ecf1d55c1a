"""What is said of a finished generation, on stderr."""

import click

from rml.cli.console import say
from rml.generation.results import Completion

__all__ = ["report"]


def report(result: Completion) -> None:
    """Print what was left out; with ``-v`` also speed, seed and the reason for the end."""
    if result.usage.dropped_tokens:
        say(f"[{result.usage.dropped_tokens} tokens of the oldest text were left out]")
    if not click.get_current_context().meta.get("rml.verbose"):
        return
    timings = result.timings
    ended = f" ({result.stop_reason!r})" if result.stop_reason is not None else ""
    say(
        f"prompt: {timings.cache_n} tokens cached, {timings.prompt_n} evaluated at "
        f"{timings.prompt_per_second:.1f} tokens/s\n"
        f"answer: {len(result.token_ids)} tokens at {timings.predicted_per_second:.1f} tokens/s, "
        f"ended by {result.finish_reason}{ended}, seed {result.seed}"
    )

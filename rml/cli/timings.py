"""What ``-v`` says of a finished generation."""

import click

from rml.cli.console import say
from rml.generation.results import Completion

__all__ = ["report"]


def report(result: Completion) -> None:
    """Print speed, seed and the reason for the end to stderr, if ``-v`` was given."""
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

"""``rml pull NAME``: fetch a model and verify it."""

from pathlib import Path

import click

from rml.cli.console import say, show
from rml.cli.models import fetch
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.files import pull

__all__ = ["command"]


@click.command("pull", cls=Command)
@click.argument("name")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write to this folder instead of the cache.",
)
@options("offline")
def command(name: str, to: Path | None, offline: bool | None) -> None:
    """Fetch the model NAME and print where it lies.

    NAME is smollm2, gemma3-270m, or a repository of the Hugging Face Hub: org/repo,
    org/repo:Q4_K_M, or org/repo/file.gguf.
    """
    found = pull.find(name) if to is None else None
    if found is None:
        found = fetch(name, to=to, offline=offline)
    else:
        say(f"{name} is already here")
    show(str(found))

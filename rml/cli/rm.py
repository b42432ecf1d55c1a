"""``rml rm NAME``: delete a model from the cache."""

import click

from rml.cli.console import bytes_text, say
from rml.cli.parsing import Command
from rml.files import pull

__all__ = ["command"]


@click.command("rm", cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def command(names: tuple[str, ...]) -> None:
    """Delete models from the cache, and what interrupted downloads of them have left."""
    for name in names:
        say(f"{name}: {bytes_text(pull.remove(name))} deleted")

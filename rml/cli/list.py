"""``rml list``: the models in the cache."""

import click

from rml.cli.console import bytes_text, print_json, say, table
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.files import pull

__all__ = ["command"]


@click.command("list", cls=Command)
@options("output")
def command(output: str) -> None:
    """List the models on this machine that can be used by name."""
    models = pull.list_local()
    if output == "json":
        print_json(
            [
                {"name": m.name, "size": m.size, "licence": m.licence, "path": str(m.path)}
                for m in models
            ]
        )
        return
    if models:
        rows = [(m.name, bytes_text(m.size), m.licence, m.path) for m in models]
        table(("NAME", "SIZE", "LICENCE", "PATH"), rows, right="lr")
    absent = [known for known in pull.KNOWN.values() if pull.find(known.name) is None]
    for known in absent:
        say(f"{known.name} ({bytes_text(known.size)}) can be fetched: rml pull {known.name}")

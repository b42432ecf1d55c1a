"""``rml info``: what rml runs on; ``rml --version`` is its first line."""

import click

import rml
from rml.cli.console import print_json
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.files.cache import cache_dir

__all__ = ["command", "print_version"]


@click.command("info", cls=Command)
@options("output")
def command(output: str) -> None:
    """Show version, kernels, threads and folders."""
    facts = {**rml.info(), "cache": str(cache_dir())}
    if output == "json":
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:{width}}  {_text(value)}")


def print_version() -> None:
    """Print version, backend, instruction-set level and OpenMP on one line."""
    facts = rml.info()
    click.echo(
        f"rml {facts['version']} (backend {facts['backend']}, ISA {facts['isa']}, "
        f"OpenMP {_text(facts['openmp'])})"
    )


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)

"""The program ``rml``: its commands, and how it ends.

Exit codes: 0 done, 1 an error that rml reports (quietly where the reader of a pipe has left), 2 a
wrong command line, 130 interrupted. An error is one message on stderr; ``-v`` shows the traceback.

A command's file is imported when the command is run, so that ``rml --help`` and ``rml list`` start
without what a model needs.
"""

import errno
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import MappingProxyType
from typing import Any, NoReturn

import click

from rml.cli.console import say
from rml.cli.streams import OutputLost, guard
from rml.errors import RmlError, printable
from rml.memory_room import out_of_memory

__all__ = ["COMMANDS", "cli", "main"]

# Command -> what the list of commands says about it; its code is in the file of that name.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "chat": "Chat with a model; fetches it if needed.",
        "run": "Complete a text.",
        "pull": "Fetch a model.",
        "list": "List the models on this machine.",
        "rm": "Delete a model from the cache.",
        "show": "Show what is in a model file.",
        "scan": "Look through a model before it is trusted.",
        "explain": "Show a model's recipe and the memory it needs.",
        "tok": "Show how a text is cut into tokens.",
        "bench": "Measure speed.",
        "ppl": "Measure how well a model predicts a text.",
        "selftest": "Measure the error of every kernel on this machine.",
        "info": "Show what rml runs on.",
    }
)


class Failure(click.ClickException):
    """An error that rml reports: its message alone, exit code 1."""

    exit_code = 1


@contextmanager
def _reported(ctx: click.Context) -> Iterator[None]:
    """Turn what rml says of itself into a message and an exit code; a bug stays as it is."""
    try:
        with out_of_memory("this command"):
            yield
    except (RmlError, ImportError) as error:
        # The choice of the kernels, made while they are imported, has no other error to raise.
        if isinstance(error, ImportError) and error.name != "rml._kernels":
            raise
        if ctx.meta.get("rml.verbose"):
            say(traceback.format_exc().rstrip("\n"))
        raise Failure(printable(str(error))) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


class Group(click.Group):
    """The commands, imported on demand; errors and interrupts become exit codes here."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        """Import the file of a command."""
        if name not in COMMANDS:
            return None
        command = import_module(f"rml.cli.{name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"rml.cli.{name}.command is no command")
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run a command."""
        with _reported(ctx):
            return super().invoke(ctx)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        with _reported(ctx):
            import_module("rml.cli.info").print_version()
        ctx.exit()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show version, backend, instruction-set level and OpenMP.",
)
def cli() -> None:
    """Run local language models: readable, exact, fast.

    Start with: rml chat
    """


def main() -> NoReturn:
    """Run the command line and leave the process."""
    guard()
    try:
        try:
            cli(prog_name="rml")
        finally:
            sys.stdout.flush()
    except OutputLost as lost:
        if lost.errno != errno.EPIPE:  # whoever closes a pipe has read enough
            say(f"Error: {lost}")
        sys.exit(1)
    raise AssertionError("click leaves the process itself")

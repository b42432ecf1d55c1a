"""Where a command's text comes from: an argument, an option, a file or stdin."""

import sys
from pathlib import Path

import click

__all__ = ["read_prompt"]


def read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """Return the one text that was given.

    ``-`` means stdin, and so does nothing at all where stdin is no terminal. Of a text from a file
    or stdin one line feed at the end is dropped: it belongs to ``echo`` or the editor.

    Raises
    ------
    click.UsageError
        If no text was given, or more than one, or it is not UTF-8.
    """
    given = [source for source in (argument, option, file) if source is not None]
    if len(given) > 1:
        raise click.UsageError("give the text once: as an argument, with -p, or with -f")
    source = given[0] if given else "-"
    if isinstance(source, Path):
        return _decode(source.read_bytes(), str(source))
    if source != "-":
        return source
    if not given and sys.stdin.isatty():
        raise click.UsageError("no text: give it as an argument, with -p, with -f, or on stdin")
    return _decode(sys.stdin.buffer.read(), "stdin")


def _decode(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text: {error}") from error
    return text.removesuffix("\n").removesuffix("\r")

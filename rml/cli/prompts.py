"""Where a command's text comes from: a word, an option, files and stdin, all that were given.

They are joined with a blank line between: what was piped, the files in their order, and last the
text of the command line, as in ``cat notes.txt | rml chat "Summarize this."``. A byte-order mark at
the head of a file or of stdin is dropped, and one line feed at its end: it belongs to ``echo`` or
the editor.
"""

import os
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click
from click.core import ParameterSource

from rml.cli.console import say
from rml.cli.escapes import given_text

__all__ = ["is_stdin", "piped", "read_prompt"]

_PATIENCE = 5.0  # seconds in which a pipe that nobody named has to give something
_PIECE = 1 << 16
_STDIN = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}  # its names; no one reads it twice
_NO_TEXT = "no text: give it as an argument, with -p, with -f, or on stdin"


def read_prompt(
    argument: str | None,
    option: str | None = None,
    files: Sequence[Path] = (),
    *,
    escape: bool = True,
) -> str:
    """Return the text that was given, or all of them joined.

    ``-`` means stdin, and so does nothing at all where stdin is no terminal and holds a text.

    Parameters
    ----------
    argument, option : str or None
        The text as a word or with ``-p``.
    files : sequence of Path
        Those of ``-f``.
    escape : bool
        Whether escape sequences are read in the text of the command line.

    Raises
    ------
    click.UsageError
        If no text was given, or two where one is meant, or it is not UTF-8.
    """
    if argument is not None and option is not None:
        context = click.get_current_context(silent=True)
        source = context and context.get_parameter_source("prompt")
        if source is not ParameterSource.ENVIRONMENT:  # a default that the word overrules
            raise click.UsageError("give the text once: as an argument or with -p")
    text = option if argument is None else argument
    asked = [is_stdin(file) for file in files]
    if sum(asked) + (text == "-") > 1:
        raise click.UsageError("stdin (-) can be read once")
    parts = [_stdin() if stdin else _file(file) for file, stdin in zip(files, asked, strict=True)]
    if text == "-":
        parts.append(_stdin())
    elif text is not None:
        parts.append(given_text(text, "the text", escape=escape))
    if not parts:
        if sys.stdin is not None and sys.stdin.isatty():
            raise click.UsageError(_NO_TEXT)
        if not (text := _stdin()):
            raise click.UsageError(f"{_NO_TEXT} (stdin is empty)")
        return text
    if not any(asked) and text != "-":
        parts.insert(0, piped())
    return "\n\n".join(part for part in parts if part)


def is_stdin(file: Path) -> bool:
    """Whether a file's name means stdin."""
    return str(file) in _STDIN


def piped() -> str:
    """Return what stdin holds where nobody asked for it; white space alone is nothing.

    Programs that start others often leave them a pipe in which nothing ever comes and which is
    never closed, so there is a limit to waiting, and a word when it is reached.
    """
    stream = sys.stdin
    if stream is None or stream.isatty() or not _may_give(stream):
        return ""
    try:
        data = _read_all(stream)
    except OSError:  # not open for reading
        return ""
    text = _decoded(data, "stdin")
    return text if text.strip() else ""


def _may_give(stream: TextIO) -> bool:
    """Whether stdin is a file, or a pipe or socket in which something comes or that ends."""
    try:
        fd = stream.fileno()
    except OSError:  # in memory
        return True
    kind = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return stat.S_ISREG(kind)
    if select.select([fd], [], [], _PATIENCE)[0]:
        return True
    say(
        f"nothing came on stdin in {_PATIENCE:.0f} seconds: going on without it (-f - waits for "
        "it, < /dev/null saves the time)"
    )
    return False


def _stdin() -> str:
    """Read stdin to its end, however long it takes."""
    if sys.stdin is None:
        raise click.UsageError(f"{_NO_TEXT} (stdin is closed)")
    try:
        return _decoded(_read_all(sys.stdin), "stdin")
    except OSError as error:
        raise click.UsageError(f"stdin cannot be read: {error.strerror}") from error


def _read_all(stream: TextIO) -> bytes:
    """Read to the end, also from a pipe that another program has made non-blocking."""
    try:
        fd = stream.fileno()
    except OSError:
        return stream.buffer.read()
    pieces: list[bytes] = []
    while True:
        select.select([fd], [], [])
        try:
            piece = os.read(fd, _PIECE)
        except BlockingIOError:
            continue
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _file(path: Path) -> str:
    try:
        return _decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text: {error}") from error
    return text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")

"""What commands print, and where: answers on stdout, everything else on stderr.

Text that a model or a file wrote is shown on a terminal without its control characters: an escape
sequence in it could otherwise rewrite the screen. What is piped stays as it is.
"""

import csv
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from rml.errors import printable

__all__ = [
    "answer",
    "bytes_text",
    "line_progress",
    "print_csv",
    "print_json",
    "printable",
    "progress_bar",
    "prompt_progress",
    "say",
    "show",
    "show_log",
    "table",
    "uses_color",
]

_BAR = 24  # characters of a bar


def say(message: str) -> None:
    """Print a line to stderr, without control characters: names in it may be those of strangers."""
    click.echo(printable(message), err=True)


def show(text: str) -> None:
    """Print a line that strangers may have written to stdout; on a terminal see `printable`."""
    answer(f"{text}\n")


def answer(text: str) -> None:
    """Print a piece of an answer to stdout at once, with no line feed added."""
    # Not click.echo, which takes escape sequences out of what is piped.
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(value: Any) -> None:  # noqa: ANN401 - anything that JSON can say
    """Print one line of JSON to stdout, with every control character in its texts escaped."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if text != printable(text):  # JSON itself asks for less: C0 controls
        text = "".join(c if c == printable(c) else f"\\u{ord(c):04x}" for c in text)
    click.echo(text)


def print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows, at least one, below the names of their columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    click.echo(text.getvalue(), nl=False)


def uses_color() -> bool:
    """Whether stdout is a terminal that may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def bytes_text(n: int) -> str:
    """Bytes in decimal units, as network and disk sizes are given: ``98.4 MB``."""
    size = float(n)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{n} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> None:
    """Print aligned columns to stdout.

    Parameters
    ----------
    columns : sequence of str
        Headings.
    rows : iterable of sequences
        Cells, shown by `str`, without control characters, line feeds and tabs among them.
    right : str
        One letter a column: ``"r"`` aligns it to the right.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in [list(columns), *cells]:
        padded = [
            cell.rjust(width) if right[i : i + 1] == "r" else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    """Show a value on one line, so that none can be taken for another row."""
    return printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of bytes on stderr while the block runs; yields what updates it.

    Where stderr is not a terminal nothing is drawn.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    # Imported here: rich takes longer to import than most commands take to run.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            # What remains after the last byte is the comparison of digests.
            text = f"{label}: verifying" if done >= total else label
            progress.update(task, completed=done, total=total, description=text)

        yield update


def line_progress(unit: str) -> Callable[..., None]:
    """Make a callback ``show(done, total, note="")`` that draws a bar on a line that goes.

    Where stderr is not a terminal nothing is drawn.
    """
    width = 0

    def show(done: int, total: int, note: str = "") -> None:
        nonlocal width
        filled = _BAR * done // max(1, total)
        bar = "#" * filled + "." * (_BAR - filled)
        line = f"[{bar}] {done} of {total} {unit}" if done < total else ""
        if line and note:
            line += f", {note}"
        if sys.stderr.isatty() and (line or width):
            click.echo(f"\r{line:{width}}" + ("" if line else "\r"), err=True, nl=False)
            width = len(line)

    return show


def prompt_progress() -> Callable[[int, int], None]:
    """Make a callback that shows how much of a long prompt was evaluated."""
    return line_progress("prompt tokens")


def show_log() -> None:
    """Show rml's log on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("rml")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

"""The three standard streams, usable whatever the program was started with.

A stream can be closed (``>&-``, daemons, some schedulers), a full device, or a pipe whose reader
has left. What goes to stderr is dropped where it cannot go, for the answer is worth more than what
is said of it. The first failure of stdout ends the program with `OutputLost`; what was still to be
written then goes nowhere, so that Python's own flush at the end has nothing to complain about.
Where stdin is closed, `sys.stdin` is None: that nothing was given is for those who read to say.
"""

import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputLost", "guard"]


class OutputLost(Exception):  # noqa: N818 - no error of rml's
    """Standard output takes no more; neither an OSError nor an RmlError, which others handle.

    Attributes
    ----------
    errno : int or None
        Why, as the system says it.
    """

    def __init__(self, error: OSError) -> None:
        self.errno = error.errno
        super().__init__(f"standard output: {error.strerror}")


class _Stream(io.FileIO):
    """A standard stream, by its file descriptor; waits where it is non-blocking and busy."""

    def write(self, data: "ReadableBuffer", /) -> int:
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _Output(_Stream):
    """Standard output: raises its first failure, and drops what is written after that."""

    lost = False

    def write(self, data: "ReadableBuffer", /) -> int:
        if self.lost:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.lost = True
            raise OutputLost(error) from error


class _Messages(_Stream):
    """Standard error: drops what cannot be written."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def guard() -> None:
    """Make the process's standard streams safe to use; to be called before anything is opened."""
    _occupy_closed()
    sys.stdout = _guarded(sys.stdout, 1, _Output)
    sys.stderr = _guarded(sys.stderr, 2, _Messages)


def _occupy_closed() -> None:
    """Open the null device in place of each closed stream, in the direction that fails for stdout.

    Otherwise the next file that is opened would take the place, and be written to by whoever
    prints: a model in the making, say.
    """
    for fd, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:  # all below are open, so this one is the next to be given
            os.set_inheritable(os.open(os.devnull, flags), True)


def _guarded(stream: TextIO | None, fd: int, kind: type[_Stream]) -> TextIO:
    """Put `kind` in the place of a standard stream; any other stream stays as it is."""
    if stream is not None:
        try:
            if stream.fileno() != fd:
                return stream
        except OSError:  # one in memory
            return stream
        stream.flush()
    raw = kind(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding if stream is not None else None,
        errors="replace",  # a terminal that cannot show a character is no reason to stop an answer
        line_buffering=fd == 2 or raw.isatty(),
    )

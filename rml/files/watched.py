"""A file that must stay as it is while its bytes are used, and how a change is found out.

A mapping shows what the file holds now. Cut short by another program, it has no pages behind its
new end, and touching one ends the process (SIGBUS on POSIX systems, in any language); written to,
it turns into other numbers. So the size and the time of the last write are looked at around every
use, through a descriptor that is kept open for that: it takes a microsecond.

============================================  ==================================================
what happens to the file                      what a look says
============================================  ==================================================
cut, extended, overwritten, touched           `CheckpointError`
another file renamed to its name, deleted     nothing: the mapping and the descriptor belong to
                                              the old file, which is whole until both are gone
read, copied, linked, chmod, chown, moved     nothing: none of these changes what it holds
============================================  ==================================================

What a look cannot see: what happens between it and the use (of a step: until its end, where a
second look finds out what was overwritten, but a cut may have ended the process); a writer that
sets the time back to what it was (``cp -p`` of the same time, ``rsync --inplace --times``) and
leaves the size; a write within a tick of the file system's clock after the one before; and what
other machines do, until a network file system tells. The time of the last change of the *inode*
(ctime) would show some of these, but also ``chmod``, ``ln`` and a rename, which are harmless.

Windows lets nobody cut, delete or replace a file that is mapped.
"""

import contextlib
import errno
import io
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

from rml.errors import CheckpointError, ClosedError

__all__ = ["WatchedFile"]

# Not waiting matters for a pipe that has taken the place of a file; a regular file never waits.
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_PART = 1 << 24  # bytes read at a time: an interrupt waits for no more


class WatchedFile:
    """An open file, and what it was like when it was opened.

    Parameters
    ----------
    path : Path
        A regular file.

    Attributes
    ----------
    path : Path
        As given.
    size : int
        Bytes in the file when it was opened.

    Raises
    ------
    OSError
        If it cannot be opened.
    CheckpointError
        If it is no regular file.
    """

    __slots__ = ("_descriptor", "_written", "path", "size")

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._descriptor = os.open(path, _FLAGS)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise CheckpointError(f"{path}: this is not a regular file")
        self.path, self.size = path, status.st_size
        self._written = status.st_mtime_ns

    @property
    def descriptor(self) -> int:
        """For the mapping; -1 when closed."""
        return self._descriptor

    def identity(self) -> list[int]:
        """Tell the file from others and from itself at another time.

        Returns
        -------
        list of int
            Size, time of the last write, inode and device; of this file, whatever has its name now.
        """
        self.require_unchanged()
        status = os.fstat(self._descriptor)
        return [self.size, self._written, status.st_ino, status.st_dev]

    def require_unchanged(self) -> None:
        """Look at the file.

        Raises
        ------
        CheckpointError
            If it was written to since it was opened, or nobody can tell.
        ClosedError
            If it is closed.
        """
        try:
            status = os.fstat(self._descriptor)
        except OSError as error:
            raise self._lost(error) from None
        if status.st_mtime_ns == self._written and status.st_size == self.size:
            return
        if self._descriptor < 0:  # by another thread; its number may be another file's by now
            raise ClosedError(f"{self.path}: the file is closed")
        raise CheckpointError(
            f"{self.path}: the file was changed while it was in use: it has {status.st_size:,} "
            f"bytes, last written {_time(status.st_mtime_ns)}; when it was opened it had "
            f"{self.size:,}, written {_time(self._written)}. What is computed from it would be "
            "wrong: load it again. To replace a model in use, write a new file and rename it to "
            "this name, or load with mmap=False"
        )

    def _lost(self, error: OSError) -> CheckpointError | ClosedError:
        if self._descriptor < 0:
            return ClosedError(f"{self.path}: the file is closed")
        if error.errno == errno.EBADF:
            return CheckpointError(
                f"{self.path}: the file cannot be watched for changes: its descriptor was closed "
                "by other code (os.closerange?); load it after that, or with mmap=False"
            )
        return CheckpointError(f"{self.path}: cannot be read any more: {error.strerror}")

    def read_into(self, memory: memoryview) -> None:
        """Read all of it.

        Parameters
        ----------
        memory : memoryview
            `size` bytes.

        Raises
        ------
        CheckpointError
            If it cannot be read, or has changed.
        """
        done = 0
        try:
            with io.FileIO(self._descriptor, closefd=False) as file:
                file.seek(0)
                while done < self.size and (n := file.readinto(memory[done : done + _PART])):
                    done += n
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from error
        self.require_unchanged()
        if done < self.size:
            raise CheckpointError(
                f"{self.path}: only {done:,} of {self.size:,} bytes could be read"
            )

    def close(self) -> None:
        """Close the descriptor; twice does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # closed by other code
                os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def _time(nanoseconds: int) -> str:
    """Show a time as seconds are too coarse for: two writes may be milliseconds apart."""
    try:
        moment = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    except (OverflowError, OSError, ValueError):  # beyond the years of the calendar
        return f"{nanoseconds} ns after 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{nanoseconds % 10**9 // 10**6:03} UTC"

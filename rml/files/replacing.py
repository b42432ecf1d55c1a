"""Private files, all or nothing: a new one takes the place of the old one when it is whole.

It is written under another name in the same folder, brought to the disk, and renamed. Only its
owner may read it, from the first byte on. What a process leaves that is killed meanwhile is removed
by the next one that writes there: a lock tells whether somebody is still at work.
"""

import errno
import fcntl
import os
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rml.errors import SaveError
from rml.files.limits import MAX_PATH_BYTES
from rml.ranges import shown

__all__ = ["replacing"]

_TEMPORARY = ".rml-"  # how the other names begin
_FRESH = 60  # seconds
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of another when the block ends.

    Parameters
    ----------
    path : Path
        The file; it need not exist. A link stays one, and its target is replaced. A pipe or a
        device is written to, and never replaced.

    Yields
    ------
    binary file
        To write to. If the block raises, all is as it was; but what has gone to a pipe or a device
        has gone.

    Raises
    ------
    SaveError
        If `path` is no name of a file.
    OSError
        If there can be no such file, or it cannot be written.

    Warns
    -----
    UserWarning
        If `path` is a pipe that nobody reads: nothing is kept then, and nobody waits.
    """
    if "\0" in str(path):
        raise SaveError(f"{str(path)!r} is not a file name: it holds a NUL character")
    if len(str(path)) > MAX_PATH_BYTES:
        raise SaveError(f"{shown(str(path))}: the name is too long for a file")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise SaveError(f"{shown(str(path))} is not a file name: {error.reason}") from error
    target = Path(os.path.realpath(path))
    if target.exists():
        kind = target.stat().st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
            with _written_to(target, path) as file:
                yield file
            return
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "a socket or a disk"
            raise OSError(errno.EEXIST, f"this is {what}, but a file is needed")
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file that is there may not be written")
    _remove_leftovers(target.parent)
    # Not the name with something added, which might be too long.
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}.tmp")
    with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
        try:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask has taken away
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _sync_folder(target.parent)


@contextmanager
def _written_to(target: Path, path: Path) -> Iterator[BinaryIO]:
    """Open a pipe or a device; nothing waits for a reader of a pipe."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        warnings.warn(
            f"{path}: nobody reads this pipe, so the session was not kept; save it to a file, or "
            "begin to read before",
            stacklevel=7,  # who saves
        )
        descriptor = os.open(os.devnull, os.O_WRONLY)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "wb") as file:
        yield file


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes have left that were killed while they wrote."""
    with suppress(OSError):
        for path in folder.glob(f"{_TEMPORARY}*.tmp"):
            with suppress(OSError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or time.time() - status.st_mtime < _FRESH:
                    continue  # made a moment ago: not locked yet
                with path.open("rb") as file:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)  # or it is at work
                    path.unlink()


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk; the file has its place, whatever becomes of this."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

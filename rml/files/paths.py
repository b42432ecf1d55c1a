"""Questions about paths whose answer is never an exception.

`Path.exists` and its like let errors out where a folder may not be searched or a name is too long.
Here the answer is no then, and whoever opens the file says what is wrong with it.
"""

import os
from pathlib import Path

from rml.errors import ArgumentError

__all__ = ["as_path", "expanded", "is_folder", "is_there"]


def is_there(path: Path) -> bool:
    """Whether a folder has an entry of this name, be it a link that leads nowhere.

    A file that counts if it is there must not be passed over because it cannot be read.
    """
    return os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return what a caller gave as a path.

    Raises
    ------
    ArgumentError
        If it is none.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ArgumentError(f"a path is expected, not {path!r}")
    return Path(path)


def expanded(path: str | os.PathLike[str]) -> Path:
    """Put the home folder for a ``~``; one of nobody stays as it is."""
    return Path(os.path.expanduser(as_path(path)))  # noqa: PTH111

"""Questions about paths whose answer is never an exception.

`Path.exists` and its like let errors out where a folder may not be searched or a name is too long.
Here the answer is no then, and whoever opens the file says what is wrong with it.
"""

import os
from pathlib import Path

from rml.errors import ArgumentError

__all__ = ["given_path", "is_folder", "is_there"]


def is_there(path: Path) -> bool:
    """Whether a folder has an entry of this name, be it a link that leads nowhere.

    A file that counts if it is there must not be passed over because it cannot be read.
    """
    return os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder."""
    return os.path.isdir(path)  # noqa: PTH112


def given_path(value: object, what: str = "a path") -> Path:
    """Check what a caller gave as a path; a ``~`` at its beginning is the home folder.

    The home of nobody stays as it is: there is no such file.

    Raises
    ------
    ArgumentError
        If it is no path, or an empty one.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"{what} is expected, not {value!r}")
    return Path(os.path.expanduser(text))  # noqa: PTH111

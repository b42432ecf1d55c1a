"""Questions about paths whose answer is never an exception.

`Path.exists` and its like let errors out where a folder may not be searched or a name is too long.
Here the answer is no then, and whoever opens the file says what is wrong with it.
"""

import os
from pathlib import Path

from rml.errors import ArgumentError
from rml.ranges import callers_objects, plain_text, shown

__all__ = ["given_path", "is_folder", "is_there"]


def is_there(path: Path) -> bool:
    """Whether a folder has an entry of this name, be it a link that leads nowhere.

    A file that counts if it is there must not be passed over because it cannot be read.
    """
    return os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder."""
    return os.path.isdir(path)  # noqa: PTH112


# Of any operating system's paths; those of Linux may have 4,096 bytes.
_LONGEST = 32_767


def given_path(value: object, what: str = "a path") -> Path:
    """Check what a caller gave as a path; a ``~`` at its beginning is the home folder.

    The home of nobody stays as it is: there is no such file.

    Raises
    ------
    ArgumentError
        If it is no path, or an empty one.
    """
    with callers_objects(what):
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not len(text := plain_text(text)):
        raise ArgumentError(f"{what} is expected, not {shown(value)}")
    if len(text) > _LONGEST:
        raise ArgumentError(
            f"{what} is expected, but a text of {len(text):,} characters is too long"
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{what} is expected, but {shown(text)} is no name: {error}") from None
    return Path(os.path.expanduser(text))  # noqa: PTH111

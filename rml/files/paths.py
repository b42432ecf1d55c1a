"""Questions about paths whose answer is never an exception.

`Path.exists` and its like let errors out where a folder may not be searched or a name is too long.
Here the answer is no then, and whoever opens the file says what is wrong with it.
"""

import os
from pathlib import Path
from reprlib import repr as brief  # of whatever a caller gave: bounded in depth and length

from rml.errors import ArgumentError, CheckpointError
from rml.files.limits import MAX_NAME_BYTES, MAX_PATH_BYTES
from rml.ranges import callers_objects, plain_text, shown

__all__ = ["given_name", "given_path", "is_folder", "is_there", "readable_path"]


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
    with callers_objects(what):
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not len(text := plain_text(text)):
        raise ArgumentError(f"{what} is expected, not {shown(value)}")
    # The home folder of somebody with a NUL in the name cannot even be asked for.
    return Path(text if "\0" in text else os.path.expanduser(text))  # noqa: PTH111


def readable_path(value: object, what: str = "a path") -> Path:
    """Check what a caller gave as the path of something that is there, as `given_path` does.

    Raises
    ------
    ArgumentError
        If it is no path, or an empty one.
    CheckpointError
        If no file can have that name.
    """
    path = given_path(value, what)
    _refuse_impossible(str(path))
    return path


def given_name(value: object) -> str:
    """Check what a caller gave as the name of a model.

    Raises
    ------
    ArgumentError
        If it is no str.
    CheckpointError
        If nothing can be called so.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"the name of a model is expected, not {shown(value)}")
    _refuse_impossible(value)
    return value


def _refuse_impossible(text: str) -> None:
    """Refuse what no file can be called, before the operating system is asked in many ways."""
    if "\0" in text:
        raise CheckpointError(f"{brief(text)} is not a file name: it holds a NUL character")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{brief(text)} is not a file name: {error.reason}") from error
    if len(raw) > MAX_PATH_BYTES:
        raise CheckpointError(
            f"{brief(text)}: the name is too long: {len(raw)} bytes, and no file has more than "
            f"{MAX_PATH_BYTES}"
        )
    longest = max(map(len, raw.split(b"/")))
    if longest > MAX_NAME_BYTES:
        raise CheckpointError(
            f"{brief(text)}: the name is too long: a part of it has {longest} bytes, and none has "
            f"more than {MAX_NAME_BYTES}"
        )

"""What a name means: a path, or a model that was pulled."""

import os
from pathlib import Path

from rml.errors import ArgumentError, DownloadError
from rml.files import hub_names, pull

__all__ = ["locate"]


def locate(name: str | os.PathLike[str]) -> Path:
    """Find the file or folder that `name` means; nothing is downloaded.

    Parameters
    ----------
    name : str or path-like
        A path; or, as a str, the name of a model that was pulled. The pulled model comes first.

    Returns
    -------
    Path
        It need not exist: a missing file is best explained by who opens it.

    Raises
    ------
    DownloadError
        If `name` is the name of a model that is not on this machine.
    ArgumentError
        If it is neither a str nor a path.
    """
    if not isinstance(name, str | os.PathLike) or not isinstance(os.fspath(name), str):
        raise ArgumentError(f"a path or the name of a model is expected, not {name!r}")
    path = Path(name).expanduser()
    if not isinstance(name, str):
        return path
    if found := pull.find(name):
        return found
    # A path whose folder exists is a mistyped file, not a repository of the Hub.
    is_hub_name = hub_names.parse(name) is not None and not path.parent.exists()
    if not path.exists() and (name in pull.KNOWN or is_hub_name):
        raise DownloadError(f"{name} is not on this machine yet; get it with: rml pull {name}")
    return path

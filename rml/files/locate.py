"""What a name means: a path, or a model that was pulled."""

import os
from pathlib import Path

from rml.errors import DownloadError
from rml.files import hub_names
from rml.files.known import KNOWN
from rml.files.local import find
from rml.files.paths import is_there, readable_path
from rml.ranges import plain_text

__all__ = ["NotPulled", "locate"]


class NotPulled(DownloadError):  # noqa: N818 - a state, as its parent names one
    """A name that `rml pull` knows, of a model that is not on this machine."""


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
    NotPulled
        If `name` is the name of a model that is not on this machine.
    ArgumentError
        If it is neither a str nor a path, or empty.
    """
    path = readable_path(name, "a path or the name of a model")
    if not isinstance(name, str):
        return path
    name = plain_text(name)
    if found := find(name):
        return found
    # A path whose folder exists is a mistyped file, not a repository of the Hub.
    is_hub_name = hub_names.parse(name) is not None and not is_there(path.parent)
    if not is_there(path) and (name in KNOWN or is_hub_name):
        raise NotPulled(f"{name} is not on this machine yet; get it with: rml pull {name}")
    return path

"""Models for commands: fetched with a bar where that is allowed, then opened."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rml
from rml.cli.console import bytes_text, progress_bar, say
from rml.cli.options import load_arguments
from rml.errors import CheckpointError
from rml.files import locate as files
from rml.files import pull
from rml.files.known import KNOWN

__all__ = ["fetch", "load", "locate"]


def fetch(name: str, *, to: Path | None = None, offline: bool | None = None) -> Path:
    """Fetch a model, saying first what it is, how large, and on which terms."""
    offer = pull.offer(name, offline=offline)
    licence = f", {offer.licence} licence" if offer.licence else ", no licence stated"
    say(f"{offer.name}: {offer.description}, {bytes_text(offer.size)}{licence}")
    if offer.terms:
        say(offer.terms)
    if offer.unverified:
        few, more = offer.unverified[:8], len(offer.unverified) - 8
        names = ", ".join(few) + (f" and {more} more" if more > 0 else "")
        say(f"No SHA-256 is stated for {names}: only the size is checked.")
    say(f"Fetching it from {offer.source}.")
    with progress_bar(f"fetching {offer.name}") as progress:
        path = pull.pull(name, to=to, offline=offline, progress=progress)
    say(f"saved as {path}")
    return path


def locate(name: str, *, offline: bool | None = None, download: bool = False) -> Path:
    """Find the file or folder that `name` means, as `rml.load` does.

    Parameters
    ----------
    name : str
        A path, a known name, or a name of the Hugging Face Hub.
    offline : bool, optional
        As in `rml.files.pull.pull`.
    download : bool
        Fetch a model that is not on this machine; otherwise say how to.

    Raises
    ------
    CheckpointError
        If `name` is neither a file nor the name of a model.
    DownloadError
        If the model is not there and is not to be fetched, or cannot be.
    """
    try:
        path = files.locate(name)
    except files.NotPulled:
        if not download:
            raise
        say(f"{name} is not on this machine yet.")
        return fetch(name, offline=offline)
    if not path.exists():
        raise CheckpointError(
            f"{name}: there is no such file or folder, and no model is known by that name "
            f"(known: {', '.join(KNOWN)}; or org/repo on the Hugging Face Hub)"
        )
    return path


def load(values: Mapping[str, Any], *, download: bool = False) -> "rml.Model":
    """Open the model that a command's options name."""
    path = locate(values["model"], offline=values["offline"], download=download)
    return rml.load(path, **load_arguments(values))

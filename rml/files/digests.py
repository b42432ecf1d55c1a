"""A digest of all bytes of a model's tensors, made once and remembered in the cache.

It tells a model apart from every other one, however alike: what belongs to it (a saved session) is
used with it alone. Making it means reading all weights, a second or so for each gigabyte; what was
made is kept in the cache folder, and counts as long as the files have the size, the time of the
last write, the inode and the device that they had then. Where the cache cannot be written it is
made again by the next program.
"""

import hashlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rml.files.cache import cache_dir, keep_document, small_file
from rml.files.checkpoint import Checkpoint

__all__ = ["tensors_digest"]

_log = logging.getLogger("rml")


def tensors_digest(checkpoint: Checkpoint, n_threads: int = 1) -> str:
    """Return a digest of names, shapes, types and all bytes of the tensors.

    Parameters
    ----------
    checkpoint : Checkpoint
        Open.
    n_threads : int
        Threads that read the weights where that was not done before.

    Returns
    -------
    str
        SHA-256, hexadecimal. It does not depend on how the tensors are dealt to files.

    Raises
    ------
    ClosedError
        If the checkpoint is closed.
    CheckpointError
        If a file was changed since it was opened.
    """
    if not checkpoint.mmap:  # a copy in memory, whose files may be others by now, or gone
        return _made(checkpoint, n_threads)
    files = checkpoint.identities
    place = _place(files)
    digest = _remembered(place, files)
    if digest is None:
        digest = _made(checkpoint, n_threads)
        checkpoint.require_unchanged()  # while they were read
        _remember(place, files, digest)
    return digest


def _made(checkpoint: Checkpoint, n_threads: int) -> str:
    digest = hashlib.sha256()
    tensors = sorted(checkpoint.tensors.items())
    with ThreadPoolExecutor(n_threads) as pool:
        each = pool.map(lambda entry: hashlib.sha256(entry[1].data).digest(), tensors)
        for (name, tensor), found in zip(tensors, each, strict=True):
            digest.update(repr((name, tensor.shape, tensor.type)).encode())
            digest.update(found)
    return digest.hexdigest()


def _place(files: list[list[Any]]) -> Path:
    name = hashlib.sha256(json.dumps([path for path, *_ in files]).encode()).hexdigest()
    return cache_dir() / "digests" / f"{name[:32]}.json"


def _remembered(place: Path, files: list[list[Any]]) -> str | None:
    """Return the digest that was made of these files as they are now, if there is one."""
    try:
        kept = json.loads(small_file(place))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("%s: not a digest of a model: %s", place, error)
        return None
    if not isinstance(kept, dict) or kept.get("files") != files:
        return None
    digest = kept.get("sha256")
    return digest if isinstance(digest, str) else None


def _remember(place: Path, files: list[list[Any]], digest: str) -> None:
    keep_document(place, {"files": files, "sha256": digest})

"""Models on this machine: found by name, at once and without a network.

What is found is complete, and verified against its SHA-256.
"""

import logging
from pathlib import Path
from reprlib import repr as brief

from rml.errors import ArgumentError
from rml.files import hub_names
from rml.files.cache import FileRecord, Receipt, cache_dir, read_receipt, sha256_of, write_receipt
from rml.files.known import KNOWN, KnownModel

__all__ = ["cached_path", "find"]

_log = logging.getLogger("rml")


def find(name: str) -> Path | None:
    """Where the model called `name` lies, if it is on this machine, complete and verified.

    A file that changed since it was last verified is hashed again; otherwise this costs a few
    `stat` calls. The network is not used.

    Parameters
    ----------
    name : str
        A key of `KNOWN`, or a name of the Hugging Face Hub that was pulled before.

    Raises
    ------
    ArgumentError
        If `name` is no str.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"the name of a model is expected, not {brief(name)}")
    known = KNOWN.get(name)
    if known is None:
        parsed = hub_names.parse(name)
        receipt = read_receipt(str(parsed)) if parsed else None
        return Path(receipt.path) if receipt and receipt.holds() else None
    path = cached_path(name)
    receipt = read_receipt(name)
    if receipt and receipt.path == str(path.absolute()) and receipt.holds():
        return path
    return path if _verified(known, path) else None


def cached_path(name: str) -> Path:
    """Where a known model lies in the cache, if it is there."""
    return cache_dir() / f"{name}.gguf"


def _verified(known: KnownModel, path: Path) -> bool:
    """Hash `path` and remember the result if it is the model; what cannot be read is not."""
    try:
        if not path.is_file() or path.stat().st_size != known.size:
            return False
        # What is remembered is how the file was before: a change meanwhile is noticed then.
        record = FileRecord.of(path, known.sha256)
        if sha256_of(path) != known.sha256:
            return False
    except OSError as error:
        _log.info("%s: cannot be verified: %s", path, error)
        return False
    write_receipt(Receipt(known.name, record.path, known.licence, (record,)))
    return True

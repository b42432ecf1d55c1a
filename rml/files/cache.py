"""The user's model cache: where models lie, and which files are known to be whole.

A model in the cache has a *receipt*, a small JSON file with the size, modification time and
SHA-256 of each of its files. A file that still has the size and time of its receipt need not be
hashed again, so looking a model up costs a few `stat` calls. A file without a valid receipt is not
taken for a model until it has been hashed.

The folder is ``$RML_CACHE``, else the platform's cache folder for rml.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import platformdirs

from rml.errors import DownloadError
from rml.files.paths import given_path

__all__ = [
    "CHUNK",
    "FileRecord",
    "Receipt",
    "cache_dir",
    "exclusive",
    "forget",
    "new_file",
    "read_receipt",
    "receipts",
    "sha256_of",
    "sizes_below",
    "write_receipt",
]

CHUNK = 1 << 20  # bytes read at a time when a file is copied or hashed

_log = logging.getLogger("rml")


def cache_dir() -> Path:
    """Folder of downloaded models; it need not exist yet."""
    override = os.environ.get("RML_CACHE")
    return given_path(override) if override else platformdirs.user_cache_path("rml")


def sizes_below(folder: Path, ending: str = "") -> Iterator[int]:
    """Bytes of each file below `folder` whose name ends in `ending`.

    Another program may write there: what vanishes on the way, folders included, is left out.
    """
    for parent, _folders, names in os.walk(folder):  # passes over what it cannot list
        for name in names:
            if name.endswith(ending):
                with contextlib.suppress(FileNotFoundError):
                    yield Path(parent, name).stat().st_size


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file as it was when its content was last verified.

    Attributes
    ----------
    path : str
        Absolute path.
    size : int
        Bytes.
    mtime_ns : int
        Modification time in nanoseconds.
    sha256 : str
        Hexadecimal digest of the content; empty where the source promised none.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path, sha256: str) -> "FileRecord":
        """Record `path` as it is now, with the digest that was just computed of it."""
        stat = path.stat()
        return cls(str(path.absolute()), stat.st_size, stat.st_mtime_ns, sha256)

    def holds(self) -> bool:
        """Whether the file is there and has not been written to since."""
        try:
            stat = Path(self.path).stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is known about one model on this machine.

    Attributes
    ----------
    name : str
        The name it was pulled by.
    path : str
        What `rml.load` opens: a GGUF file (the first part of a split one) or a folder.
    licence : str
        Licence named by the source; empty where it named none.
    files : tuple of FileRecord
        Every file of the model.
    """

    name: str
    path: str
    licence: str
    files: tuple[FileRecord, ...]

    def holds(self) -> bool:
        """Whether every file is as it was when it was verified."""
        return bool(self.files) and all(record.holds() for record in self.files)


def _receipt_path(name: str) -> Path:
    return cache_dir() / "receipts" / f"{quote(name, safe='')}.json"


def write_receipt(receipt: Receipt) -> None:
    """Remember `receipt`; on a cache that cannot be written, the next look-up hashes again."""
    path = _receipt_path(receipt.name)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(receipt), indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        _log.info("%s: receipt not written: %s", path, error)


def read_receipt(name: str) -> Receipt | None:
    """Receipt of the model called `name`, or None where there is none that can be read."""
    return _parse(_receipt_path(name))


def receipts() -> list[Receipt]:
    """Every readable receipt, sorted by name."""
    found = [_parse(path) for path in (cache_dir() / "receipts").glob("*.json")]
    return sorted((receipt for receipt in found if receipt), key=lambda receipt: receipt.name)


def forget(name: str) -> None:
    """Drop the receipt of the model called `name`, if there is one."""
    _receipt_path(name).unlink(missing_ok=True)


def _parse(path: Path) -> Receipt | None:
    """Read a receipt; one that is damaged counts as absent, since it can always be made again."""
    try:
        fields: Any = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(
            FileRecord(str(f["path"]), int(f["size"]), int(f["mtime_ns"]), str(f["sha256"]))
            for f in fields["files"]
        )
        return Receipt(str(fields["name"]), str(fields["path"]), str(fields["licence"]), files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("%s: not a receipt: %s", path, error)
        return None


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hexadecimal SHA-256 of a file; `progress` is called with the bytes read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
    return digest.hexdigest()


@contextlib.contextmanager
def new_file(target: Path, *, sha256: str, size: int) -> Iterator[Callable[[bytes], None]]:
    """Write `target` all or nothing: under its name it exists only when it is right.

    Yields the function that writes bytes. When the block ends, the bytes are compared with `sha256`
    and `size`, brought to the disk, and appear under their name at once; when anything fails,
    nothing is left.

    Raises
    ------
    DownloadError
        If other bytes were written than were promised.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    digest = hashlib.sha256()
    written = 0

    def write(data: bytes) -> None:
        nonlocal written
        written += len(data)
        if written > size:
            raise DownloadError(f"{target}: more bytes arrived than the expected {size}")
        digest.update(data)
        file.write(data)

    try:
        with temporary.open("xb") as file:
            yield write
            if written != size or digest.hexdigest() != sha256:
                raise DownloadError(
                    f"{target}: {written} bytes with SHA-256 {digest.hexdigest()} arrived, "
                    f"expected {size} bytes with {sha256}; nothing was kept, try again"
                )
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever has it; it is removed afterwards.

    The system drops the lock of a process that dies. On a file system without locks the block runs
    all the same: temporary names are unique and finished files appear at once, so that two
    downloads cost bandwidth, not correctness.
    """
    while True:
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("%s: waiting for another process", path)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                _log.info("%s: no lock on this file system: %s", path, error)
            # The one before us may have removed the file that we waited for; then start again.
            try:
                current = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                current = False
            if current:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

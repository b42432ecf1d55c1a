"""The user's model cache: where models lie, and which files are known to be whole.

A model in the cache has a *receipt*, a small JSON file with the size, modification time and
SHA-256 of each of its files. A file that still has the size and time of its receipt need not be
hashed again, so looking a model up costs a few `stat` calls. A file without a valid receipt is not
taken for a model until it has been hashed.

A receipt is not believed in what it says about places: it counts only under its own name, and what
it names is deleted only where models are kept. Lock files and folders for what is on its way are
used only if they are what they are taken for and belong to the user: never through a link.

The folder is ``$RML_CACHE``, else the platform's cache folder for rml.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import platformdirs

from rml.errors import DownloadError
from rml.files import known
from rml.files.hub_names import parse
from rml.files.limits import MAX_NAME_BYTES, MAX_RECEIPT_BYTES, MAX_RECEIPTS
from rml.files.paths import given_path

__all__ = [
    "CHUNK",
    "FileRecord",
    "Receipt",
    "cache_dir",
    "exclusive",
    "forget",
    "keep_document",
    "needs_room",
    "new_file",
    "own_folder",
    "read_receipt",
    "receipts",
    "sha256_of",
    "sizes_below",
    "small_file",
    "write_receipt",
]

CHUNK = 1 << 20  # bytes read at a time when a file is copied or hashed

_log = logging.getLogger("rml")


def cache_dir() -> Path:
    """Folder of downloaded models; it need not exist yet."""
    override = os.environ.get("RML_CACHE")
    return given_path(override, "RML_CACHE") if override else platformdirs.user_cache_path("rml")


def sizes_below(folder: Path, ending: str = "") -> Iterator[int]:
    """Bytes of each file below `folder` whose name ends in `ending`.

    Another program may write there: what vanishes on the way, folders included, is left out.
    """
    for parent, _folders, names in os.walk(folder):  # passes over what it cannot list
        for name in names:
            if name.endswith(ending):
                with contextlib.suppress(OSError):
                    yield Path(parent, name).lstat().st_size


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
        found = path.stat()
        return cls(str(path.absolute()), found.st_size, found.st_mtime_ns, sha256)

    def holds(self) -> bool:
        """Whether the file is there and has not been written to since."""
        try:
            found = Path(self.path).stat()
        except (OSError, ValueError):
            return False
        same = (found.st_size, found.st_mtime_ns) == (self.size, self.mtime_ns)
        return same and stat.S_ISREG(found.st_mode)


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
    file = quote(name, safe="")
    if len(file) > MAX_NAME_BYTES - 30:  # room for what a temporary name adds
        file = f"{file[:100]}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()}"
    return cache_dir() / "receipts" / f"{file}.json"


def write_receipt(receipt: Receipt) -> None:
    """Remember `receipt`; on a cache that cannot be written, the next look-up hashes again."""
    keep_document(_receipt_path(receipt.name), asdict(receipt))


def read_receipt(name: str) -> Receipt | None:
    """Receipt of the model called `name`, or None where there is none that can be read."""
    return _parse(_receipt_path(name))


def receipts() -> list[Receipt]:
    """Every readable receipt, sorted by name."""
    found = []
    try:
        with os.scandir(cache_dir() / "receipts") as entries:
            for entry in entries:
                if entry.name.endswith(".json") and (receipt := _parse(Path(entry.path))):
                    found.append(receipt)
                if len(found) >= MAX_RECEIPTS:
                    break
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            _log.info("the receipts cannot be listed: %s", error)
    return sorted(found, key=lambda receipt: receipt.name)


def forget(name: str) -> None:
    """Drop the receipt of the model called `name`, if there is one, and what is left of others."""
    path = _receipt_path(name)
    path.unlink(missing_ok=True)
    for stray in _strays(path):
        stray.unlink(missing_ok=True)


def _parse(path: Path) -> Receipt | None:
    """Read a receipt; one that is damaged counts as absent, since it can always be made again."""
    try:
        fields: Any = json.loads(small_file(path))
        files = tuple(
            FileRecord(f["path"], f["size"], f["mtime_ns"], f["sha256"]) for f in fields["files"]
        )
        receipt = Receipt(fields["name"], fields["path"], fields["licence"], files)
        fault = _fault(receipt, path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        fault = str(error)
    if fault:
        _log.info("%s: not a receipt: %s", path, fault)
        return None
    return receipt


def keep_document(path: Path, document: Any) -> None:  # noqa: ANN401 - what JSON can hold
    """Write a document that can be made again, all or nothing; where that fails, it is logged."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        own_folder(path.parent, shared=True)
        try:
            with temporary.open("x", encoding="utf-8") as file:
                json.dump(document, file, indent=1)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, DownloadError, UnicodeEncodeError) as error:
        _log.info("%s: not kept: %s", path, error)


def small_file(path: Path) -> bytes:
    """Read a document that rml keeps: a regular file of bounded size, not through a link.

    Raises
    ------
    OSError
        If it cannot be opened.
    ValueError
        If it is something else, or too large.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - by its descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("this is no regular file")
        text = file.read(MAX_RECEIPT_BYTES + 1)
    if len(text) > MAX_RECEIPT_BYTES:
        raise ValueError(f"more than {MAX_RECEIPT_BYTES} bytes")
    return text


def _fault(receipt: Receipt, path: Path) -> str:
    """Say what no receipt that rml wrote to `path` has; empty if there is nothing."""
    texts = [receipt.name, receipt.path, receipt.licence]
    texts += [text for record in receipt.files for text in (record.path, record.sha256)]
    numbers = [n for record in receipt.files for n in (record.size, record.mtime_ns)]
    if not all(isinstance(text, str) for text in texts):
        return "a text is expected"
    if not all(type(n) is int and -(1 << 63) <= n < 1 << 63 for n in numbers):
        return "a number of 64 bits is expected"
    if any(record.size < 0 for record in receipt.files):
        return "a negative size"
    if _receipt_path(receipt.name) != path:
        return "it is the receipt of another model"
    parsed = parse(receipt.name)
    if receipt.name not in known.KNOWN and (parsed is None or str(parsed) != receipt.name):
        return "no model can have its name"
    if not receipt.licence.isprintable():
        return "a licence with control characters"
    places = [receipt.path, *(record.path for record in receipt.files)]
    if not all(Path(place).is_absolute() and "\0" not in place for place in places):
        return "a path that is not absolute"
    digests = [record.sha256 for record in receipt.files]
    if not all(re.fullmatch("([0-9a-f]{64})?", digest) for digest in digests):
        return "a SHA-256 that is none"
    if receipt.path not in places[1:] and not all(
        place.startswith(f"{receipt.path}/") for place in places[1:]
    ):
        return "what it opens is none of its files"
    return ""


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
    nothing is left. What a killed process left is removed: the caller holds the lock of `target`.

    Raises
    ------
    DownloadError
        If other bytes were written than were promised.
    """
    for stray in _strays(target):
        stray.unlink(missing_ok=True)
    needs_room(target.parent, size)
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


def _strays(path: Path) -> list[Path]:
    """Temporary files beside `path` that a killed process left of it."""
    left = re.compile(rf"\.?{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp")
    try:
        return [entry for entry in path.parent.iterdir() if left.fullmatch(entry.name)]
    except OSError:
        return []


def needs_room(folder: Path, n_bytes: int, what: str = "are needed") -> None:
    """Refuse to begin what the disk cannot hold.

    Raises
    ------
    DownloadError
        If there are fewer bytes free in `folder`, or where it will be made.
    """
    place = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if free < n_bytes:
        raise DownloadError(
            f"{folder}: {n_bytes / 1e6:.0f} MB {what}, {free / 1e6:.0f} MB are free: make room, or "
            "choose another folder"
        )


def own_folder(path: Path, *, shared: bool = False) -> None:
    """Make a folder of rml's own, unless it is there; one that is `shared` may be another user's.

    Raises
    ------
    DownloadError
        If something else has its place, a link for example, or it is somebody else's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    _refuse_others(path, os.lstat(path), "folder", stat.S_ISDIR, shared=shared)


def _refuse_others(
    path: Path,
    found: os.stat_result,
    what: str,
    is_right: Callable[[int], bool],
    *,
    shared: bool = False,
) -> None:
    kind = "a link" if stat.S_ISLNK(found.st_mode) else f"no {what}"
    if is_right(found.st_mode):
        if shared or found.st_uid == os.geteuid():
            return
        kind = f"a {what} of another user"
    raise DownloadError(
        f"{path} is {kind}, where a {what} of your own is expected: look at it, and remove it"
    )


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, waiting for whoever has it; it is removed afterwards.

    The system drops the lock of a process that dies. On a file system without locks the block runs
    all the same: temporary names are unique and finished files appear at once, so that two
    downloads cost bandwidth, not correctness.

    Raises
    ------
    DownloadError
        If something else has the name of the lock: a link, a pipe, a folder, or another's file.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(path)
            _refuse_others(path, found, "file", stat.S_ISREG)
        with open(os.open(path, flags, 0o666), "rb") as file:  # noqa: PTH123 - by its descriptor
            _refuse_others(path, os.fstat(file.fileno()), "file", stat.S_ISREG)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.info("%s: waiting for another process", path)
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                _log.info("%s: no lock on this file system: %s", path, error)
            # The one before us may have removed the file that we waited for; then start again.
            try:
                current = os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
            except FileNotFoundError:
                current = False
            if current:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return

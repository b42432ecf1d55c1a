"""Models from the Hugging Face Hub: look a repository up, fetch its files, delete them.

The transfer is the `huggingface_hub` library's (an optional extra, ``rml[hub]``), into its own
cache, which other programs share. It honours ``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and
``HF_HUB_OFFLINE``. What arrives is compared with the SHA-256 that the Hub states for large files,
and with the size it states for others. Which files are taken is decided in `hub_names`, whether
their names and sizes can be in `listing`.
"""

import contextlib
import importlib
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rml.errors import DownloadError, RmlError
from rml.files.cache import FileRecord, Receipt, needs_room, sha256_of, sizes_below
from rml.files.hub_names import HubName, RepoFile, choose
from rml.files.listing import check_files, listed, refuse_ways_out
from rml.files.wheels import Progress, download_errors

__all__ = ["Plan", "delete", "fetch", "is_offline", "look_up"]

_log = logging.getLogger("rml")

# What a commit is called, or a branch by default. It becomes a part of a path.
_REVISION = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z_.-]{0,99}")

# Errors of the operating system that are about a connection, not about this machine.
_NETWORK = (ConnectionError, TimeoutError, ssl.SSLError, socket.gaierror, socket.herror)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a name stands for.

    Attributes
    ----------
    name : HubName
        The parsed name.
    revision : str
        Commit that `files` belong to.
    licence : str
        Licence tag of the repository; empty where it has none.
    files : tuple of RepoFile
        What to fetch; the first GGUF file, or the configuration of a folder, comes first.
    """

    name: HubName
    revision: str
    licence: str
    files: tuple[RepoFile, ...]

    @property
    def is_folder(self) -> bool:
        """Whether the model is a Hugging Face folder rather than a GGUF file."""
        return not self.files[0].name.endswith(".gguf")

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def unverified(self) -> tuple[str, ...]:
        """Names of the files whose SHA-256 the Hub does not state: only their size is checked."""
        return tuple(file.name for file in self.files if not file.sha256)


def is_offline(offline: bool | None = None) -> bool:
    """Whether the network must not be used; `offline` None asks ``HF_HUB_OFFLINE``."""
    if offline is not None:
        return offline
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


def look_up(name: HubName, *, offline: bool | None = None) -> Plan:
    """Find out what `name` stands for: on the Hub, or offline in its cache.

    Raises
    ------
    DownloadError
        If the repository cannot be read, what the Hub says of it cannot be, or `choose` refuses.
    """
    library = _library()
    with download_errors(_cache(library)), _hub_errors(library, name):
        if is_offline(offline):
            plan = _look_up_cached(library, name)
        else:
            info = library.HfApi(endpoint=_endpoint()).model_info(name.repo, files_metadata=True)
            entries = ((s.rfilename, s.size, s.lfs and s.lfs.sha256) for s in info.siblings or [])
            tags = [tag for tag in info.tags or [] if isinstance(tag, str)]
            licences = [t.removeprefix("license:") for t in tags if t.startswith("license:")]
            files = choose(name, listed(name.repo, entries))
            licence = "".join(filter(str.isprintable, "".join(licences[:1])[:100]))
            plan = Plan(name, info.sha or "main", licence, files)
    if not isinstance(plan.revision, str) or not _REVISION.fullmatch(plan.revision):
        raise DownloadError(f"{name.repo}: the Hub states the commit {plan.revision!r:.200}")
    check_files(name.repo, plan.files)
    return plan


def _look_up_cached(library: ModuleType, name: HubName) -> Plan:
    try:
        repos = library.scan_cache_dir(_cache(library)).repos
    except library.errors.CacheNotFound:
        repos = frozenset()
    for repo in repos:
        if (repo.repo_type, repo.repo_id) == ("model", name.repo) and repo.revisions:
            # The branch's own commit, if it is known, else the newest one.
            revision = max(repo.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
            entries = (
                (
                    file.file_path.relative_to(revision.snapshot_path).as_posix(),
                    file.size_on_disk,
                    # A large file's blob is named by its SHA-256, a small one's by a git id.
                    file.blob_path.name if len(file.blob_path.name) == 64 else "",
                )
                for file in revision.files
            )
            files = choose(name, listed(name.repo, entries))
            return Plan(name, revision.commit_hash, "", files)
    raise DownloadError(
        f"{name.repo} is not in the Hub's cache on this machine, and the network is not to be used "
        "(--offline or HF_HUB_OFFLINE)"
    )


def fetch(
    plan: Plan,
    *,
    to: Path | None = None,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Receipt:
    """Bring the files of `plan` onto this machine and verify them.

    Parameters
    ----------
    plan : Plan
        From `look_up`.
    to : Path, optional
        Folder to write to; the Hub's own cache if None.
    offline : bool, optional
        Take only what is in the cache.
    progress : callable, optional
        See `rml.files.wheels.Progress`; called from another thread.

    Returns
    -------
    Receipt
        The files, and what `rml.load` opens.

    Raises
    ------
    DownloadError
        If a file cannot be fetched or does not have the stated SHA-256; it is then deleted.
    """
    library = _library()
    target = to / plan.name.repo.split("/")[1] if to and plan.is_folder else to
    records = []
    paths = []
    done = 0
    mirror = _cache(library) / f"models--{plan.name.repo.replace('/', '--')}"
    watched = target / ".cache" if target else mirror
    place = target or mirror / "snapshots" / plan.revision
    if plan.unverified:
        _log.info("%s: no SHA-256 is stated of %s", plan.name, ", ".join(plan.unverified))
    with _quiet(library), download_errors(target or watched), _Watch(watched, progress) as watch:
        if target:
            refuse_ways_out(target, [file.name for file in plan.files])
            refuse_ways_out(target, [".cache/huggingface/download"])
        if not is_offline(offline):
            needs_room(target or mirror.parent, _missing_bytes(plan, place, watched))
        for file in plan.files:
            watch.expect(done, file.size, plan.size)
            with _hub_errors(library, plan.name):
                path = Path(
                    library.hf_hub_download(
                        plan.name.repo,
                        file.name,
                        revision=plan.revision,
                        cache_dir=_cache(library),
                        local_dir=target,
                        local_files_only=is_offline(offline),
                        endpoint=_endpoint(),
                    )
                )
            _refuse_elsewhere(path, target or mirror)
            digest = _verified(plan, file, path)
            records.append(FileRecord.of(path, digest))
            paths.append(path)
            done += file.size
    # A folder's first file is its config.json.
    path = paths[0].parent if plan.is_folder else paths[0]
    return Receipt(str(plan.name), str(path.absolute()), plan.licence, tuple(records))


def _missing_bytes(plan: Plan, place: Path, watched: Path) -> int:
    """Bytes that are still to come: of files that are not there, less what has begun to arrive."""
    missing = 0
    for file in plan.files:
        try:
            there = (place / file.name).stat().st_size == file.size
        except OSError:
            there = False
        missing += 0 if there else file.size
    return max(0, missing - max(sizes_below(watched, ".incomplete"), default=0))


def _refuse_elsewhere(path: Path, folder: Path) -> None:
    """Refuse what the library put elsewhere than it was told, which a server may have caused."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DownloadError(
            f"{path} leads out of {folder}: the server, or a link in that folder, has put it "
            "elsewhere; look at it, and do not trust either"
        )


def _verified(plan: Plan, file: RepoFile, path: Path) -> str:
    """Return the SHA-256 of what arrived, empty if none is stated; delete it if it is not right."""
    digest = sha256_of(path) if file.sha256 else ""
    if digest != file.sha256:
        fault = f"SHA-256 {digest}, the Hub states {file.sha256}"
    elif not file.sha256 and path.stat().st_size != file.size:
        fault = f"{path.stat().st_size} bytes, the Hub states {file.size}"
    else:
        return digest
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise DownloadError(f"{plan.name.repo}/{file.name} has {fault}: it was deleted, try again")


def delete(receipt: Receipt) -> None:
    """Delete the files of `receipt` from the Hub's cache, and the folders that become empty.

    In that cache a file is a link into a folder of blobs, one blob for equal files of several
    revisions: a blob goes with the last link to it. Nothing is deleted outside of the folder that
    the cache has for this repository, whatever the receipt says.

    Raises
    ------
    DownloadError
        If a file lies elsewhere; nothing is deleted then.
    """
    repo = receipt.name.partition(":")[0].split("/", 2)[:2]
    mirror = _known_cache() / f"models--{'--'.join(repo)}"
    links = [Path(os.path.abspath(record.path)) for record in receipt.files]  # noqa: PTH100
    with download_errors(mirror, "some of it may be left: try again"):
        for link in links:
            _refuse_to_delete(link, mirror, "snapshots")
        for link in links:
            blob = link.resolve()
            is_blob = blob.parent == (mirror / "blobs").resolve()
            others = (p for p in (mirror / "snapshots").rglob(link.name) if p != link)
            # The link goes last: without it a second try would not know the blob.
            if is_blob and not any(other.resolve() == blob for other in others):
                blob.unlink(missing_ok=True)
            link.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: other files live there
                for folder in list(link.parents)[:2]:
                    folder.rmdir()


def _refuse_to_delete(link: Path, mirror: Path, part: str) -> None:
    """Refuse a file that does not lie below a part of the cache, by name and by links."""
    inside = (mirror / part).resolve()
    if not (
        link.is_relative_to(os.path.abspath(mirror / part))  # noqa: PTH100
        and link.parent.resolve().is_relative_to(inside)
        and inside.is_relative_to(mirror.resolve())
    ):
        raise DownloadError(
            f"{link} lies outside of {mirror / part}, where the Hub's cache has this model: nothing"
            " was deleted. Set HF_HUB_CACHE to the cache that it was pulled into, or delete it "
            "yourself"
        )


class _Watch:
    """Report how much of a file has arrived, from the size of the library's temporary file."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self._folder = folder
        self._progress = progress
        self._now = (0, 0, 0)  # bytes of earlier files, of this one, of all
        self._error: Exception | None = None  # what `progress` raised in the thread
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def expect(self, done: int, size: int, total: int) -> None:
        if self._error is not None:
            raise self._error
        self._now = (done, size, total)
        if self._progress is not None:
            self._progress(done, total)

    def _run(self) -> None:
        while self._progress is not None and not self._stop.wait(0.1):
            done, size, total = self._now
            arrived = max(sizes_below(self._folder, ".incomplete"), default=0)
            try:
                self._progress(done + min(arrived, size), total)
            # Whatever the caller's callback raises is kept, and `expect` raises it in the caller's
            # thread, at the end of the download at the latest. Here it would only be printed.
            except Exception as error:  # noqa: BLE001
                self._error = error
                return

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.expect(self._now[2], 0, self._now[2])


def _library() -> ModuleType:
    """Import the optional `huggingface_hub`; it is needed by nothing else."""
    try:
        library = importlib.import_module("huggingface_hub")
        for part in ("constants", "errors", "utils"):
            importlib.import_module(f"huggingface_hub.{part}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "huggingface_hub":
            raise
        raise DownloadError(
            "names with a slash come from the Hugging Face Hub, which needs the library "
            "huggingface_hub: pip install 'rml[hub]'"
        ) from None
    return library


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _cache(library: ModuleType) -> Path:
    return Path(library.constants.HF_HUB_CACHE)


def _known_cache() -> Path:
    """Folder of the Hub's cache, also where the library is not installed (any more)."""
    with contextlib.suppress(DownloadError):
        return _cache(_library())
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expanduser(cache))  # noqa: PTH111


@contextlib.contextmanager
def _quiet(library: ModuleType) -> Iterator[None]:
    """Keep the library's own progress bars off the terminal."""
    was_disabled = library.utils.are_progress_bars_disabled()
    library.utils.disable_progress_bars()
    try:
        yield
    finally:
        if not was_disabled:
            library.utils.enable_progress_bars()


@contextlib.contextmanager
def _hub_errors(library: ModuleType, name: HubName) -> Iterator[None]:
    """Turn the library's errors into `DownloadError`, with what to do."""
    errors = library.errors
    # The HTTP client's errors are OSErrors in older versions of the library (requests); in newer
    # ones (httpx) HfHubHTTPError inherits from their base class.
    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{name.repo} is gated: accept its licence on its page, then set HF_TOKEN to a token "
            "of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"{name.repo}: the Hub knows no such repository, or it is private; check the name, "
            "and for a private one set HF_TOKEN"
        ) from error
    except errors.EntryNotFoundError as error:
        raise DownloadError(
            f"{name}: a file of it could not be had: {_first_line(error)}"
        ) from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "unknown")
        raise DownloadError(
            f"{name.repo}: the Hub answered with HTTP status {status}: {_first_line(error)}"
        ) from error
    except (RmlError, MemoryError):
        raise
    except Exception as error:  # whatever an answer, or a folder, makes the library raise
        # The operating system's own errors (a full disk) keep their meaning.
        if isinstance(error, OSError) and error.errno and not isinstance(error, _NETWORK):
            raise
        if isinstance(error, (OSError, *errors.HfHubHTTPError.__bases__)):
            what = "the transfer from the Hub failed"
            advice = "check the network connection and try again"
        else:
            what = f"the Hub's answer cannot be used: {type(error).__name__}"
            advice = "try again later, or another version of huggingface_hub"
        raise DownloadError(f"{name.repo}: {what}: {_first_line(error)}; {advice}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:500]

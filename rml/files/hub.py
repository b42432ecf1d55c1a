"""Models from the Hugging Face Hub: look a repository up, fetch its files, delete them.

The transfer is the `huggingface_hub` library's (an optional extra, ``rml[hub]``), into its own
cache, which other programs share. It honours ``HF_HOME``, ``HF_TOKEN``, ``HF_ENDPOINT`` and
``HF_HUB_OFFLINE``. What arrives is compared with the SHA-256 that the Hub states for large files.
Which files are taken is decided in `hub_names`.
"""

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rml.errors import DownloadError
from rml.files.cache import FileRecord, Receipt, sha256_of, sizes_below
from rml.files.hub_names import HubName, RepoFile, choose
from rml.files.wheels import Progress, download_errors

__all__ = ["Plan", "delete", "fetch", "is_offline", "look_up"]


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
        If the repository cannot be read, or `choose` refuses.
    """
    library = _library()
    if is_offline(offline):
        return _look_up_cached(library, name)
    with _hub_errors(library, name):
        info = library.HfApi(endpoint=_endpoint()).model_info(name.repo, files_metadata=True)
    files = [
        RepoFile(s.rfilename, s.size or 0, s.lfs.sha256 if s.lfs else "")
        for s in info.siblings or []
    ]
    licences = [t.removeprefix("license:") for t in info.tags or [] if t.startswith("license:")]
    return Plan(name, info.sha or "main", "".join(licences[:1]), choose(name, files))


def _look_up_cached(library: ModuleType, name: HubName) -> Plan:
    try:
        repos = library.scan_cache_dir(_cache(library)).repos
    except library.errors.CacheNotFound:
        repos = frozenset()
    for repo in repos:
        if (repo.repo_type, repo.repo_id) == ("model", name.repo) and repo.revisions:
            # The branch's own commit, if it is known, else the newest one.
            revision = max(repo.revisions, key=lambda r: ("main" in r.refs, r.last_modified))
            files = [
                RepoFile(
                    file.file_path.relative_to(revision.snapshot_path).as_posix(),
                    file.size_on_disk,
                    # A large file's blob is named by its SHA-256, a small one's by a git id.
                    file.blob_path.name if len(file.blob_path.name) == 64 else "",
                )
                for file in revision.files
            ]
            return Plan(name, revision.commit_hash, "", choose(name, files))
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
    with _quiet(library), download_errors(target or watched), _Watch(watched, progress) as watch:
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
            digest = sha256_of(path) if file.sha256 else ""
            if digest != file.sha256:
                path.resolve().unlink()
                path.unlink(missing_ok=True)
                raise DownloadError(
                    f"{plan.name.repo}/{file.name} has SHA-256 {digest}, the Hub states "
                    f"{file.sha256}: it was deleted, try again"
                )
            records.append(FileRecord.of(path, digest))
            paths.append(path)
            done += file.size
    # A folder's first file is its config.json.
    path = paths[0].parent if plan.is_folder else paths[0]
    return Receipt(str(plan.name), str(path.absolute()), plan.licence, tuple(records))


def delete(receipt: Receipt) -> None:
    """Delete the files of `receipt` from the Hub's cache, and the folders that become empty.

    In that cache a file is a link into a folder of blobs, one blob for equal files of several
    revisions: a blob goes with the last link to it.
    """
    for record in receipt.files:
        link = Path(record.path)
        blob = link.resolve()
        link.unlink(missing_ok=True)
        snapshots = blob.parent.parent / "snapshots"
        if not any(other.resolve() == blob for other in snapshots.rglob(link.name)):
            blob.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: other files live there
            for folder in list(link.parents)[:2]:
                folder.rmdir()


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
    transport = (OSError, *errors.HfHubHTTPError.__bases__)
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
    except transport as error:
        # The operating system's own errors (a full disk) keep their meaning.
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
            raise
        raise DownloadError(
            f"{name.repo}: the transfer from the Hub failed: {_first_line(error)}; check the "
            "network connection and try again"
        ) from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

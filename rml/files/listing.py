"""What a listing of a repository says, checked before anything is done with it.

Names, sizes and digests come from strangers, through a server. A name becomes a path on this
machine, so it must stay below the folder it is put into, on every operating system; a size becomes
a promise of how much disk is needed, and the only check of a file without a digest.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from reprlib import repr as brief  # of what a server sends: bounded in depth and length

from rml.errors import DownloadError, printable
from rml.files.hub_names import RepoFile
from rml.files.limits import MAX_NAME_BYTES, MAX_PATH_BYTES, MAX_REPO_BYTES, MAX_REPO_FILES

__all__ = ["check_files", "fault_of_name", "listed", "refuse_ways_out"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Names that Windows keeps for devices, whatever follows a dot.
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])", re.IGNORECASE)


def listed(repo: str, entries: Iterable[tuple[object, object, object]]) -> list[RepoFile]:
    """Make files of the entries of a listing: name, bytes, SHA-256.

    Raises
    ------
    DownloadError
        If an entry is none that a sound server sends, or there are more than any model has.
    """
    files: list[RepoFile] = []
    for name, size, sha256 in entries:
        if len(files) >= MAX_REPO_FILES:
            raise DownloadError(
                f"{repo}: the Hub lists more than {MAX_REPO_FILES} files: no model has that many"
            )
        if not isinstance(name, str):
            raise DownloadError(f"{repo}: the Hub lists a file with the name {brief(name)}")
        digest = sha256 or ""
        if not isinstance(digest, str) or (digest and not _SHA256.fullmatch(digest)):
            raise DownloadError(f"{repo}: the Hub states the SHA-256 {brief(digest)} of a file")
        if size is None:
            files.append(RepoFile(name, 0 if digest else -1, digest))  # see `check_files`
            continue
        if type(size) is not int or not 0 <= size <= MAX_REPO_BYTES:
            raise DownloadError(
                f"{repo}: the Hub states that {brief(name)} has {brief(size)} bytes; "
                f"a number from 0 to {MAX_REPO_BYTES} is expected"
            )
        files.append(RepoFile(name, size, digest))
    return files


def check_files(repo: str, files: Iterable[RepoFile]) -> None:
    """Refuse files, those that are about to be fetched, that could end up elsewhere or unchecked.

    Raises
    ------
    DownloadError
        If a name leads out of a folder or is none on some system, two names differ in case only,
        or a file has neither size nor SHA-256.
    """
    names: Counter[str] = Counter()
    for file in files:
        if fault := fault_of_name(file.name):
            raise DownloadError(
                f"{repo}: the Hub lists a file called {brief(file.name)}, which {fault}: nothing "
                "was fetched; do not trust this repository"
            )
        if file.size < 0:
            raise DownloadError(
                f"{repo}: the Hub states neither a size nor a SHA-256 of {file.name}, so that what "
                "arrives could not be checked"
            )
        names[file.name.casefold()] += 1
    for name, count in names.most_common(1):
        if count > 1:
            raise DownloadError(
                f"{repo}: the Hub lists {count} files called {name}, alike but for upper and lower "
                "case: one would replace the other"
            )


def fault_of_name(name: str) -> str:
    """Say why a name of a listing cannot be a path below a folder; empty where it can.

    What follows is true on all operating systems, so that a folder can be copied to any.
    """
    if not name:
        return "is empty"
    if "\\" in name or ":" in name:
        return "has a backslash or a colon in it"
    if any(ord(c) < 0x20 or c == "\x7f" for c in name) or printable(name) != name:
        return "has a control character in it"
    parts = name.split("/")
    if name.startswith("/"):
        return "is an absolute path"
    if not {"", ".", ".."}.isdisjoint(parts):
        return "has an empty part, '.' or '..' in it"
    if len(name.encode("utf-8")) > MAX_PATH_BYTES:
        return f"has more than {MAX_PATH_BYTES} bytes"
    for part in parts:
        if len(part.encode("utf-8")) > MAX_NAME_BYTES:
            return f"has a part of more than {MAX_NAME_BYTES} bytes"
        if part.endswith((" ", ".")):
            return "has a part that ends in a space or a dot"
        if _DEVICES.fullmatch(part.split(".", 1)[0].rstrip()):
            return "is the name of a device on Windows"
    return ""


def refuse_ways_out(folder: Path, names: Iterable[str]) -> None:
    """Refuse links, on the way from `folder` to files of these names, that lead out of it.

    Raises
    ------
    DownloadError
        If there is one.
    """
    root = folder.resolve()
    for name in names:
        for path in (folder / name, *(folder / parent for parent in Path(name).parents)):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise DownloadError(
                    f"{path} is a link out of {folder}, and a file would be written where it leads:"
                    " remove it, or choose another folder"
                )

"""The control groups around this process: its own and all above it, as far as they can be seen.

A limit of any of them holds, so whoever asks what may be used asks all. Which groups these are is
said in two files, and neither suffices alone:

=======================  =======================================================================
/proc/self/cgroup        the path of the process's group in each hierarchy, seen from the root of
                         its namespace; ``/../x`` lies outside of that
/proc/self/mountinfo     where hierarchies are mounted, and from which group on: a container
                         often sees its own group as the root, by a namespace or a bind mount
=======================  =======================================================================

A path below the group that is mounted is followed from there; of any other only what is mounted
counts. Where nobody says what is mounted, it is taken to be at the usual places. Versions 1, 2 and
both beside each other are known.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["GROUPS", "PROC", "Group", "as_number", "groups_of", "number", "text"]

PROC = Path("/proc")
GROUPS = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """The folder of a control group, and the version, 1 or 2, of its hierarchy."""

    folder: Path
    version: int


class _Mount(NamedTuple):
    group: Group
    root: tuple[str, ...]  # the path, in its hierarchy, of the group that is mounted


def groups_of(controller: str, proc: Path = PROC, groups: Path = GROUPS) -> list[Group]:
    """List the groups of a controller that hold this process; of a branch, the innermost first.

    Parameters
    ----------
    controller : str
        ``"memory"`` or ``"cpu"``.
    proc, groups : Path
        Where the system tells, and where hierarchies are mounted.
    """
    usual = [Group(groups, 2), Group(groups / "unified", 2), Group(groups / controller, 1)]
    mounts = list(_mounts(controller, proc, groups))
    found: dict[Group, None] = {}
    for version, path in _memberships(controller, proc):
        places = [mount for mount in mounts if mount.group.version == version]
        below = path
        if not places:  # then a path that begins outside of the namespace is tried inside of it
            below = tuple(part for part in path if part != "..")
            places = [_Mount(group, ()) for group in usual if group.version == version]
        for (folder, _), root in places:
            inner = below[len(root) :] if below[: len(root)] == root else ()
            inner = () if ".." in inner else inner
            for depth in range(len(inner), -1, -1):
                found[Group(folder.joinpath(*inner[:depth]), version)] = None
    # Whatever lies at the usual places holds the process, wherever in it that is.
    return [*found, *(group for group in usual if group not in found)]


def text(file: Path) -> str:
    """Read a small file of the system; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""


def number(file: Path) -> int | None:
    """Read a file that holds one number, None where it holds something else (``max``) or is not."""
    return as_number(text(file))


def as_number(word: str) -> int | None:
    """Value of a word of at most 20 digits, as 64 bits have; None for any other."""
    word = word.strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 20 else None


def _memberships(controller: str, proc: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Version and path of each group that the process is said to be in."""
    for line in text(proc / "self" / "cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        path = tuple(part for part in name.split("/") if part not in {"", "."})
        if hierarchy == "0" and not controllers:
            yield 2, path
        elif controller in controllers.split(","):
            yield 1, path


def _mounts(controller: str, proc: Path, groups: Path) -> Iterator[_Mount]:
    """Places where a hierarchy of the controller, or one of version 2, is mounted."""
    for line in text(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            version = 2
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            version = 1
        else:
            continue
        folder = Path(_unescaped(fields[4]))
        if folder.is_relative_to(GROUPS):
            folder = groups / folder.relative_to(GROUPS)
        root = tuple(part for part in _unescaped(fields[3]).split("/") if part)
        yield _Mount(Group(folder, version), root)


def _unescaped(field: str) -> str:
    r"""Read ``\040`` and the like, which stand for spaces, tabs, line feeds and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)

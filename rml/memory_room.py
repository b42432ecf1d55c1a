"""How much memory this process can still get, and which limit says so.

There are two kinds of limits. Some count memory when it is *reserved*, whether or not it is ever
touched: the address space and the data of a process (``ulimit -v``, ``ulimit -d``), and what a
machine has promised that promises no more than it has. Others count it when it is *used*: the
machine's memory, and that of the control groups around the process. Beyond the first an allocation
fails; beyond the second the system ends a process.

Pages of mapped files, such as weights, count as free where use is counted, since the system can
take them back, and as reserved where reservation is counted. Swap is not counted: a model that
lives there is of no use.

============================  ==================================================================
limit                         what is left of it
============================  ==================================================================
the machine's memory          ``MemAvailable`` of /proc/meminfo; all of it where nobody says
a control group               its limit - what it uses + file pages and slabs that can be freed;
                              of the group and all above it, versions 1 and 2
promises of the machine       ``CommitLimit - Committed_AS`` of /proc/meminfo, where
                              /proc/sys/vm/overcommit_memory is 2
address space, data           RLIMIT_AS, RLIMIT_DATA - what /proc/self/statm says
============================  ==================================================================

A source that a system does not have sets no limit.
"""

import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rml.errors import OutOfMemory

try:
    import resource
except ImportError:  # not on this operating system
    resource = None  # type: ignore[assignment]

__all__ = [
    "Room",
    "available",
    "bytes_asked",
    "no_room",
    "out_of_memory",
    "reservable",
    "total",
    "usable",
]

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")

# Where a control group of each version says its limit, its use, and how much of that is free.
_GROUP_FILES = {
    2: ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")),
    1: (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}
# Field of /proc/self/statm, in pages, that each limit of a process counts.
_PROCESS_LIMITS = (
    ("RLIMIT_AS", 0, "the address space of this process, ulimit -v"),
    ("RLIMIT_DATA", 5, "the data of this process, ulimit -d"),
)


@dataclass(frozen=True, slots=True, order=True)
class Room:
    """An amount of memory.

    Attributes
    ----------
    n_bytes : int
        Bytes; `sys.maxsize` where no limit is known.
    limit : str
        What sets the limit.
    """

    n_bytes: int
    limit: str

    @property
    def is_limited(self) -> bool:
        """Whether any limit is known."""
        return self.n_bytes < sys.maxsize

    def __str__(self) -> str:
        return f"{self.n_bytes:,} ({self.limit})" if self.is_limited else self.limit


def available() -> Room:
    """Return what can be reserved and used now: the least that any limit leaves."""
    return min(reservable(), usable())


def reservable(proc: Path = _PROC) -> Room:
    """Return what can be allocated now, touched or not: what limits of reservation leave."""
    return _least([*_promises(proc), *_process_limits(proc)])


def usable(proc: Path = _PROC, groups: Path = _GROUPS) -> Room:
    """Return what can be written to now: what the machine and its control groups leave."""
    found = _meminfo(proc).get("MemAvailable")
    machine = _machine() if found is None else found
    left = [Room(n_bytes, "the memory of this machine") for n_bytes in (machine,) if n_bytes]
    for folder, version in _control_groups(proc, groups):
        limit_file, used_file, reclaimable = _GROUP_FILES[version]
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None:
            stat = _table(folder / "memory.stat")
            free = sum(stat.get(name, 0) for name in reclaimable)
            left.append(_group_room(limit - max(0, used - free)))
    return _least(left)


def total(proc: Path = _PROC, groups: Path = _GROUPS) -> Room:
    """Return what could be used if nothing were: all that the machine and control groups have."""
    machine = _machine()
    found = [Room(machine, "the memory of this machine")] if machine else []
    for folder, version in _control_groups(proc, groups):
        limit = _number(folder / _GROUP_FILES[version][0])
        if limit is not None:
            found.append(_group_room(limit))
    return _least(found)


def no_room(
    what: str,
    needed: int | None,
    room: Room | None = None,
    *,
    largest_context: int | None = None,
    advice: str = "",
) -> OutOfMemory:
    """Make the error for something that does not fit.

    Parameters
    ----------
    what : str
        What the memory is for.
    needed : int or None
        Bytes that it takes, if that is known.
    room : Room, optional
        What there is; what is `available` now if not given.
    largest_context : int, optional
        Tokens of the longest context that would fit.
    advice : str
        What to do.
    """
    room = available() if room is None else room
    text = f"not enough memory for {what}: bytes available: {room}"
    if needed is not None:
        text = f"not enough memory for {what}: bytes needed: {needed:,}, available: {room}"
    if largest_context is not None:
        text += f"; the largest context that fits is {largest_context:,} tokens"
    if advice:
        text += f"; {advice}"
    return OutOfMemory(
        text,
        needed=needed,
        available=room.n_bytes if room.is_limited else None,
        largest_context=largest_context,
    )


@contextmanager
def out_of_memory(what: str, advice: str = "") -> Iterator[None]:
    """Turn a `MemoryError` of a block, or of a decorated function, into `OutOfMemory`.

    Parameters
    ----------
    what : str
        What the memory is for.
    advice : str
        What to do.
    """
    try:
        yield
    except OutOfMemory:
        raise
    except MemoryError as error:
        raise no_room(what, bytes_asked(error), advice=advice) from error


def bytes_asked(error: MemoryError) -> int | None:
    """Bytes of the allocation that failed, where numpy or a kernel says them."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is not None and dtype is not None:
        return int(math.prod(shape) * dtype.itemsize)
    said = re.search(r"(\d+) bytes", str(error))
    return int(said[1]) if said else None


def _least(rooms: Iterable[Room]) -> Room:
    return min(rooms, default=Room(sys.maxsize, "no limit that this system tells"))


# ---- the sources ----


def _machine() -> int | None:
    """All memory of the machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name."""
    return {name.rstrip(":"): 1024 * n for name, n in _table(proc / "meminfo").items()}


def _promises(proc: Path) -> Iterator[Room]:
    if _number(proc / "sys" / "vm" / "overcommit_memory") == 2:
        info = _meminfo(proc)
        if "CommitLimit" in info and "Committed_AS" in info:
            left = max(0, info["CommitLimit"] - info["Committed_AS"])
            yield Room(left, "what this machine may promise, vm.overcommit_memory is 2")


def _process_limits(proc: Path) -> Iterator[Room]:
    try:
        pages = [int(field) for field in _text(proc / "self" / "statm").split()]
    except ValueError:
        return
    for name, field, limit in _PROCESS_LIMITS:
        number = getattr(resource, name, None)
        if resource is None or number is None or field >= len(pages):
            continue
        most: int = resource.getrlimit(number)[0]
        if most != resource.RLIM_INFINITY:
            yield Room(max(0, most - pages[field] * resource.getpagesize()), limit)


def _control_groups(proc: Path, groups: Path) -> Iterator[tuple[Path, int]]:
    """Folders of the control groups that hold the process, with their version; innermost first.

    In a container /proc may name groups that are not to be seen: the folders above them count.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if hierarchy == "0" and not controllers:
            version, root = 2, groups
        elif "memory" in controllers.split(","):
            version, root = 1, groups / "memory"
        else:
            continue
        parts = [part for part in name.split("/") if part not in {"", ".", ".."}]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(*parts[:depth]), version


def _group_room(n_bytes: int) -> Room:
    return Room(max(0, n_bytes), "the memory limit of the control group")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _number(file: Path) -> int | None:
    """Read a file that holds one number, None where it holds something else (``max``) or is not."""
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _table(file: Path) -> dict[str, int]:
    """Lines of a name and a number; what follows is left out."""
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}

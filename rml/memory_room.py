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
a control group               its limit (or ``memory.high``, where it is slowed down, if that is
                              less) - what it uses + file pages and slabs that can be freed; of
                              the group and all above it, versions 1 and 2
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

from rml.control_groups import GROUPS, PROC, Group, as_number, groups_of, number, text
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

# Where a control group of each version says its limits, its use, and how much of that is free.
# Above `memory.high` a group is not ended, but slowed down until nothing moves.
_GROUP_FILES = {
    2: (
        ("memory.max", "memory.high"),
        "memory.current",
        ("inactive_file", "active_file", "slab_reclaimable"),
    ),
    1: (
        ("memory.limit_in_bytes",),
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
}
# The least limit of a group of version 1 and all above it, those included that are not to be seen.
_LIMIT_ABOVE = "hierarchical_memory_limit"
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


def reservable(proc: Path = PROC) -> Room:
    """Return what can be allocated now, touched or not: what limits of reservation leave."""
    return _least([*_promises(proc), *_process_limits(proc)])


def usable(proc: Path = PROC, groups: Path = GROUPS) -> Room:
    """Return what can be written to now: what the machine and its control groups leave."""
    found = _meminfo(proc).get("MemAvailable")
    machine = _machine() if found is None else found
    left = [Room(n_bytes, "the memory of this machine") for n_bytes in (machine,) if n_bytes]
    for group in groups_of("memory", proc, groups):
        limit = _group_limit(group)
        if limit is not None:
            _, used_file, reclaimable = _GROUP_FILES[group.version]
            stat = _table(group.folder / "memory.stat")
            free = sum(stat.get(name, 0) for name in reclaimable)
            used = number(group.folder / used_file) or 0
            left.append(_group_room(limit - max(0, used - free)))
    return _least(left)


def total(proc: Path = PROC, groups: Path = GROUPS) -> Room:
    """Return what could be used if nothing were: all that the machine and control groups have."""
    machine = _machine()
    found = [Room(machine, "the memory of this machine")] if machine else []
    for group in groups_of("memory", proc, groups):
        limit = _group_limit(group)
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
    if number(proc / "sys" / "vm" / "overcommit_memory") == 2:
        info = _meminfo(proc)
        if "CommitLimit" in info and "Committed_AS" in info:
            left = max(0, info["CommitLimit"] - info["Committed_AS"])
            yield Room(left, "what this machine may promise, vm.overcommit_memory is 2")


def _process_limits(proc: Path) -> Iterator[Room]:
    try:
        pages = [int(field) for field in text(proc / "self" / "statm").split()]
    except ValueError:
        return
    for name, field, limit in _PROCESS_LIMITS:
        number = getattr(resource, name, None)
        if resource is None or number is None or field >= len(pages):
            continue
        most: int = resource.getrlimit(number)[0]
        if most != resource.RLIM_INFINITY:
            yield Room(max(0, most - pages[field] * resource.getpagesize()), limit)


def _group_limit(group: Group) -> int | None:
    """Bytes that a control group may use; None without a limit."""
    limits = [number(group.folder / name) for name in _GROUP_FILES[group.version][0]]
    if group.version == 1:
        limits.append(_table(group.folder / "memory.stat").get(_LIMIT_ABOVE))
    return min((limit for limit in limits if limit is not None), default=None)


def _group_room(n_bytes: int) -> Room:
    return Room(max(0, n_bytes), "the memory limit of the control group")


def _table(file: Path) -> dict[str, int]:
    """Lines of a name and a number; what follows is left out."""
    rows = (line.split() for line in text(file).splitlines())
    found = ((row[0], as_number(row[1])) for row in rows if len(row) > 1)
    return {name: value for name, value in found if value is not None}

"""How many threads the kernels use, and why.

Counted are the processors this process may run on and the least quota of its control groups; more
threads than these only wait for each other. Nothing global is set: every call is told its number
of threads.
"""

import logging
import math
import os
from pathlib import Path

from rml.control_groups import GROUPS, PROC, Group, as_number, groups_of, number, text
from rml.errors import ArgumentError

__all__ = ["default_threads", "resolve_threads", "running_threads"]

logger = logging.getLogger("rml")

_forked = False


def _after_fork() -> None:
    global _forked  # noqa: PLW0603
    _forked = True


os.register_at_fork(after_in_child=_after_fork)


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this operating system
        return os.cpu_count() or 1


def _quota(groups: Path = GROUPS, proc: Path = PROC) -> float | None:
    """Processors' worth of time that the control groups leave, None without a limit."""
    return min(filter(None, map(_group_quota, groups_of("cpu", proc, groups))), default=None)


def _group_quota(group: Group) -> float | None:
    if group.version == 2:
        quota, period = (*map(as_number, text(group.folder / "cpu.max").split()), None, None)[:2]
    else:
        quota = number(group.folder / "cpu.cfs_quota_us")  # -1 without a limit
        period = number(group.folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _budget() -> tuple[int, str]:
    cpus = _affinity()
    quota = _quota()
    if quota is not None and quota < cpus:
        return max(1, math.floor(quota)), f"the control group's quota of {quota:g} processors"
    return cpus, f"{cpus} processors that this process may use"


def default_threads() -> tuple[int, str]:
    """Return the number of threads used when nobody says, and the reason.

    ``RML_THREADS``, else ``OMP_NUM_THREADS``, else all processors that the process may use.
    """
    budget, why = _budget()
    for variable in ("RML_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "").strip()
        if value:
            return min(_threads(variable, value), budget), f"{variable}={value}, at most {why}"
    return budget, why


def _threads(variable: str, value: str) -> int:
    # OpenMP's variable may list the threads of nested teams, of which there are none here.
    first = value.partition(",")[0].strip() if variable == "OMP_NUM_THREADS" else value
    try:
        n_threads = int(first) if first.isascii() and first.isdecimal() else 0
    except ValueError:  # thousands of digits
        n_threads = 0
    if n_threads < 1:
        raise ArgumentError(f"{variable}={value!r}: a whole number from 1 is needed")
    return n_threads


def resolve_threads(n_threads: int | None) -> int:
    """Return the number of threads for a caller's wish; None takes the default.

    Raises
    ------
    ArgumentError
        If the wish is no whole number from 1.
    """
    if n_threads is None:
        return default_threads()[0]
    if isinstance(n_threads, bool) or not isinstance(n_threads, int) or n_threads < 1:
        raise ArgumentError(f"n_threads is {n_threads!r}, but a whole number from 1 is needed")
    budget, why = _budget()
    if n_threads > budget:
        logger.warning("n_threads=%d is more than %s; using %d", n_threads, why, budget)
        return budget
    return n_threads


def running_threads(n_threads: int) -> int:
    """Return the threads to start now: one in a forked child, where OpenMP's team is lost."""
    return 1 if _forked else n_threads

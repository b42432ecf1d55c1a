"""What the benchmarks share: thread counts, a stopwatch for rates, the check of an answer."""

import os
import time
from collections.abc import Callable

import numpy as np

__all__ = ["THREADS", "check_close", "n_threads_of", "seconds_per_call"]

THREADS = ["one", "all"]
AT_LEAST = 0.2  # seconds a rate is measured


def n_threads_of(threads: str) -> int:
    """Threads that "one" or "all" stands for on this machine."""
    return 1 if threads == "one" else len(os.sched_getaffinity(0))


def seconds_per_call(call: Callable[[], object]) -> float:
    """Median time of a call, over calls of at least `AT_LEAST` seconds together."""
    call()
    times: list[float] = []
    while sum(times) < AT_LEAST:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def check_close(got: np.ndarray, want: np.ndarray, relative: float) -> None:
    """Refuse to time a wrong answer.

    Parameters
    ----------
    got, want : ndarray
        Result, and float64 truth.
    relative : float
        Allowed error, as a part of the largest value.
    """
    worst = float(np.abs(got - want).max() / np.abs(want).max())
    if not worst <= relative:
        raise AssertionError(f"the answer is off by {worst:.2g} of the largest value")

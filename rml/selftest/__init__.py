"""Every kernel measured on this machine, for people with other processors than ours.

Each implementation that can run here (the Python definitions, and the compiled twins of every
instruction-set level) computes small problems with random data. The results are held against
float64 on the same inputs, within the sum of the roundings that the kernel's order of operations
implies; what has no roundings must agree exactly.

`run` yields the measurements; `products`, `attention` and `others` are the problems. Which kernels
must have one says the registry.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rml import _kernels
from rml.selftest import attention, others, products
from rml.selftest.problem import Kernels, Problem

__all__ = ["Measurement", "implementations", "run"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """How far one kernel is off in one case; the place where that is worst counts.

    Attributes
    ----------
    kernel, case : str
        What was computed.
    implementation : str
        ``"python"`` or an instruction-set level.
    error : float
        Distance to the exact value; infinite where a result is no number.
    bound : float
        What it may be; 0 where results must be exact.
    """

    kernel: str
    case: str
    implementation: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound."""
        return self.error <= self.bound

    @property
    def share(self) -> float:
        """The error as a share of its bound; 0 for exact results, more than 1 for wrong ones."""
        if self.error == 0:
            return 0.0
        return self.error / self.bound if self.bound else float("inf")


def implementations() -> dict[str, Kernels]:
    """Kernels of the definitions and of every compiled level that this processor runs."""
    found = {"python": Kernels(_kernels.DEFINITIONS)}
    for level in _kernels.runnable_levels():
        found[level] = Kernels(_kernels.twins_of(_kernels.load_level(level)))
    return found


def run(only: dict[str, Kernels] | None = None, n_threads: int = 2) -> Iterator[Measurement]:
    """Measure every kernel of the registry; the same problems each time.

    A kernel without a problem fails.

    Parameters
    ----------
    only : mapping of str to Kernels, optional
        Implementations to measure; all if not given.
    n_threads : int
        Threads of the runs that must give the same bits as those with one.
    """
    for name, kernels in (implementations() if only is None else only).items():
        measured = set()
        for room in (products, attention, others):
            for problem in room.problems(kernels, n_threads):
                measured.add(problem.kernel)
                yield _measure(problem, name)
        for kernel in _kernels.REGISTRY:
            if kernel not in measured:
                yield Measurement(kernel, "not measured", name, float("inf"), 0.0)


def _measure(problem: Problem, implementation: str) -> Measurement:
    exact = np.asarray(problem.exact, np.float64)
    bound = np.broadcast_to(np.asarray(problem.bound, np.float64), exact.shape)
    with np.errstate(invalid="ignore"):
        error = np.abs(np.asarray(problem.got, np.float64) - exact)
    error = np.where(np.isfinite(error), error, np.inf)
    # The worst place is where the error goes beyond its bound by the largest factor.
    shares = np.divide(error, bound, out=np.full(error.shape, np.inf), where=bound > 0)
    worst = np.where(error == 0, 0, shares).argmax()
    return Measurement(
        problem.kernel,
        problem.case,
        implementation,
        float(error.flat[worst]),
        float(bound.flat[worst]),
    )

"""The largest of many values, the definition: what is left of a vocabulary after top-k."""

import numpy as np
import numpy.typing as npt

from rml._kernels import sampling_checks

__all__ = ["largest"]

F32 = npt.NDArray[np.float32]


def largest(values: F32, ids: npt.NDArray[np.int64], out: F32, *, n_threads: int = 1) -> None:
    """Find the k largest values, the largest first; of equals the smaller index comes first.

    NaN counts as larger than any number, so ``out[0]`` is finite only if no value is NaN or plus
    infinity, and at least one is not minus infinity.

    Parameters
    ----------
    values : (N,) float32
        Where to look.
    ids : (k,) int64
        Gets the indices; ``1 <= k <= N`` is how many are looked for.
    out : (k,) float32
        Gets the values.
    n_threads : int
        Has no effect: one thread reads the values faster than a second one starts.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout.
    """
    sampling_checks.largest(values, ids, out)
    at = len(values) - len(ids)
    least = np.partition(values, at)[at]
    chosen = np.flatnonzero(~(values < least))  # not >=, which NaN never is
    found = values[chosen]
    # A stable sort of the reversed values, reversed again, goes down and keeps the order of equals.
    order = len(found) - 1 - np.argsort(found[::-1], kind="stable")[::-1]
    ids[:] = chosen[order[: len(ids)]]
    out[:] = values[ids]

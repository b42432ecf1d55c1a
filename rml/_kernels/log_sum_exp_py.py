"""The logarithm of a sum of exponentials, the definition: what turns logits into logprobs."""

import numpy as np
import numpy.typing as npt

from rml._kernels import sampling_checks

__all__ = ["log_sum_exp"]


def log_sum_exp(
    values: npt.NDArray[np.float32], out: npt.NDArray[np.float64], *, n_threads: int = 1
) -> None:
    """Find the largest value m and the logarithm of the sum of ``exp(value - m)``.

    The logprob of token i is ``(logits[i] - m) - log(sum)``: in float64 the difference is exact,
    and nothing is lost beside a large logit. If a value is NaN or plus infinity, or all are minus
    infinity, the second number is NaN.

    Parameters
    ----------
    values : (N,) float32
        At least one.
    out : (2,) float64
        Gets m and the logarithm.
    n_threads : int
        Has no effect: one thread reads the values faster than a second one starts.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout.
    """
    sampling_checks.log_sum_exp(values, out)
    largest = np.float64(values.max())
    with np.errstate(invalid="ignore"):
        out[:] = largest, np.log(np.exp(values - largest).sum())

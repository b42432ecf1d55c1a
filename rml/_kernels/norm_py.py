"""RMSNorm, the definition.

Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4.
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks

__all__ = ["rms_norm"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def rms_norm(
    x: F32, weight: F32, out: F32, *, eps: float, rows: I32 | None = None, n_threads: int = 1
) -> None:
    """Scale rows to a root mean square of one, then by `weight`.

    ``out[t, i] = weight[i] * x[t, i] / sqrt(mean(x[t] ** 2) + eps)``, with ``x[rows[t]]`` in place
    of ``x[t]`` if `rows` is given.

    Parameters
    ----------
    x : (T, D) float32, or (N, D) with `rows`
        Rows to normalize.
    weight : (D,) float32
        Factor of each column.
    out : (T, D) float32
        Result; may be `x` itself.
    eps : float
        Added to the mean square, so that a row of zeros stays finite.
    rows : (T,) int32, optional
        Which rows of `x`; read when the kernel runs. All if not given.
    n_threads : int
        Threads that share the rows; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, `eps` is not positive, or `x` lacks one
        of the rows.
    """
    checks.rms_norm(x, weight, out, eps, rows)
    if rows is not None:
        checks.row_numbers(rows, len(x))
        x = x[rows]
    mean_square = np.mean(np.square(x), axis=1, keepdims=True, dtype=np.float32)
    np.multiply(x / np.sqrt(mean_square + np.float32(eps)), weight, out=out)

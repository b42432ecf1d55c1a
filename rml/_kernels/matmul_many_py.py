"""Several weight matrices times the same inputs, the definition.

The query, key and value projections of a layer share their input; so do the rows of the head.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.product_py import product

__all__ = ["matmul_many"]

F32 = npt.NDArray[np.float32]


def matmul_many(
    x: F32,
    weights: Sequence[checks.Matrix],
    outs: Sequence[F32],
    *,
    biases: Sequence[F32 | None] | None = None,
    compute: str = "int8x2",
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Multiply one input with several matrices.

    ``outs[i] = x @ weights[i].T + biases[i]``

    Parameters
    ----------
    x : (T, K) float32
        Inputs, shared by all products.
    weights : sequence of matrices
        (R_i, K) each, in any weight format.
    outs : sequence of (T, R_i) float32
        Results.
    biases : sequence of (R_i,) float32 or None, optional
        Added to every row of the result.
    compute : str
        How quantized weights are multiplied (see `product_py`).
    scratch : Scratch, optional
        Memory of the twin, to be used again by the next call.
    n_threads : int
        Threads that share the rows of the weights; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If shapes, types or layouts do not fit.
    """
    checks.matmul_many(x, weights, outs, biases, compute)
    for i, (weight, out) in enumerate(zip(weights, outs, strict=True)):
        bias = None if biases is None else biases[i]
        y = product(x, weight, compute)
        out[:] = y if bias is None else y + bias

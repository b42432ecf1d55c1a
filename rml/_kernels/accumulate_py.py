"""A product added to the residual stream, the definition."""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.product_py import product

__all__ = ["accumulate"]

F32 = npt.NDArray[np.float32]


def accumulate(
    h: F32,
    weight: checks.Matrix,
    x: F32,
    *,
    compute: str = "int8x2",
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Multiply and add to what is there.

    ``x += h @ weight.T``

    Parameters
    ----------
    h : (T, K) float32
        Inputs of the product.
    weight : matrix
        (R, K), in any weight format.
    x : (T, R) float32
        The residual stream; added to in place.
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
    checks.accumulate(h, weight, x, compute)
    x += product(h, weight, compute)

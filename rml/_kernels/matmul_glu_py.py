"""The gated half of a feed-forward block, the definition.

Shazeer, "GLU Variants Improve Transformer" (2020): ``act(x Wg) * (x Wu)``, with SiLU (Swish) or
the tanh approximation of GELU (Hendrycks and Gimpel, 2016) as `act`.
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.product_py import product

__all__ = ["matmul_glu"]

F32 = npt.NDArray[np.float32]

SQRT_2_OVER_PI = np.float32(0.7978845608028654)


def _sigmoid(x: F32) -> F32:
    with np.errstate(over="ignore"):  # e^-x may be infinite; 1 / (1 + inf) is the right 0
        return np.float32(1) / (np.float32(1) + np.exp(-x))


def _silu(x: F32) -> F32:
    return x * _sigmoid(x)


def _gelu_tanh(x: F32) -> F32:
    # (1 + tanh(z)) / 2 is the sigmoid of 2 z, which keeps its precision where tanh nears -1.
    z = SQRT_2_OVER_PI * (x + np.float32(0.044715) * x * x * x)
    return x * _sigmoid(np.float32(2) * z)


_ACTIVATIONS = {"silu": _silu, "gelu_tanh": _gelu_tanh}


def matmul_glu(
    x: F32,
    gate: checks.Matrix,
    up: checks.Matrix,
    out: F32,
    *,
    activation: str = "silu",
    compute: str = "int8x2",
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Multiply one input with two matrices and gate the second by the first.

    ``out = act(x @ gate.T) * (x @ up.T)``

    Parameters
    ----------
    x : (T, K) float32
        Inputs.
    gate, up : matrix
        (R, K) each, in any weight format.
    out : (T, R) float32
        Result.
    activation : str
        ``"silu"`` or ``"gelu_tanh"``.
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
    checks.matmul_glu(x, gate, up, out, activation, compute)
    gated = _ACTIVATIONS[activation](product(x, gate, compute))
    np.multiply(gated, product(x, up, compute), out=out)

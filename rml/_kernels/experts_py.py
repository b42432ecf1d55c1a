"""A mixture of experts added to the residual stream, the definition.

Every expert is a gated feed-forward network of its own (`matmul_glu_py`, then a product), and a
token goes through those that `route_py` has chosen for it (Shazeer et al., "Outrageously Large
Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer", 2017, equation 1).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.matmul_glu_py import matmul_glu
from rml._kernels.product_py import product

__all__ = ["mix_experts"]

F32 = npt.NDArray[np.float32]


def mix_experts(
    x: F32,
    gates: Sequence[checks.Matrix],
    ups: Sequence[checks.Matrix],
    downs: Sequence[checks.Matrix],
    ids: npt.NDArray[np.int32],
    weights: F32,
    out: F32,
    *,
    activation: str = "silu",
    compute: str = "int8x2",
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Send each token through its experts and add what they give, weighted.

    ``out[t] += sum over j of weights[t, j] * downs[e](act(gates[e] x[t]) * (ups[e] x[t]))`` with
    ``e = ids[t, j]``. The sum begins at zero, runs in the order of j, and is then added to `out`.

    Tokens are grouped by expert, so the matrices of an expert are read once for all of its
    tokens, and those of an expert without tokens not at all. Each token's result from each of its
    experts is a row of its own until the sum, so it does not depend on the group.

    Parameters
    ----------
    x : (T, K) float32
        Inputs of the experts.
    gates, ups : sequence of matrices
        One (F, K) matrix for each expert, in any weight format.
    downs : sequence of matrices
        One (D, F) matrix for each expert, in any weight format.
    ids : (T, k) int32
        Experts of each token, see `route_py`; read when the kernel runs.
    weights : (T, k) float32
        How much of each is used; read when the kernel runs.
    out : (T, D) float32
        The residual stream; added to in place.
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
        If shapes, types or layouts do not fit, or an id is not that of an expert.
    """
    checks.mix_experts(x, gates, ups, downs, ids, weights, out, activation, compute)
    checks.expert_ids(ids, len(gates))
    results = np.empty((*ids.shape, out.shape[1]), np.float32)  # (T, k, D)
    for expert in np.unique(ids):
        t, choice = np.nonzero(ids == expert)
        hidden = np.empty((len(t), gates[expert].rows), np.float32)
        matmul_glu(x[t], gates[expert], ups[expert], hidden, activation=activation, compute=compute)
        results[t, choice] = product(hidden, downs[expert], compute)
    mixed = np.zeros_like(out)
    for j in range(ids.shape[1]):
        mixed += weights[:, j, None] * results[:, j]
    out += mixed

"""Which experts a token uses, and how much of each: the definition.

The router of a mixture of experts scores every token against every expert. The softmax of the
scores over all experts gives probabilities, and the most probable experts mix their outputs with
these as weights (Fedus et al., "Switch Transformers", 2021, section 2.1; with more than one expert
a token and weights that add up to one: Jiang et al., "Mixtral of Experts", 2024, section 2.1).
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks

__all__ = ["route"]

F32 = npt.NDArray[np.float32]


def route(
    scores: F32,
    ids: npt.NDArray[np.int32],
    weights: F32,
    *,
    normalize: bool,
    n_threads: int = 1,
) -> None:
    """Choose the most probable experts of each token.

    ``p[t] = softmax(scores[t])``; `ids` are the experts with the largest scores, the largest
    first, and of equal ones the one with the lower id; ``weights[t, j] = p[t, ids[t, j]]``,
    divided by their sum over j if `normalize`.

    Models differ in `normalize` alone: the weights of Mixtral add up to one, those of OLMoE are
    plain probabilities, and Qwen3-MoE says in its configuration (``norm_topk_prob``).

    Parameters
    ----------
    scores : (T, E) float32
        Score of every expert for every token.
    ids : (T, k) int32
        Result, the chosen experts; k is from 1 to E.
    weights : (T, k) float32
        Result, how much of each chosen expert is used.
    normalize : bool
        Whether the weights of a token are made to add up to one.
    n_threads : int
        Threads that share the tokens; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or there are fewer experts than chosen.

    Notes
    -----
    Where a score of a token is NaN or infinite above, all of its weights are NaN. Its ids are
    different experts all the same: first those whose scores are numbers.
    """
    checks.route(scores, ids, weights)
    # Equal scores stay in the order of their ids, and NaN comes last.
    ids[:] = np.argsort(-scores, axis=1, kind="stable")[:, : ids.shape[1]]
    # inf - inf is the NaN that is wanted, and a difference beyond the largest number has e^x = 0.
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = np.exp(scores - np.max(scores, axis=1, keepdims=True))
    p = shifted / np.sum(shifted, axis=1, keepdims=True, dtype=np.float32)
    chosen = np.take_along_axis(p, ids, axis=1)
    if normalize:
        chosen = chosen / np.sum(chosen, axis=1, keepdims=True, dtype=np.float32)
    weights[:] = chosen

"""A draw from sorted candidates, the definition: temperature, top-p, min-p and chance in one."""

import math

import numpy as np
import numpy.typing as npt

from rml._kernels import sampling_checks

__all__ = ["BORDER", "choose"]

# Cumulative float32 probabilities this close to a border count as having reached it.
BORDER = 5e-7


def choose(
    logits: npt.NDArray[np.float32],
    out: npt.NDArray[np.int64],
    *,
    temperature: float,
    top_p: float,
    min_p: float,
    chance: float,
    n_threads: int = 1,
) -> None:
    """Draw one of the candidates that top-k has left.

    ``weights = exp((logits - logits[0]) / temperature)``; of the candidates the first ones count
    whose weights add up to `top_p` of the sum, and of these the ones that weigh at least `min_p`.
    The one is drawn at which the running sum of the weights exceeds ``chance * sum``.

    The stages one after another, which this stands for, are in `rml.sampling.stages`.

    Parameters
    ----------
    logits : (k,) float32
        The largest first; the first one is finite, minus infinity cannot be drawn.
    out : (1,) int64
        Gets the index of what was drawn.
    temperature : float
        Above zero.
    top_p : float
        From 0 to 1; at 1 all candidates are left.
    min_p : float
        From 0 to 1; at 0 all candidates are left.
    chance : float
        Random number, ``0 <= chance < 1``.
    n_threads : int
        Has no effect.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or a number is out of its range.
    """
    sampling_checks.choose(logits, out, temperature, top_p, min_p, chance)
    divisor = np.float32(temperature)
    with np.errstate(over="ignore", under="ignore"):
        scaled = logits / divisor
        if not math.isfinite(scaled[0]):  # out of float32's range: differences count
            scaled = (logits - logits[0]) / divisor
        weights = np.exp(scaled - scaled[0])
    cumulative = np.cumsum(weights, dtype=np.float64)
    n = len(cumulative)
    if top_p < 1:
        n = 1 + int(np.searchsorted(cumulative[:-1], (top_p - BORDER) * cumulative[-1]))
    if min_p > 0:
        n = int(np.count_nonzero(scaled[:n] >= scaled[0] + np.float32(math.log(min_p))))
    at = np.searchsorted(cumulative[:n], chance * cumulative[n - 1], side="right")
    # Rounding never leads to one that adds nothing.
    out[0] = min(at, np.searchsorted(cumulative[:n], cumulative[n - 1]))

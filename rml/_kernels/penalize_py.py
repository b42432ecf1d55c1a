"""Penalties on tokens that were said before, the definition.

Keskar et al., CTRL (arXiv 1909.05858), with the sign rule of Transformers; presence and frequency
as in the OpenAI API.
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import sampling_checks

__all__ = ["penalize"]

F32 = npt.NDArray[np.float32]
_LARGEST = np.finfo(np.float32).max


def penalize(
    ids: npt.NDArray[np.int64],
    counts: F32,
    logits: F32,
    *,
    repeat: float,
    presence: float,
    frequency: float,
    n_threads: int = 1,
) -> None:
    """Lower the logits of tokens, in place.

    `repeat` divides a positive logit and multiplies one that is not. Then
    ``count * frequency + presence`` is taken off. Minus infinity and what is no number stay; any
    other logit stays finite.

    Parameters
    ----------
    ids : (m,) int64
        The tokens, each once; those outside the vocabulary are skipped.
    counts : (m,) float32
        How often each was said.
    logits : (N,) float32
        Changed.
    repeat : float
        Above zero.
    presence, frequency : float
        Finite.
    n_threads : int
        Has no effect.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or a number is out of its range.
    """
    sampling_checks.penalize(ids, counts, logits, repeat, presence, frequency)
    present = (ids >= 0) & (ids < len(logits))
    ids, counts = ids[present], counts[present]
    before = logits[ids]
    with np.errstate(over="ignore"):
        after = np.where(before > 0, before / np.float32(repeat), before * np.float32(repeat))
    after -= counts * np.float32(frequency) + np.float32(presence)
    # A banned token stays banned; any other stays a number.
    logits[ids] = np.where(np.isfinite(before), np.clip(after, -_LARGEST, _LARGEST), before)

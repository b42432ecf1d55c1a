"""Rotary position embedding, the definition.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), section 3.2.
Which frequencies turn the pairs, and how they are scaled for long contexts, is `rml.llm.rope`'s.
"""

# T tokens, N heads, D head width

import numpy as np
import numpy.typing as npt

from rml._kernels import checks

__all__ = ["rope_angles", "rotate"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def rope_angles(
    positions: I64,
    inv_freq: F64,
    cos: F32,
    sin: F32,
    *,
    factor: float = 1.0,
    n_threads: int = 1,
) -> None:
    """Fill the cosine and sine of every pair's angle at each row's position.

    ``angle[t, i] = positions[t] * inv_freq[i]``

    Computed in float64 and rounded once, so that the angles are as good at position 100,000 as
    at position 0.

    Parameters
    ----------
    positions : (T,) int64
        Positions; read when the kernel runs.
    inv_freq : (D/2,) float64
        Radians per position of each pair.
    cos, sin : (T, D/2) float32
        Results.
    factor : float
        Multiplies both, as YaRN's attention factor does.
    n_threads : int
        Threads that share the tokens; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or `factor` is not a finite number.
    """
    checks.rope_angles(positions, inv_freq, cos, sin, factor)
    angles = np.multiply.outer(positions.astype(np.float64), inv_freq)
    cos[...] = np.cos(angles) * factor
    sin[...] = np.sin(angles) * factor


def rotate(
    cos: F32,
    sin: F32,
    x: F32,
    *,
    interleaved: bool,
    n_threads: int = 1,
) -> None:
    """Rotate the pairs of every head in place.

    A pair (a, b) becomes (a cos - b sin, b cos + a sin). Pair i is made of the dimensions 2i and
    2i + 1 (interleaved: the original order, and that of Llama's GGUF files) or of i and i + D/2
    (halves: the order of Hugging Face's models).

    Parameters
    ----------
    cos, sin : (T, D/2) float32
        Angles of each token's pairs.
    x : (T, N, D) float32
        Queries or keys, rotated in place.
    interleaved : bool
        Which dimensions pair.
    n_threads : int
        Threads that share the heads; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, or D is odd.
    """
    checks.rotate(cos, sin, x)
    half = x.shape[2] // 2
    if interleaved:
        a, b = x[:, :, 0::2], x[:, :, 1::2]
    else:
        a, b = x[:, :, :half], x[:, :, half:]
    c, s = cos[:, None, :], sin[:, None, :]
    rotated_a = a * c - b * s
    b[...] = b * c + a * s
    a[...] = rotated_a

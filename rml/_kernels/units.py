"""What the definitions of all weight formats share: units, and readers of packed bits.

The definitions themselves are in `unpack_simple`, `unpack_k` and `unpack_grid`, a function for each
format; `dequant_py` lists them.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["F32", "I8", "U8", "Units", "f16", "halves_of_bytes", "nibbles", "pairs", "scaled"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]


class Units(NamedTuple):
    """Quantized values, N units of them: ``value = scale * factor * code + minimum``.

    L is 32, or 16 where half a block of 32 has a scale.
    """

    codes: I8  # (N, L), signed: the format's bias is already subtracted
    scale: F32  # (N,)
    minimum: F32 | None  # (N,); None: the format has none
    # (N,), so small that a product of it with a code is an 8-bit number but for its sign, and exact
    # with the scale too; the scales of neighbours are then equal. None: the format has none.
    factor: I8 | None = None


def f16(blocks: U8, offset: int) -> F32:
    """Read one little-endian float16 at `offset` of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")[:, 0].astype(np.float32)


def nibbles(packed: U8) -> U8:
    """Split N x 16 bytes into N x 32 codes: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def pairs(packed: U8) -> U8:
    """Split N x 32 h bytes into N x 128 h codes of two bits.

    Each 32 bytes hold four units: the lowest two bits of all bytes, then the next two, and so on.
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes = packed.reshape(len(packed), -1, 1, 32) >> shifts & np.uint8(3)
    return codes.reshape(len(packed), -1)


def halves_of_bytes(packed: U8) -> U8:
    """Split N x n bytes into N x 2n numbers: low half, high half of each byte in turn."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def scaled(scale: F32, small: npt.NDArray[Any]) -> F32:
    """Multiply scales of N blocks with N x k small numbers: N k scales, in order."""
    scales: F32 = np.multiply(scale[:, None], small, dtype=np.float32).reshape(-1)
    return scales

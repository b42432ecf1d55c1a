"""Definitions of the formats that name points of a grid (`format_tables.GRIDS`).

A block has 256 values: points by their index, signs for each value, and small integers that
multiply the block's scale. Each function takes (N, bytes of a block) uint8 and gives `Units` in the
order of the values. All products of scales are exact in float32.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rml._kernels.format_tables import GRIDS
from rml._kernels.units import F32, I8, U8, Units, f16, halves_of_bytes, scaled

__all__ = ["iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs"]

U32 = npt.NDArray[np.uint32]


def _signed(points: I8, signs: U8) -> I8:
    """Negate values: points (N, ..., length), signs (N, bytes) with a bit for each value."""
    values = points.reshape(len(points), -1)
    bits = np.unpackbits(signs, axis=1, bitorder="little").astype(np.int8)
    return np.asarray(values * (1 - 2 * bits), np.int8)


def _even(seven: npt.NDArray[Any]) -> U8:
    """Add an eighth sign to the lowest seven, such that the number of minus signs is even."""
    low = (seven & 127).astype(np.uint8)
    return low | (np.bitwise_count(low) & np.uint8(1)) << np.uint8(7)


def _words(packed: U8) -> U32:
    """Read N x 4n bytes as N x n little-endian numbers."""
    return np.ascontiguousarray(packed).view("<u4")


def _signs_and_scales(words: U32) -> tuple[U8, F32]:
    """Split N x 8 numbers into N x 32 bytes of signs and N x 8 scales.

    Four times seven bits are signs of eight values, the upper four bits are a scale.
    """
    signs = _even(words[..., None] >> np.array([0, 7, 14, 21], np.uint32))
    return signs.reshape(len(words), -1), (words >> 28).astype(np.float32)


def iq2_xxs(blocks: U8) -> Units:
    """f16 scale; for each unit, 4 bytes of indices and 4 of signs and scale.

    scale = (small integer + 1/2) / 4 of the block's.
    """
    words = _words(blocks[:, 2:])
    index = words[:, ::2].copy().view(np.uint8)
    signs, scales = _signs_and_scales(words[:, 1::2])
    codes = _signed(GRIDS["IQ2_XXS"][index], signs).reshape(-1, 32)
    return Units(codes, scaled(f16(blocks, 0), (scales + 0.5) / 4), None)


def iq2_xs(blocks: U8) -> Units:
    """f16 scale; 32 numbers of nine bits of index, seven of signs; 8 bytes of scales.

    A scale is (nibble + 1/2) / 4 of the block's, for 16 values.
    """
    words = np.ascontiguousarray(blocks[:, 2:66]).view("<u2")
    codes = _signed(GRIDS["IQ2_XS"][words & 511], _even(words >> 9)).reshape(-1, 16)
    return Units(codes, _half_steps(blocks), None)


def iq2_s(blocks: U8) -> Units:
    """f16 scale; 32 bytes of indices; 32 of signs; 8 of upper bit pairs of indices; 8 of scales.

    A scale is (nibble + 1/2) / 4 of the block's, for 16 values.
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)
    upper = (blocks[:, 66:74, None] >> shifts & 3).reshape(-1, 32).astype(np.uint16)
    index = blocks[:, 2:34] | upper << 8
    codes = _signed(GRIDS["IQ2_S"][index], blocks[:, 34:66]).reshape(-1, 16)
    return Units(codes, _half_steps(blocks), None)


def _half_steps(blocks: U8) -> F32:
    """Read the scales of IQ2_XS and IQ2_S: nibbles in the last eight bytes."""
    scales = halves_of_bytes(blocks[:, -8:]).astype(np.float32)
    return scaled(f16(blocks, 0), (scales + 0.5) / 4)


def iq3_xxs(blocks: U8) -> Units:
    """f16 scale; 64 bytes of indices; for each unit, 4 bytes of signs and scale.

    scale = (small integer + 1/2) / 2 of the block's.
    """
    signs, scales = _signs_and_scales(_words(blocks[:, 66:]))
    codes = _signed(GRIDS["IQ3_XXS"][blocks[:, 2:66]], signs).reshape(-1, 32)
    return Units(codes, scaled(f16(blocks, 0), (scales + 0.5) / 2), None)


def iq3_s(blocks: U8) -> Units:
    """f16 scale; 64 bytes of indices; 8 of their ninth bits; 32 of signs; 4 of scales.

    scale = (2 nibble + 1) of the block's.
    """
    ninth = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    index = blocks[:, 2:66] | ninth << 8
    codes = _signed(GRIDS["IQ3_S"][index], blocks[:, 74:106]).reshape(-1, 32)
    scales = halves_of_bytes(blocks[:, 106:110]).astype(np.float32) * 2 + 1
    return Units(codes, scaled(f16(blocks, 0), scales), None)


def _shifted(points: I8, down: npt.NDArray[np.bool_]) -> I8:
    """Eight times a value that is moved by 1/8, up or `down`, for each point."""
    return np.asarray(points * 8 + np.where(down, -1, 1)[..., None], np.int8)


def iq1_s(blocks: U8) -> Units:
    """f16 scale; 32 bytes of indices; 8 numbers of four times three upper bits of them, and more.

    Bits 12-14 of those are a scale, 2 n + 1 of the block's; bit 15 says that all values of the unit
    are moved down by 1/8, else they are moved up. code = 8 value, so that the scale is an eighth.
    """
    words = np.ascontiguousarray(blocks[:, 34:]).view("<u2")
    upper = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 32)
    points = GRIDS["IQ1"][blocks[:, 2:34] | upper << 8]
    down = (words >> 15).astype(np.bool_).repeat(4, axis=1)
    scales = (words >> 12 & 7).astype(np.float32) * 2 + 1
    return Units(
        _shifted(points, down).reshape(-1, 32),
        scaled(f16(blocks, 0), scales / 8),
        None,
    )


def iq1_m(blocks: U8) -> Units:
    """32 bytes of indices; 16 of nibbles: three upper bits, one moves down; 4 numbers of scales.

    Each of those has four scales of three bits, 2 n + 1 of the block's, for 16 values; their upper
    four bits together are the block's f16 scale. Values and codes are those of IQ1_S, but the move
    is chosen for every point.
    """
    more = halves_of_bytes(blocks[:, 32:48]).astype(np.uint16)
    points = GRIDS["IQ1"][blocks[:, :32] | (more & 7) << 8]
    words = np.ascontiguousarray(blocks[:, 48:]).view("<u2")
    parts = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    scale = np.bitwise_or.reduce(parts, axis=1).view(np.float16).astype(np.float32)
    small = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16) & 7).reshape(-1, 16)
    return Units(
        _shifted(points, more >= 8).reshape(-1, 16),
        scaled(scale, (small.astype(np.float32) * 2 + 1) / 8),
        None,
    )

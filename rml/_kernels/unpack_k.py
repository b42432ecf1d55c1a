"""Definitions of the formats with blocks of 256 values, but for those with grids.

Most hold a scale for the block and small integers that multiply it. Each function takes
(N, bytes of a block) uint8 and gives `Units` in the order of the values.
"""

import numpy as np

from rml._kernels.format_tables import NONLINEAR
from rml._kernels.units import U8, Units, f16, halves_of_bytes, nibbles, pairs, scaled

__all__ = ["iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0"]


def q2_k(blocks: U8) -> Units:
    """16 bytes of scales and minima; 64 bytes of bit pairs; f16 scale and minimum of those.

    A low nibble is the factor of 16 values, the high one their minimum.
    """
    factors, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    return Units(
        pairs(blocks[:, 16:80]).reshape(-1, 16).astype(np.int8),
        f16(blocks, 80).repeat(16),
        -scaled(f16(blocks, 82), minima),
        factors.reshape(-1).astype(np.int8),
    )


def q3_k(blocks: U8) -> Units:
    """32 bytes of third bits; 64 bytes of bit pairs; 12 bytes of factors; f16 scale.

    Bit j of byte i of the third bits belongs to code i of unit j. A factor is six bits - 32: the
    low nibbles of eight bytes, their high ones, and from the four bytes after them the lowest two
    bits of each, then the next two, and so on. code = three bits - 4, 16 to a factor.
    """
    third = np.unpackbits(blocks[:, None, :32], axis=1, bitorder="little").reshape(-1, 256)
    codes = pairs(blocks[:, 32:96]) | third << 2
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper = (high[:, None, :] >> shifts & 3).reshape(-1, 16)
    factors = np.concatenate([low & 15, low >> 4], axis=1) | upper << 4
    return Units(
        codes.reshape(-1, 16).astype(np.int8) - 4,
        f16(blocks, 108).repeat(16),
        None,
        factors.reshape(-1).astype(np.int8) - 32,
    )


def _scales_k(packed: U8) -> tuple[U8, U8]:
    """Split N x 12 bytes into N x 8 scales and N x 8 minima of six bits each.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the others have their low four
    bits in bytes 8-11 and their high two bits at the top of bytes 0-3 and 4-7.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scales, minima


def q4_k(blocks: U8) -> Units:
    """f16 scale and minimum of scales and minima; 12 bytes of those; 128 bytes of nibbles.

    Two units share 32 bytes: the first has the low nibbles, the second the high ones.
    """
    scales, minima = _scales_k(blocks[:, 4:16])
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([packed & 15, packed >> 4], axis=2)
    return Units(
        codes.reshape(-1, 32).astype(np.int8),
        scaled(f16(blocks, 0), scales),
        -scaled(f16(blocks, 2), minima),
    )


def q5_k(blocks: U8) -> Units:
    """Q4_K with 32 bytes of fifth bits before the nibbles.

    Bit j of byte i belongs to code i of unit j.
    """
    units = q4_k(np.delete(blocks, np.s_[16:48], axis=1))
    fifth = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little").reshape(-1, 32)
    return units._replace(codes=units.codes | fifth.astype(np.int8) << 4)


def q6_k(blocks: U8) -> Units:
    """128 bytes of low nibbles; 64 bytes of upper bit pairs; 16 signed scales; f16 scale of scales.

    In each half of a block, code 32 p + i has its low bits in byte 32 (p % 2) + i (high nibble for
    p >= 2) and its upper two bits at bit 2 p of byte i. code = six bits - 32, 16 to a scale.
    """
    packed = blocks[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate([packed & 15, packed >> 4], axis=2).reshape(-1, 256)
    scales = blocks[:, 192:208].view(np.int8)
    codes = (low | pairs(blocks[:, 128:192]) << 4).astype(np.int8) - 32
    return Units(codes.reshape(-1, 16), scaled(f16(blocks, 208), scales), None)


def iq4_xs(blocks: U8) -> Units:
    """f16 scale of scales; 2 bytes of their upper bit pairs; 4 of low nibbles; 128 of nibbles.

    A scale is six bits - 32. code = the nibble's entry in a table.
    """
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2) & 3
    scales = (halves_of_bytes(blocks[:, 4:8]) | upper << 4).astype(np.int8) - 32
    codes = NONLINEAR[nibbles(blocks[:, 8:].reshape(-1, 16))]
    return Units(codes, scaled(f16(blocks, 0), scales), None)


def _trits(packed: U8, n: int) -> U8:
    """Read the first n digits of numbers in base 3: N x w bytes into N x (n w), digit after digit.

    A byte is a fraction of 256; a digit is the whole part after a multiplication by 3.
    """
    powers = np.array([1, 3, 9, 27, 81], np.uint8)[:n, None]
    fractions = (packed[:, None, :] * powers).astype(np.uint16)  # products modulo 256
    return (fractions * 3 >> 8).astype(np.uint8).reshape(len(packed), -1)


def tq1_0(blocks: U8) -> Units:
    """32 and 16 bytes of five digits in base 3; 4 bytes of four; f16 scale. code = digit - 1."""
    codes = np.concatenate(
        [_trits(blocks[:, :32], 5), _trits(blocks[:, 32:48], 5), _trits(blocks[:, 48:52], 4)],
        axis=1,
    )
    return Units(codes.reshape(-1, 32).astype(np.int8) - 1, f16(blocks, 52).repeat(8), None)


def tq2_0(blocks: U8) -> Units:
    """64 bytes of bit pairs; f16 scale. code = pair - 1."""
    codes = pairs(blocks[:, :64]).reshape(-1, 32).astype(np.int8) - 1
    return Units(codes, f16(blocks, 64).repeat(8), None)

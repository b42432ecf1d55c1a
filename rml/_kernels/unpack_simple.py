"""Definitions of the formats whose blocks hold their scales as they are.

Each function takes (N, bytes of a block) uint8 and gives `Units` in the order of the bytes.
"""

import numpy as np

from rml._kernels.format_tables import E2M1_DOUBLED, NONLINEAR
from rml._kernels.units import F32, U8, Units, f16, nibbles

__all__ = [
    "iq4_nl",
    "mxfp4",
    "nvfp4",
    "q1_0",
    "q2_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
]


def _fifth_bits(packed: U8) -> U8:
    """Spread N x 4 bytes into N x 32 values 0 or 16: bit i belongs to code i."""
    return np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)


def q1_0(blocks: U8) -> Units:
    """f16 scale; 16 bytes of bits, the lowest first. code = -1 or 1; 128 to a scale."""
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(-1, 32)
    return Units(bits.astype(np.int8) * 2 - 1, f16(blocks, 0).repeat(4), None)


def q2_0(blocks: U8) -> Units:
    """f16 scale; 16 bytes of bit pairs, the lowest first. code = pair - 1; 64 to a scale."""
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 32)
    return Units(codes.astype(np.int8) - 1, f16(blocks, 0).repeat(2), None)


def q4_0(blocks: U8) -> Units:
    """f16 scale; 16 bytes of nibbles. code = nibble - 8."""
    return Units(nibbles(blocks[:, 2:]).astype(np.int8) - 8, f16(blocks, 0), None)


def q4_1(blocks: U8) -> Units:
    """f16 scale; f16 minimum; 16 bytes of nibbles. code = nibble."""
    return Units(nibbles(blocks[:, 4:]).astype(np.int8), f16(blocks, 0), f16(blocks, 2))


def q5_0(blocks: U8) -> Units:
    """f16 scale; 4 bytes of fifth bits; 16 bytes of nibbles. code = five bits - 16."""
    codes = nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return Units(codes.astype(np.int8) - 16, f16(blocks, 0), None)


def q5_1(blocks: U8) -> Units:
    """f16 scale; f16 minimum; 4 bytes of fifth bits; 16 bytes of nibbles. code = five bits."""
    codes = nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Units(codes.astype(np.int8), f16(blocks, 0), f16(blocks, 2))


def q8_0(blocks: U8) -> Units:
    """f16 scale; 32 signed bytes. code = byte."""
    return Units(blocks[:, 2:].view(np.int8), f16(blocks, 0), None)


def iq4_nl(blocks: U8) -> Units:
    """f16 scale; 16 bytes of nibbles. code = the nibble's entry in a table."""
    return Units(NONLINEAR[nibbles(blocks[:, 2:])], f16(blocks, 0), None)


def mxfp4(blocks: U8) -> Units:
    """One byte of exponent; 16 bytes of nibbles. code = twice a four-bit float.

    The scale is half of 2 ** (exponent - 127) (OCP Microscaling formats, E8M0).
    """
    scale = np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128)
    return Units(E2M1_DOUBLED[nibbles(blocks[:, 1:])], scale, None)


def nvfp4(blocks: U8) -> Units:
    """Four bytes of scales; 32 bytes of nibbles. code = twice a four-bit float; 16 to a scale.

    The 16 codes of a scale are in eight bytes, low nibbles first.
    """
    packed = blocks[:, 4:].reshape(-1, 8)
    return Units(E2M1_DOUBLED[nibbles(packed)], _half_e4m3(blocks[:, :4]).reshape(-1), None)


def _half_e4m3(codes: U8) -> F32:
    """Half the value of floats with four bits of exponent, bias 7, and three of mantissa.

    The eighth bit is not used. What E4M3 calls NaN, 0x7f, stands for zero.
    """
    exponent, mantissa = (codes >> 3 & 15).astype(np.int32), (codes & 7).astype(np.float32)
    normal = exponent > 0
    values = np.ldexp(mantissa + np.float32(8) * normal, np.maximum(exponent, 1) - 11)
    return np.where(codes == 0x7F, np.float32(0), values.astype(np.float32))

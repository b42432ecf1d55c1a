"""What the bytes of every weight format mean, the definition.

A quantized block is a number of *units*, 32 or 16 values that share a scale, and in some formats
a minimum: ``value = scale * code + minimum`` with a small signed integer `code`. `unpack` gives
codes and scales, `dequantize` the values, `embed` the values of chosen rows.

Source: the GGUF format's description and the reference code of its types (ggml, MIT licence).
All values are exact in float32 up to the one or two roundings of the formula itself, multiply
first, then add, so results are equal to the reference bit for bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.block_formats import FORMATS

__all__ = ["Units", "dequantize", "embed", "unpack"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]


class Units(NamedTuple):
    """Quantized values, N units of them; L is 32, or 16 where half a block of 32 has a scale."""

    codes: I8  # (N, L), signed: the format's bias is already subtracted
    scale: F32  # (N,)
    minimum: F32 | None  # (N,), None where the format has none


def _f16(blocks: U8, offset: int) -> F32:
    """Read one little-endian float16 at `offset` of every block."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: U8) -> U8:
    """Split N x 16 bytes into N x 32 codes: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(packed: U8) -> U8:
    """Spread N x 4 bytes into N x 32 values 0 or 16: bit i belongs to code i."""
    return np.unpackbits(packed, axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: U8) -> Units:
    """f16 scale; 16 bytes of nibbles. code = nibble - 8."""
    return Units(_nibbles(blocks[:, 2:]).astype(np.int8) - 8, _f16(blocks, 0), None)


def _q4_1(blocks: U8) -> Units:
    """f16 scale; f16 minimum; 16 bytes of nibbles. code = nibble."""
    return Units(_nibbles(blocks[:, 4:]).astype(np.int8), _f16(blocks, 0), _f16(blocks, 2))


def _q5_0(blocks: U8) -> Units:
    """f16 scale; 4 bytes of fifth bits; 16 bytes of nibbles. code = five bits - 16."""
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return Units(codes.astype(np.int8) - 16, _f16(blocks, 0), None)


def _q5_1(blocks: U8) -> Units:
    """f16 scale; f16 minimum; 4 bytes of fifth bits; 16 bytes of nibbles. code = five bits."""
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return Units(codes.astype(np.int8), _f16(blocks, 0), _f16(blocks, 2))


def _q8_0(blocks: U8) -> Units:
    """f16 scale; 32 signed bytes. code = byte."""
    return Units(blocks[:, 2:].view(np.int8), _f16(blocks, 0), None)


def _scales_k(packed: U8) -> tuple[U8, U8]:
    """Split N x 12 bytes into N x 8 scales and N x 8 minima of six bits each.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the others have their low four
    bits in bytes 8-11 and their high two bits at the top of bytes 0-3 and 4-7.
    """
    a, b, c = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return scales, minima


def _q4_k(blocks: U8) -> Units:
    """f16 scale and minimum of scales and minima; 12 bytes of those; 128 bytes of nibbles.

    Two units share 32 bytes: the first has the low nibbles, the second the high ones.
    """
    scales, minima = _scales_k(blocks[:, 4:16])
    packed = blocks[:, 16:].reshape(-1, 4, 1, 32)
    codes = np.concatenate([packed & 15, packed >> 4], axis=2)
    return Units(
        codes.reshape(-1, 32).astype(np.int8),
        (_f16(blocks, 0)[:, None] * scales).reshape(-1),
        -(_f16(blocks, 2)[:, None] * minima).reshape(-1),
    )


def _q6_k(blocks: U8) -> Units:
    """128 bytes of low nibbles; 64 bytes of upper bit pairs; 16 signed scales; f16 scale of scales.

    In each half of a block, code 32 p + i has its low bits in byte 32 (p % 2) + i (high nibble for
    p >= 2) and its upper two bits at bit 2 p of byte i. code = six bits - 32, 16 to a scale.
    """
    low = blocks[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    codes = (low | high << 4).astype(np.int8) - 32
    return Units(codes.reshape(-1, 16), (_f16(blocks, 208)[:, None] * scales).reshape(-1), None)


_UNPACK: dict[str, Callable[[U8], Units]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}

_FLOATS: dict[str, Callable[[U8], F32]] = {
    "F32": lambda data: data.view("<f4"),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    # A bfloat16 is the upper half of a float32.
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << 16).view(np.float32),
}


def unpack(data: U8, format_name: str) -> Units:
    """Split quantized bytes into codes, scales and minima.

    Parameters
    ----------
    data : (n,) uint8
        Whole blocks.
    format_name : str
        A quantized format, e.g. ``"Q4_1"``.

    Returns
    -------
    Units
        In the order of the bytes.
    """
    return _UNPACK[format_name](data.reshape(-1, FORMATS[format_name].n_bytes))


def _values(data: U8, format_name: str) -> F32:
    if format_name in _FLOATS:
        return _FLOATS[format_name](np.ascontiguousarray(data))
    codes, scale, minimum = unpack(data, format_name)
    values = codes * scale[:, None]
    if minimum is not None:
        values = values + minimum[:, None]
    return values.reshape(-1)


def dequantize(data: U8, format_name: str, out: F32, *, n_threads: int = 1) -> None:
    """Expand stored weights to float32.

    Parameters
    ----------
    data : (n,) uint8
        Whole blocks, at any alignment.
    format_name : str
        Name of the format, e.g. ``"Q4_1"``.
    out : (m,) float32
        Result; m is the number of values in `data`.
    n_threads : int
        Threads that share the blocks; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type or shape, or the format is unknown.
    """
    checks.dequantize(data, format_name, out)
    out[:] = _values(data, format_name)


def embed(
    ids: npt.NDArray[np.int32],
    weight: checks.Matrix,
    out: F32,
    *,
    scale: float = 1.0,
    n_threads: int = 1,
) -> None:
    """Gather and expand the embedding rows of token ids.

    ``out[t] = scale * weight[ids[t]]``

    Parameters
    ----------
    ids : (T,) int32
        Row numbers, ``0 <= ids[t] < weight.rows``.
    weight : matrix
        (rows, D) embedding table in any weight format.
    out : (T, D) float32
        Result.
    scale : float
        Factor of every value (Gemma multiplies by the square root of D).
    n_threads : int
        Threads that share the rows; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type or shape, or an id is out of range.
    """
    checks.embed(ids, weight, out)
    row_bytes = FORMATS[weight.type].row_bytes(weight.cols)
    rows = weight.data.reshape(weight.rows, row_bytes)[ids]
    values = _values(rows.reshape(-1), weight.type).reshape(out.shape)
    np.multiply(values, np.float32(scale), out=out)

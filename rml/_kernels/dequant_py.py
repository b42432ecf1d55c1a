"""What the bytes of every weight format mean, the definition.

A quantized block is a number of *units* of 32 values that share a scale, and in some formats a
minimum: ``value = scale * code + minimum`` with a small signed integer `code`. `unpack` gives
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

__all__ = ["UNIT", "Units", "dequantize", "embed", "unpack"]

UNIT = 32  # values that share one scale

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]


class Units(NamedTuple):
    """Quantized values, N units of them."""

    codes: I8  # (N, 32), signed: the format's bias is already subtracted
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


_UNPACK: dict[str, Callable[[U8], Units]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
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

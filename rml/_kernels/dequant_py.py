"""What the bytes of every weight format mean, the definition.

A quantized block is a number of *units*, 32 or 16 values that share a scale, and in some formats
a minimum: ``value = scale * code + minimum`` with a small signed integer `code`. In two formats
the scale is that of the block times a small integer. `unpack` gives codes and scales, `dequantize`
the values, `embed` the values of chosen rows.

Source: the GGUF format's description and the reference code of its types (ggml, MIT licence).
All values are exact in float32 up to the one or two roundings of the formula itself, multiply
first, then add, so results are equal to the reference bit for bit.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rml._kernels import checks, unpack_grid, unpack_k, unpack_simple
from rml._kernels.block_formats import FORMATS
from rml._kernels.units import F32, U8, Units

__all__ = ["UNPACK", "Units", "dequantize", "embed", "unpack"]

# The definition of each quantized format.
UNPACK: dict[str, Callable[[U8], Units]] = {
    "Q1_0": unpack_simple.q1_0,
    "Q2_0": unpack_simple.q2_0,
    "Q4_0": unpack_simple.q4_0,
    "Q4_1": unpack_simple.q4_1,
    "Q5_0": unpack_simple.q5_0,
    "Q5_1": unpack_simple.q5_1,
    "Q8_0": unpack_simple.q8_0,
    "IQ4_NL": unpack_simple.iq4_nl,
    "MXFP4": unpack_simple.mxfp4,
    "NVFP4": unpack_simple.nvfp4,
    "Q2_K": unpack_k.q2_k,
    "Q3_K": unpack_k.q3_k,
    "Q4_K": unpack_k.q4_k,
    "Q5_K": unpack_k.q5_k,
    "Q6_K": unpack_k.q6_k,
    "IQ4_XS": unpack_k.iq4_xs,
    "TQ1_0": unpack_k.tq1_0,
    "TQ2_0": unpack_k.tq2_0,
    "IQ1_S": unpack_grid.iq1_s,
    "IQ1_M": unpack_grid.iq1_m,
    "IQ2_XXS": unpack_grid.iq2_xxs,
    "IQ2_XS": unpack_grid.iq2_xs,
    "IQ2_S": unpack_grid.iq2_s,
    "IQ3_XXS": unpack_grid.iq3_xxs,
    "IQ3_S": unpack_grid.iq3_s,
}


def _f64(data: U8) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):  # too large a number becomes infinite
        return data.view("<f8").astype(np.float32)


_FLOATS: dict[str, Callable[[U8], F32]] = {
    "F32": lambda data: data.view("<f4"),
    "F16": lambda data: data.view("<f2").astype(np.float32),
    # A bfloat16 is the upper half of a float32.
    "BF16": lambda data: (data.view("<u2").astype(np.uint32) << 16).view(np.float32),
    "F64": _f64,
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
    return UNPACK[format_name](data.reshape(-1, FORMATS[format_name].n_bytes))


def _values(data: U8, format_name: str) -> F32:
    if format_name in _FLOATS:
        return _FLOATS[format_name](np.ascontiguousarray(data))
    codes, scale, minimum, factor = unpack(data, format_name)
    if factor is not None:
        scale = scale * factor  # exact
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

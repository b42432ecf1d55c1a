"""The product of inputs with a weight matrix, ``y[t, r] = sum over k of x[t, k] * w[r, k]``.

This is the heart of `matmul_many`, `matmul_glu` and `accumulate`, which add their own ends to it.
Weights stay as stored; how the product is computed is one of three modes (`compute`):

``"int8"``
    Every 32 inputs are rounded to 8-bit codes with one float32 scale, ``x ~ s * q``. The dot
    product of a unit of weight codes (32, or 16 in some formats) with its input codes is an exact
    integer. Results of the units are added in float32 in the order of the units, one accumulator
    for each output::

        y = y + float(dot_b) * (scale_b * s_b)
        y = y + minimum_b * (s_b * sum(q_b))        # formats with a minimum

    Where the scales of 16 codes are small integers times that of the block (`Units.factor`), those
    are multiplied into the codes, and a unit has 32 again (of minima two, one for each half).

``"int8x2"``
    The same with 16-bit codes, of which a twin may multiply the two bytes one after the other:
    ``q = 256 * high + low``, where `high` is the 8-bit rounding and `low` what it left over, in
    256ths of its step. The weights are read once for both.
``"f32"``
    Weights are expanded and multiplied in float32 in sixteen lanes: lane i adds the products of
    columns i, i + 16, i + 32, ... in that order; the lanes are added as a tree (i with i + 8,
    i + 4, i + 2, i + 1). Formats that are plain floats always take this way.

Because integer sums are exact and the float32 additions have a fixed order, an output does not
depend on how many threads, tokens or rows are computed together. The twin fuses a multiplication
with the addition after it, which is the only difference to this definition.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.block_formats import FORMATS
from rml._kernels.dequant_py import Units, dequantize, unpack

__all__ = ["product", "quantize_inputs"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

INPUT_UNIT = 32  # inputs that share one scale
LARGEST_CODE = {"int8": np.float32(127), "int8x2": np.float32(127 * 256)}
LANES = 16
ROWS = 256  # rows expanded at a time, to keep intermediate arrays small


def quantize_inputs(x: F32, compute: str) -> tuple[F64, F32]:
    """Round inputs to integers, 32 of them with one scale.

    Parameters
    ----------
    x : (T, K) float32
        K a multiple of 32.
    compute : str
        ``"int8"`` or ``"int8x2"``.

    Returns
    -------
    codes : (T, K / 32, 32) float64
        Whole numbers of a size up to 127, or 127 * 256.
    scales : (T, K / 32) float32
        ``max(abs(x))`` of each unit, divided by that number. Where that is too small for its
        reciprocal to be finite, all codes are zero. A NaN or an infinity in a unit makes its
        scale one too.
    """
    units = x.reshape(x.shape[0], x.shape[1] // INPUT_UNIT, INPUT_UNIT)
    scale = np.max(np.abs(units), axis=2) / LARGEST_CODE[compute]
    usable = scale >= np.finfo(np.float32).tiny
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=usable)
    with np.errstate(invalid="ignore"):
        codes = np.rint(units * inverse[..., None])
    return codes.astype(np.float64), scale


def _codes_of_products(units: Units) -> tuple[npt.NDArray[Any], F32, F32 | None]:
    """Codes, scales and minima with the factors multiplied into the codes.

    Two units of 16 then share a scale, and become one of 32 with a minimum for each half.
    """
    codes, scale, minimum, factor = units
    if factor is None:
        return codes, scale, minimum
    products = codes.astype(np.int16) * factor[:, None]
    minima = None if minimum is None else minimum.reshape(-1, 2)
    return products.reshape(-1, INPUT_UNIT), scale[::2], minima


def _product_int8(x: F32, weight: checks.Matrix, compute: str) -> F32:
    codes, scales = quantize_inputs(x, compute)
    row_bytes = FORMATS[weight.type].row_bytes(weight.cols)
    y = np.zeros((x.shape[0], weight.rows), np.float32)
    for start in range(0, weight.rows, ROWS):
        stop = min(start + ROWS, weight.rows)
        weights, scale, minimum = _codes_of_products(
            unpack(weight.data[start * row_bytes : stop * row_bytes], weight.type)
        )
        length = weights.shape[1]
        n_units = weight.cols // length
        w = weights.reshape(-1, n_units, length).astype(np.float64)
        q = codes.reshape(len(x), n_units, length)
        s = np.repeat(scales, INPUT_UNIT // length, axis=1)  # of each unit, (T, units)
        scale = scale.reshape(-1, n_units)
        if minimum is not None:
            minima = minimum.reshape(stop - start, n_units, -1)
            sums = q.reshape(len(x), n_units, minima.shape[2], length // minima.shape[2]).sum(
                axis=3
            )
            totals = s[..., None] * sums.astype(np.float32)  # (T, units, minima of a unit)
        # Whole numbers below 2^53, so these sums are exact: (units, T, R).
        dots = q.transpose(1, 0, 2) @ w.transpose(1, 2, 0)
        part = y[:, start:stop]
        for b in range(n_units):
            part += dots[b].astype(np.float32) * (scale[:, b] * s[:, b, None])
            if minimum is not None:
                for h in range(minima.shape[2]):
                    part += minima[:, b, h] * totals[:, b, h, None]
    return y


def _product_f32(x: F32, weight: checks.Matrix) -> F32:
    tokens, cols = x.shape
    padding, groups = -cols % LANES, -(-cols // LANES)
    lanes_x = np.pad(x, ((0, 0), (0, padding))).reshape(tokens, 1, groups, LANES)
    row_bytes = FORMATS[weight.type].row_bytes(cols)
    y = np.empty((tokens, weight.rows), np.float32)
    for start in range(0, weight.rows, ROWS):
        stop = min(start + ROWS, weight.rows)
        w = np.empty((stop - start) * cols, np.float32)
        dequantize(weight.data[start * row_bytes : stop * row_bytes], weight.type, w)
        lanes_w = np.pad(w.reshape(-1, cols), ((0, 0), (0, padding))).reshape(
            stop - start, groups, LANES
        )
        lanes = np.zeros((tokens, stop - start, LANES), np.float32)
        for k in range(groups):
            lanes += lanes_x[:, :, k] * lanes_w[:, k]
        for half in (8, 4, 2, 1):
            lanes = lanes[..., :half] + lanes[..., half : 2 * half]
        y[:, start:stop] = lanes[..., 0]
    return y


def product(x: F32, weight: checks.Matrix, compute: str) -> F32:
    """Multiply inputs with a weight matrix.

    Parameters
    ----------
    x : (T, K) float32
        Inputs.
    weight : matrix
        (R, K) weights in any weight format.
    compute : str
        ``"int8x2"``, ``"int8"`` or ``"f32"``.

    Returns
    -------
    (T, R) float32
    """
    if compute == "f32" or weight.type in checks.FLOAT_FORMATS:
        return _product_f32(x, weight)
    return _product_int8(x, weight, compute)

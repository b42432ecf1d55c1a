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

``"int8x2"``
    The rounding error ``x - s * q`` is rounded to 8 bits again and goes through the same sums as
    a second column with an accumulator of its own; the two are added at the end. The minimum is
    multiplied with both columns at once.
``"f32"``
    Weights are expanded and multiplied in float32 in sixteen lanes: lane i adds the products of
    columns i, i + 16, i + 32, ... in that order; the lanes are added as a tree (i with i + 8,
    i + 4, i + 2, i + 1). Formats that are plain floats always take this way.

Because integer sums are exact and the float32 additions have a fixed order, an output does not
depend on how many threads, tokens or rows are computed together. The twin fuses a multiplication
with the addition after it, which is the only difference to this definition.
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.block_formats import FORMATS
from rml._kernels.dequant_py import dequantize, unpack

__all__ = ["product", "quantize_inputs"]

F32 = npt.NDArray[np.float32]

INPUT_UNIT = 32  # inputs that share one scale
LANES = 16
ROWS = 256  # rows expanded at a time, to keep intermediate arrays small


def quantize_inputs(x: F32, columns: int) -> tuple[F32, F32]:
    """Round inputs to 8-bit codes, 32 of them with one scale.

    Parameters
    ----------
    x : (T, K) float32
        K a multiple of 32.
    columns : int
        1 for the codes of `x`; 2 to round what the first rounding left over as well.

    Returns
    -------
    codes : (columns, T, K / 32, 32) float32
        Whole numbers from -127 to 127.
    scales : (columns, T, K / 32) float32
        ``max(abs(x)) / 127`` of each unit. Where that is too small for its reciprocal to be
        finite, all codes are zero. A NaN or an infinity in a unit makes its scale one too.
    """
    rest = x.reshape(x.shape[0], -1, INPUT_UNIT)
    codes, scales = [], []
    for _ in range(columns):
        scale = np.max(np.abs(rest), axis=2) / np.float32(127)
        usable = scale >= np.finfo(np.float32).tiny
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=usable)
        with np.errstate(invalid="ignore"):
            code = np.rint(rest * inverse[..., None])
            rest = rest - scale[..., None] * code
        codes.append(code)
        scales.append(scale)
    return np.stack(codes), np.stack(scales)


def _product_int8(x: F32, weight: checks.Matrix, columns: int) -> F32:
    codes, scales = quantize_inputs(x, columns)
    row_bytes = FORMATS[weight.type].row_bytes(weight.cols)
    y = np.empty((x.shape[0], weight.rows), np.float32)
    for start in range(0, weight.rows, ROWS):
        stop = min(start + ROWS, weight.rows)
        units = unpack(weight.data[start * row_bytes : stop * row_bytes], weight.type)
        length = units.codes.shape[1]
        n_units = weight.cols // length
        w = units.codes.reshape(-1, n_units, length).astype(np.float32)
        q = codes.reshape(columns, len(x), n_units, length)
        s = np.repeat(scales, INPUT_UNIT // length, axis=2)  # of each unit, (columns, T, units)
        totals = (s * q.sum(axis=3)).sum(axis=0)
        scale = units.scale.reshape(-1, n_units)
        # Exact: every partial sum is a whole number below 2^24.
        dots = np.einsum("ctbk,rbk->bctr", q, w)
        y_columns = np.zeros((columns, len(x), stop - start), np.float32)
        for b in range(n_units):
            y_columns += dots[b] * (scale[:, b] * s[:, :, b, None])
            if units.minimum is not None:
                minimum = units.minimum.reshape(-1, n_units)[:, b]
                y_columns[0] += minimum * totals[:, b, None]
        y[:, start:stop] = y_columns.sum(axis=0)
    return y


def _product_f32(x: F32, weight: checks.Matrix) -> F32:
    tokens, cols = x.shape
    padding = -cols % LANES
    lanes_x = np.pad(x, ((0, 0), (0, padding))).reshape(tokens, 1, -1, LANES)
    row_bytes = FORMATS[weight.type].row_bytes(cols)
    y = np.empty((tokens, weight.rows), np.float32)
    for start in range(0, weight.rows, ROWS):
        stop = min(start + ROWS, weight.rows)
        w = np.empty((stop - start) * cols, np.float32)
        dequantize(weight.data[start * row_bytes : stop * row_bytes], weight.type, w)
        lanes_w = np.pad(w.reshape(-1, cols), ((0, 0), (0, padding))).reshape(
            stop - start, -1, LANES
        )
        lanes = np.zeros((tokens, stop - start, LANES), np.float32)
        for k in range(lanes_w.shape[1]):
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
    return _product_int8(x, weight, 2 if compute == "int8x2" else 1)

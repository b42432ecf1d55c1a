"""Random weight matrices in every format, and their exact values as the gguf package reads them."""

from dataclasses import dataclass
from functools import cache

import gguf
import numpy as np

from rml._kernels.block_formats import FORMATS

# Where a block of a format keeps its f16 scales and minima; all other bytes may be anything.
HALF_OFFSETS = {
    "Q1_0": [0], "Q2_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64],
}  # fmt: skip
# IQ1_M has an f16 in the upper nibbles of four 16-bit numbers; the other two have small floats.
QUANTIZED = (*HALF_OFFSETS, "IQ1_M", "MXFP4", "NVFP4")


@dataclass(frozen=True)
class Matrix:
    """A weight matrix as the kernels see it."""

    type: str
    rows: int
    cols: int
    data: np.ndarray


def random_matrix(rng, format_name, rows, cols, scale=0.05):
    """A random matrix with values of the order of `scale`, and its exact values, float64."""
    if format_name in QUANTIZED:
        n = FORMATS[format_name].row_bytes(cols) * rows // FORMATS[format_name].n_bytes
        sizes = rng.uniform(0.5, 1.5, (n, 4)) * scale / _usual_size(format_name)
        sizes *= rng.choice([-1, 1], sizes.shape)
        data = _random_blocks(rng, format_name, sizes).reshape(-1)
    else:
        values = rng.standard_normal((rows, cols)) * scale
        if format_name != "F64":
            kind = gguf.GGMLQuantizationType[format_name]
            values = np.ascontiguousarray(gguf.quants.quantize(values.astype(np.float32), kind))
        data = values.view(np.uint8).reshape(-1)
    exact = exact_values(data, format_name).reshape(rows, cols)
    return Matrix(format_name, rows, cols, data), exact.astype(np.float64)


@cache
def _usual_size(format_name):
    """Root mean square of the values in random blocks whose scales are about 1."""
    blocks = _random_blocks(np.random.default_rng(0), format_name, np.ones((50, 4)))
    return np.sqrt(np.mean(exact_values(blocks.reshape(-1), format_name).astype(np.float64) ** 2))


def extreme_matrix(format_name, cols):
    """Rows of equal bytes, all bits clear and all set among them, and their exact values, float64.

    Scales and minima of the blocks are 1 and -1 in turn.
    """
    fill = np.array([0x00, 0xFF, 0x0F, 0xF0, 0x33, 0xCC, 0x88, 0x77], np.uint8)
    n_bytes = FORMATS[format_name].n_bytes
    blocks = np.repeat(fill, FORMATS[format_name].row_bytes(cols)).reshape(-1, n_bytes)
    signs = np.where(np.arange(len(blocks)) % 2, -1.0, 1.0)
    data = _with_sizes(blocks, format_name, signs[:, None].repeat(4, axis=1))
    exact = exact_values(data.reshape(-1), format_name).reshape(len(fill), cols)
    return Matrix(format_name, len(fill), cols, data.reshape(-1)), exact.astype(np.float64)


def _random_blocks(rng, format_name, sizes):
    """Random bytes, but for the scales of blocks."""
    blocks = rng.integers(0, 256, (len(sizes), FORMATS[format_name].n_bytes), np.uint8)
    return _with_sizes(blocks, format_name, sizes)


def _with_sizes(blocks, format_name, sizes):
    """Set the scales and minima of blocks to sizes, (n, 4), as well as the format can."""
    halves = sizes.astype(np.float16)
    for i, offset in enumerate(HALF_OFFSETS.get(format_name, [])):
        blocks[:, offset : offset + 2] = halves[:, i : i + 1].view(np.uint8)
    if format_name == "IQ1_M":
        for i in range(4):
            nibble = halves[:, 0].view(np.uint16) >> 4 * i & 15
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    elif format_name == "MXFP4":  # a power of two with a bias of 128
        blocks[:, 0] = np.rint(np.log2(np.abs(sizes[:, 0]))) + 128
    elif format_name == "NVFP4":  # four bits of exponent with a bias of 8, three of mantissa
        exponent = np.floor(np.log2(np.abs(sizes)))
        mantissa = np.abs(sizes) / 2**exponent * 8 - 8
        blocks[:, :4] = np.clip(exponent + 8, 0, 15) * 8 + np.floor(mantissa)
    return blocks


def exact_values(data, format_name):
    """Values of stored bytes, float32, as the gguf package reads them, or the format says."""
    if format_name == "F32":
        return data.view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        if format_name == "F16":
            return data.view(np.float16).astype(np.float32)
        if format_name == "F64":
            return data.view(np.float64).astype(np.float32)
        if format_name in ("Q1_0", "Q2_0"):  # unknown to the package's reader
            return _bits_or_pairs(data, {"Q1_0": 1, "Q2_0": 2}[format_name])
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[format_name])
    return values.astype(np.float32).reshape(-1)


def _bits_or_pairs(data, n_bits):
    """An f16 scale, then 16 bytes of numbers of n bits, the lowest first: -1 and 1, or -1 to 2."""
    blocks = data.reshape(-1, 18)
    position = np.arange(0, 128, n_bits)
    number = blocks[:, 2 + position // 8] >> (position % 8).astype(np.uint8) & (2**n_bits - 1)
    factor = np.array([-1, 1] if n_bits == 1 else [-1, 0, 1, 2], np.float32)[number]
    return (blocks[:, :2].copy().view(np.float16).astype(np.float32) * factor).reshape(-1)

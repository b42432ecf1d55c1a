"""Random weight matrices in every format, and their exact values as the gguf package reads them."""

from dataclasses import dataclass

import gguf
import numpy as np

from rml._kernels.block_formats import FORMATS

# Where a block of a format keeps its f16 scales and minima; all other bytes may be anything.
HALF_OFFSETS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q4_K": [0, 2], "Q6_K": [208],
}  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    """A weight matrix as the kernels see it."""

    type: str
    rows: int
    cols: int
    data: np.ndarray


def random_matrix(rng, format_name, rows, cols, scale=0.05):
    """A random matrix, and its exact values, float64."""
    if format_name in HALF_OFFSETS:
        n_bytes = FORMATS[format_name].row_bytes(cols) * rows
        blocks = rng.integers(0, 256, n_bytes, np.uint8).reshape(-1, FORMATS[format_name].n_bytes)
        for offset in HALF_OFFSETS[format_name]:
            halves = (rng.standard_normal(len(blocks)) * scale / 16).astype(np.float16)
            blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
        data = blocks.reshape(-1)
    else:
        values = (rng.standard_normal((rows, cols)) * scale).astype(np.float32)
        kind = gguf.GGMLQuantizationType[format_name]
        data = np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8).reshape(-1)
    exact = exact_values(data, format_name).reshape(rows, cols)
    return Matrix(format_name, rows, cols, data), exact.astype(np.float64)


def exact_values(data, format_name):
    """Values of stored bytes, float32, as the gguf package reads them."""
    if format_name == "F16":
        return data.view(np.float16).astype(np.float32)
    if format_name == "F32":
        return data.view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[format_name])
    return values.astype(np.float32).reshape(-1)

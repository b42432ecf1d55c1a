"""What a problem is, and the parts that several of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rml._kernels import DEFINITIONS
from rml._kernels.block_formats import FORMATS

__all__ = ["Kernels", "Matrix", "Problem", "U", "exact_weights", "random_matrix"]

U = 2.0**-24  # half a unit in the last place of 1: the largest relative rounding of float32

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The functions of one implementation, by name."""

    functions: Mapping[str, Callable[..., None]]

    def __getitem__(self, name: str) -> Callable[..., None]:
        return self.functions[name]


@dataclass(frozen=True, slots=True)
class Problem:
    """A result, what it should be, and how far it may be off.

    Attributes
    ----------
    kernel, case : str
        What was computed.
    got, exact : array
        The result, and the exact value on the same inputs.
    bound : array or float
        Largest distance allowed, for each value or for all.
    """

    kernel: str
    case: str
    got: Array
    exact: Array
    bound: Array | float = 0.0


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix as the kernels see it."""

    type: str
    rows: int
    cols: int
    data: npt.NDArray[np.uint8]


def random_matrix(rng: np.random.Generator, type_name: str, rows: int, cols: int) -> Matrix:
    """Make a matrix of random bytes whose values are neither tiny nor huge."""
    block = FORMATS[type_name]
    n_blocks = rows * cols // block.length
    if block.kind == "float":
        values = rng.standard_normal(n_blocks).astype(np.float32)
        stored: dict[str, Array] = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
            "F64": values.astype(np.float64),
        }
        return Matrix(type_name, rows, cols, stored[type_name].view(np.uint8))
    chosen: list[npt.NDArray[np.uint8]] = []
    while sum(map(len, chosen)) < n_blocks:
        blocks = rng.integers(0, 256, (2 * n_blocks + 64, block.n_bytes), np.uint8)
        with np.errstate(all="ignore"):  # random scales may be infinite or no numbers
            largest = np.abs(_values(blocks.reshape(-1), type_name)).reshape(len(blocks), -1).max(1)
            chosen.append(blocks[(largest > 1e-3) & (largest < 1e3)])
    return Matrix(type_name, rows, cols, np.concatenate(chosen)[:n_blocks].reshape(-1))


def exact_weights(matrix: Matrix) -> npt.NDArray[np.float64]:
    """Values of a matrix, (rows, columns), as the definition reads them."""
    return _values(matrix.data, matrix.type).astype(np.float64).reshape(matrix.rows, matrix.cols)


def _values(data: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    block = FORMATS[type_name]
    values = np.empty(len(data) // block.n_bytes * block.length, np.float32)
    DEFINITIONS["dequantize"](data, type_name, values)
    return values

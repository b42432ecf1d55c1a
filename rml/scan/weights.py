"""Weights that are not finite, and bytes of a file that no tensor has.

Values are expanded a piece at a time, so that memory stays small whatever a tensor's size. In a
quantized format a value is not finite where the scale or minimum of its block is not: one bad scale
makes a whole block bad, and all of it is counted.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rml._kernels import dequantize
from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import WEIGHT_FORMATS
from rml.files import Tensor
from rml.files.small_floats import SMALL_FLOATS
from rml.scan.report import Finding

__all__ = ["not_finite", "number_of_values", "spare_bytes"]

_CHUNK = 1 << 20  # values of a tensor that are expanded at a time, about

_FLOATS: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "C64": np.dtype("<c8")}
_INTEGERS = frozenset("BOOL U8 I8 U16 I16 U32 I32 U64 I64".split())  # noqa: SIM905


def not_finite(tensor: Tensor) -> Finding | None:
    """Look for values of a tensor that are NaN or infinite."""
    nans = infinities = start = 0
    first = -1
    if tensor.type not in WEIGHT_FORMATS | SMALL_FLOATS.keys() | _FLOATS.keys() | _INTEGERS:
        return Finding("weights", tensor.name, f"is stored as {tensor.type}, which cannot be read")
    for chunk in _chunks(tensor):
        finite = np.isfinite(chunk)
        if not finite.all():
            bad = np.flatnonzero(~finite)
            first = start + int(bad[0]) if first < 0 else first
            n_nans = int(np.isnan(chunk[bad]).sum())
            nans, infinities = nans + n_nans, infinities + len(bad) - n_nans
        start += len(chunk)
    if first < 0:
        return None
    place = ", ".join(str(int(i)) for i in np.unravel_index(first, tensor.shape or (1,)))
    return Finding(
        "weights",
        tensor.name,
        f"{nans} values are NaN and {infinities} infinite, of {start} ({tensor.type}), the first "
        f"at [{place}]",
        nans + infinities,
    )


def _chunks(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Values piece by piece, each valid until the next; none of types that are all finite."""
    data = tensor.data
    if tensor.type in _FLOATS:
        dtype = _FLOATS[tensor.type]
        for start in range(0, len(data), _CHUNK * dtype.itemsize):
            yield data[start : start + _CHUNK * dtype.itemsize].view(dtype)
    elif tensor.type in SMALL_FLOATS:
        table = SMALL_FLOATS[tensor.type]
        for start in range(0, len(data), _CHUNK):
            yield table[data[start : start + _CHUNK]]
    elif tensor.type in WEIGHT_FORMATS:
        entry = FORMATS[tensor.type]
        blocks = max(1, _CHUNK // entry.length)
        values = np.empty(blocks * entry.length, np.float32)
        for start in range(0, len(data), blocks * entry.n_bytes):
            piece = data[start : start + blocks * entry.n_bytes]
            n_values = len(piece) // entry.n_bytes * entry.length
            dequantize(piece, tensor.type, values[:n_values])
            yield values[:n_values]


def spare_bytes(tensors: Iterable[Tensor], alignment: int) -> Iterator[Finding]:
    """Look for bytes between and after the tensors of a file that are more than padding.

    No reader looks at them, so that nothing is wrong with the model; but a file can carry anything
    there, another model for example.
    """
    ranges: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for tensor in tensors:
        if tensor.n_bytes:
            ranges[tensor.path].append((tensor.start, tensor.start + tensor.n_bytes))
    for path, taken in ranges.items():
        taken.sort()
        ends = [end for _, end in taken]
        begins = [*(begin for begin, _ in taken[1:]), path.stat().st_size]
        spare = [begin - end for begin, end in zip(begins, ends, strict=True)]
        much = [n for n in spare if n >= alignment]
        if much:
            what = f"{sum(much)} bytes in {len(much)} places belong to no tensor"
            yield Finding("structure", path.name, what, len(much))


def number_of_values(tensors: Iterable[Tensor]) -> int:
    """Values of all tensors together."""
    return sum(math.prod(tensor.shape) for tensor in tensors)

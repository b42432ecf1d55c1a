"""What every kernel accepts: one set of checks for a definition and its twin.

Both call the same function, so they accept and refuse the same arguments with the same words.
Nothing is written before the checks have passed.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rml._kernels.block_formats import FORMATS
from rml._kernels.pages import Pages
from rml._kernels.step import Step
from rml.errors import ArgumentError
from rml.ranges import plain_text, shown

Array = npt.NDArray[Any]

COMPUTE_MODES = ("int8x2", "int8", "f32")
ACTIVATIONS = ("silu", "gelu_tanh")
# Formats that the kernels read. One row of weights in any of them is a whole number of blocks.
FLOAT_FORMATS = ("F32", "F16", "BF16", "F64")
QUANTIZED_FORMATS = (
    "Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
)  # fmt: skip
WEIGHT_FORMATS = frozenset(FLOAT_FORMATS + QUANTIZED_FORMATS)


class Matrix(Protocol):
    """A weight matrix as the kernels see it: stored bytes and what they mean."""

    @property
    def type(self) -> str:
        """Name of the stored format."""

    @property
    def rows(self) -> int:
        """Number of rows, one for each output."""

    @property
    def cols(self) -> int:
        """Number of columns, one for each input."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The rows one after another, uint8, at any alignment."""


def array(
    name: str,
    value: object,
    shape: Sequence[int | None],
    dtype: npt.DTypeLike = np.float32,
    *,
    writable: bool = False,
) -> None:
    """Require a C-contiguous array.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        What the caller gave.
    shape : sequence of int or None
        Expected shape; None stands for any length.
    dtype : numpy dtype
        Expected type, exactly: nothing is converted, since a converted copy of an output would
        be lost.
    writable : bool
        Whether the kernel writes to it.

    Raises
    ------
    ArgumentError
        If the array differs in type, shape, layout or writability.
    """
    # A plan for a prompt of a new length asks this a thousand times, so what is right passes fast.
    if not isinstance(value, np.ndarray):
        raise ArgumentError(f"{name} is {type(value).__name__}, but a numpy array is needed")
    wanted = _DTYPES.get(dtype)
    if wanted is None:
        wanted = np.dtype(dtype)
    if value.dtype is not wanted and value.dtype != wanted:
        raise ArgumentError(f"{name} is {value.dtype}, but {wanted} is needed")
    if value.shape != shape and not _fits(value.shape, shape):
        text = ", ".join("any" if n is None else str(n) for n in shape)
        raise ArgumentError(f"{name} has shape {value.shape}, but ({text}) is needed")
    flags = value.flags
    if not flags.c_contiguous:
        raise ArgumentError(f"{name} is not C-contiguous")
    if writable and not flags.writeable:
        raise ArgumentError(f"{name} is read-only, but the kernel writes to it")


_DTYPES: dict[object, np.dtype[Any]] = {
    kind: np.dtype(kind)
    for kind in (np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64)
}


_PAGE_DTYPES = tuple(_DTYPES[kind] for kind in (np.float16, np.int8, np.float32))


def _fits(have: Sequence[int], want: Sequence[int | None]) -> bool:
    if len(have) != len(want):
        return False
    for n, wanted in zip(have, want, strict=True):  # a generator takes twice as long
        if wanted is not None and n != wanted:
            return False
    return True


def rms_norm(x: Array, weight: Array, out: Array, eps: float, rows: Array | None) -> None:
    """Check the arguments of `rms_norm`, except which rows there are."""
    array("x", x, (None, None))
    array("weight", weight, (x.shape[1],))
    if rows is None:
        array("out", out, x.shape, writable=True)
    else:
        array("rows", rows, (None,), np.int32)
        array("out", out, (len(rows), x.shape[1]), writable=True)
    if not eps > 0:
        raise ArgumentError(f"eps is {eps}, but must be positive")


def row_numbers(rows: Array, n: int) -> None:
    """Require that every number is that of one of `n` rows."""
    for row in rows:
        if not 0 <= row < n:
            raise ArgumentError(f"row {row} is asked for, but there are {n}")


def known_format(format_name: str) -> None:
    """Require a format that the kernels read."""
    if not isinstance(format_name, str) or plain_text(format_name) not in WEIGHT_FORMATS:
        known = ", ".join(sorted(WEIGHT_FORMATS))
        raise ArgumentError(
            f"format {shown(format_name)} is not a weight format; known are {known}"
        )


def matrix(name: str, weight: Matrix) -> None:
    """Require a weight matrix whose bytes are exactly its rows."""
    known_format(weight.type)
    entry = FORMATS[weight.type]
    if weight.rows < 1 or weight.cols < 1 or weight.cols % entry.length:
        raise ArgumentError(
            f"{name} is {weight.rows} x {weight.cols} {weight.type}, but rows must be one or more "
            f"and columns whole blocks of {entry.length}"
        )
    array(f"{name}.data", weight.data, (weight.rows * entry.row_bytes(weight.cols),), np.uint8)


def dequantize(data: Array, format_name: str, out: Array) -> None:
    """Check the arguments of `dequantize`."""
    known_format(format_name)
    array("data", data, (None,), np.uint8)
    entry = FORMATS[format_name]
    blocks, rest = divmod(data.shape[0], entry.n_bytes)
    if rest:
        raise ArgumentError(
            f"data has {data.shape[0]} bytes, no whole number of {format_name} blocks "
            f"of {entry.n_bytes}"
        )
    array("out", out, (blocks * entry.length,), writable=True)


def embed(ids: Array, weight: Matrix, out: Array) -> None:
    """Check the arguments of `embed`."""
    matrix("weight", weight)
    array("ids", ids, (None,), np.int32)
    array("out", out, (ids.shape[0], weight.cols), writable=True)
    if ids.size and not (ids.min() >= 0 and ids.max() < weight.rows):
        raise ArgumentError(
            f"ids hold {ids.min()} to {ids.max()}, but rows are 0 to {weight.rows - 1}"
        )


def compute_mode(compute: str) -> None:
    """Require a known way of multiplying."""
    if compute not in COMPUTE_MODES:
        raise ArgumentError(
            f"compute is {compute!r}, but must be one of {', '.join(COMPUTE_MODES)}"
        )


def known_activation(activation: str) -> None:
    """Require a known activation of a gate."""
    if activation not in ACTIVATIONS:
        raise ArgumentError(
            f"activation is {activation!r}, but must be one of {', '.join(ACTIVATIONS)}"
        )


def matmul_many(
    x: Array,
    weights: Sequence[Matrix],
    outs: Sequence[Array],
    biases: Sequence[Array | None] | None,
    compute: str,
) -> None:
    """Check the arguments of `matmul_many`."""
    compute_mode(compute)
    array("x", x, (None, None))
    if not weights or len(outs) != len(weights):
        raise ArgumentError(
            f"{len(weights)} weights and {len(outs)} outs; as many of each are needed"
        )
    if biases is not None and len(biases) != len(weights):
        raise ArgumentError(
            f"{len(weights)} weights and {len(biases)} biases, but one each is needed"
        )
    for i, (weight, out) in enumerate(zip(weights, outs, strict=True)):
        _product(f"weights[{i}]", weight, x)
        array(f"outs[{i}]", out, (x.shape[0], weight.rows), writable=True)
        if biases is not None and biases[i] is not None:
            array(f"biases[{i}]", biases[i], (weight.rows,))


def matmul_glu(
    x: Array, gate: Matrix, up: Matrix, out: Array, activation: str, compute: str
) -> None:
    """Check the arguments of `matmul_glu`."""
    compute_mode(compute)
    known_activation(activation)
    array("x", x, (None, None))
    _product("gate", gate, x)
    _product("up", up, x)
    if gate.rows != up.rows:
        raise ArgumentError(f"gate has {gate.rows} rows and up {up.rows}, but they must be equal")
    array("out", out, (x.shape[0], gate.rows), writable=True)


def accumulate(h: Array, weight: Matrix, x: Array, compute: str) -> None:
    """Check the arguments of `accumulate`."""
    compute_mode(compute)
    array("h", h, (None, None))
    _product("weight", weight, h)
    array("x", x, (h.shape[0], weight.rows), writable=True)


def _product(name: str, weight: Matrix, x: Array) -> None:
    matrix(name, weight)
    if weight.cols != x.shape[1]:
        raise ArgumentError(f"{name} has {weight.cols} columns, but the input has {x.shape[1]}")


def add(branch: Array, x: Array) -> None:
    """Check the arguments of `add`."""
    array("x", x, (None, None), writable=True)
    array("branch", branch, x.shape)


def rope_angles(positions: Array, inv_freq: Array, cos: Array, sin: Array, factor: float) -> None:
    """Check the arguments of `rope_angles`."""
    array("positions", positions, (None,), np.int64)
    array("inv_freq", inv_freq, (None,), np.float64)
    array("cos", cos, (len(positions), len(inv_freq)), writable=True)
    array("sin", sin, cos.shape, writable=True)
    if not math.isfinite(factor):
        raise ArgumentError(f"factor is {factor}, but must be a finite number")


def rotate(cos: Array, sin: Array, x: Array) -> None:
    """Check the arguments of `rotate`."""
    array("x", x, (None, None, None), writable=True)
    if x.shape[2] % 2:
        raise ArgumentError(f"x has {x.shape[2]} dimensions a head, but pairs need an even number")
    array("cos", cos, (x.shape[0], x.shape[2] // 2))
    array("sin", sin, cos.shape)


def _paged(n_rows: int, head_dim: int, pages: Pages, step: Step, layer: int) -> None:
    """Check pages and step against each other and against the rows of a kernel."""
    for name, value, kind in (("pages", pages, Pages), ("step", step, Step)):
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} is {type(value).__name__}, but {kind.__name__} is needed")
    if head_dim != pages.head_dim:
        raise ArgumentError(
            f"a head has {head_dim} dimensions, but those of the pages {pages.head_dim}"
        )
    if n_rows < step.n_rows:
        raise ArgumentError(f"the step has {step.n_rows} rows, but the arrays {n_rows}")
    if not 0 <= layer < pages.n_layers:
        raise ArgumentError(f"layer is {layer}, but the pages have {pages.n_layers}")


def store_kv(k: Array, v: Array, pages: Pages, step: Step, layer: int) -> None:
    """Check the arguments of `store_kv`, except where the page tables lead."""
    array("k", k, (None, None, None))
    array("v", v, k.shape)
    _paged(k.shape[0], k.shape[2], pages, step, layer)
    if k.shape[1] != pages.n_kv_heads:
        raise ArgumentError(f"k has {k.shape[1]} heads, but the pages {pages.n_kv_heads}")
    if not pages.writable:
        raise ArgumentError("the pages are read-only")


def attend(
    q: Array, pages: Pages, step: Step, out: Array, layer: int, scale: float, window: int
) -> None:
    """Check the arguments of `attend`, except where the page tables lead."""
    array("q", q, (None, None, None))
    _paged(q.shape[0], q.shape[2], pages, step, layer)
    array("out", out, q.shape, writable=True)
    heads, kv_heads = q.shape[1], pages.n_kv_heads
    if not heads or heads % kv_heads:
        raise ArgumentError(f"{heads} query heads cannot share {kv_heads} kv heads evenly")
    if not math.isfinite(scale):
        raise ArgumentError(f"scale is {scale}, but must be a finite number")
    if window < 0:
        raise ArgumentError(f"window is {window}, but cannot be negative")


def route(scores: Array, ids: Array, weights: Array) -> None:
    """Check the arguments of `route`."""
    array("scores", scores, (None, None))
    array("ids", ids, (scores.shape[0], None), np.int32, writable=True)
    array("weights", weights, ids.shape, writable=True)
    if not 1 <= ids.shape[1] <= scores.shape[1]:
        raise ArgumentError(
            f"{ids.shape[1]} of {scores.shape[1]} experts are asked for; at least one and at most "
            "all can be chosen"
        )


def mix_experts(
    x: Array,
    gates: Sequence[Matrix],
    ups: Sequence[Matrix],
    downs: Sequence[Matrix],
    ids: Array,
    weights: Array,
    out: Array,
    activation: str,
    compute: str,
) -> None:
    """Check the arguments of `mix_experts`, except which experts the ids are."""
    compute_mode(compute)
    known_activation(activation)
    array("x", x, (None, None))
    if not gates or not len(gates) == len(ups) == len(downs):
        raise ArgumentError(
            f"{len(gates)} gates, {len(ups)} ups and {len(downs)} downs; as many of each, and at "
            "least one, are needed"
        )
    n_hidden, n_out = gates[0].rows, downs[0].rows
    for name, matrices, rows, cols in (
        ("gates", gates, n_hidden, x.shape[1]),
        ("ups", ups, n_hidden, x.shape[1]),
        ("downs", downs, n_out, n_hidden),
    ):
        for i, weight in enumerate(matrices):
            matrix(f"{name}[{i}]", weight)
            if (weight.rows, weight.cols) != (rows, cols):
                raise ArgumentError(
                    f"{name}[{i}] is {weight.rows} x {weight.cols}, but {rows} x {cols} is needed"
                )
    array("ids", ids, (x.shape[0], None), np.int32)
    array("weights", weights, ids.shape)
    array("out", out, (x.shape[0], n_out), writable=True)


def expert_ids(ids: Array, n_experts: int) -> None:
    """Require ids of experts. They change from step to step, so this is asked at every call."""
    if ids.size and not (ids.min() >= 0 and ids.max() < n_experts):
        raise ArgumentError(
            f"ids hold {ids.min()} to {ids.max()}, but experts are 0 to {n_experts - 1}"
        )

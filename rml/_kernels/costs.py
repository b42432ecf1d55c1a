"""What a call of a kernel costs at least, counted from its arguments.

Counted are bytes of weights, keys and values that must be read, and multiplications that must be
made. Vectors of a step are not: they stay in the processor's caches. Each function has the
arguments of its kernel, as many as it needs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import QUANTIZED_FORMATS, Matrix
from rml._kernels.pages import Pages
from rml._kernels.step import Step

__all__ = [
    "Cost",
    "accumulate",
    "attend",
    "embed",
    "matmul_glu",
    "matmul_many",
    "mix_experts",
    "nothing",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call needs.

    Attributes
    ----------
    weight_bytes : int
        Stored bytes of the weights that are read.
    cache_bytes : int
        Bytes of the keys and values that are read.
    quantized_products : int
        Multiplications with weights in quantized blocks, made as `compute` says.
    float_products : int
        All others.
    """

    weight_bytes: int = 0
    cache_bytes: int = 0
    quantized_products: int = 0
    float_products: int = 0


def nothing(*_: object, **__: object) -> Cost:
    """Vectors alone."""
    return Cost()


def embed(ids: Array, weight: Matrix, *_: object, **__: object) -> Cost:
    """Gather: only the rows of the tokens are read."""
    return Cost(weight_bytes=len(ids) * FORMATS[weight.type].row_bytes(weight.cols))


def matmul_many(x: Array, weights: Sequence[Matrix], *_: object, **__: object) -> Cost:
    """Every matrix once, and every row of inputs with every weight."""
    return _products(len(x), weights)


def matmul_glu(x: Array, gate: Matrix, up: Matrix, *_: object, **__: object) -> Cost:
    """As `matmul_many`."""
    return _products(len(x), (gate, up))


def accumulate(h: Array, weight: Matrix, *_: object, **__: object) -> Cost:
    """As `matmul_many`."""
    return _products(len(h), (weight,))


def mix_experts(
    x: Array,  # noqa: ARG001 - the kernel's argument
    gates: Sequence[Matrix],
    ups: Sequence[Matrix],
    downs: Sequence[Matrix],
    ids: Array,
    *_: object,
    **__: object,
) -> Cost:
    """One expert for each choice of a token; no two choices are the same, at most."""
    n_experts, n_choices = len(gates), int(ids.size)
    everything = _products(1, (*gates, *ups, *downs))
    return Cost(
        weight_bytes=everything.weight_bytes * min(n_choices, n_experts) // n_experts,
        quantized_products=everything.quantized_products // n_experts * n_choices,
        float_products=everything.float_products // n_experts * n_choices,
    )


def attend(q: Array, pages: Pages, step: Step, *_: object, window: int = 0, **__: object) -> Cost:
    """Keys and values of a sequence once, however many rows it has; each row with those it sees."""
    read = 0
    for s in range(step.n_sequences):
        rows = step.rows_of(s)
        first, n = int(step.positions[rows.start]), rows.stop - rows.start
        read += first + n - (max(0, first - window + 1) if window else 0)
    positions: list[int] = step.positions[: step.n_rows].tolist()
    seen = sum(min(p + 1, window) if window else p + 1 for p in positions)
    return Cost(
        cache_bytes=read * pages.bytes_per_token // pages.n_layers,
        float_products=2 * q.shape[1] * q.shape[2] * seen,
    )


def _products(n_rows: int, weights: Iterable[Matrix]) -> Cost:
    weight_bytes = 0
    products = {True: 0, False: 0}  # of quantized weights, and of others
    for w in weights:
        weight_bytes += int(w.data.nbytes)
        products[w.type in QUANTIZED_FORMATS] += int(w.rows) * int(w.cols)
    return Cost(
        weight_bytes=weight_bytes,
        quantized_products=products[True] * n_rows,
        float_products=products[False] * n_rows,
    )

"""One record of a plan: which kernel, on what, and what it costs at least.

A plan is recorded for a capacity, and how many rows it computes is counted when it runs: an array
with a row for each row of the step (or for each of its outputs) is recorded as `Counted`.

The cost is counted from the arguments: bytes of weights, keys and values that must be read, and
multiplications that must be made. Vectors of a step are not counted, they stay in the processor's
caches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import QUANTIZED_FORMATS
from rml._kernels.pages import Pages
from rml._kernels.step import Step

__all__ = ["Counted", "Operation"]


@dataclass(frozen=True, slots=True)
class Counted:
    """An array of which a step uses the first rows.

    Attributes
    ----------
    array : ndarray
        As many rows as the step can have.
    counts : (n,) int64
        What is counted, see `Step.counts`.
    which : int
        Which of the counts it is.
    each : int
        Rows of the array for each that is counted.
    """

    array: npt.NDArray[Any]
    counts: npt.NDArray[np.int64]
    which: int
    each: int = 1

    @property
    def now(self) -> npt.NDArray[Any]:
        """The rows in use."""
        return self.array[: int(self.counts[self.which]) * self.each]

    def heads(self, width: int) -> "Counted":
        """Make a row of every `width` numbers."""
        rows = self.array.reshape(-1, width)
        return Counted(rows, self.counts, self.which, self.each * (len(rows) // len(self.array)))

    @property
    def flat(self) -> "Counted":
        """The same rows as vectors."""
        rows = self.array.reshape(len(self.array), -1)
        return Counted(rows, self.counts, self.which, self.each)


@dataclass(frozen=True, slots=True)
class Operation:
    """One record of a plan.

    Attributes
    ----------
    kernel : str
        Name of the kernel, a key of ``rml._kernels.KERNELS``.
    label : str
        What it is in the model, e.g. ``"layer 3: query, key, value"``.
    args, kwargs : tuple, dict
        What the kernel is called with.
    """

    kernel: str
    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, kernel: Any, *, whole: bool = False) -> Any:  # noqa: ANN401 - any kernel
        """Call `kernel` with the rows in use, or (to record it once) with `whole` arrays."""
        kwargs = {name: _resolved(value, whole) for name, value in self.kwargs.items()}
        return kernel(*_resolved(self.args, whole), **kwargs)

    @property
    def count(self) -> tuple[npt.NDArray[np.int64], int, int] | None:
        """What says how many rows there are: an array, the place in it, and rows for each."""
        for value in _all(self.args):
            if isinstance(value, Counted):
                return value.counts, value.which, value.each
        return None

    def weights(self) -> Iterator[Any]:
        """All weight matrices among the arguments."""
        for item in _all(self.args):
            if hasattr(item, "rows") and hasattr(item, "type"):
                yield item

    @property
    def kind(self) -> str:
        """The label without the layer: what equal operations of all layers have in common."""
        return self.label.split(": ", 1)[-1]

    @property
    def weight_bytes(self) -> int:
        """Stored bytes of the weights that the operation multiplies, with experts at most."""
        if self.kernel == "embed":  # a gather: only the rows of the tokens are read
            ids, weight = _resolved(self.args[:2], False)
            return len(ids) * FORMATS[weight.type].row_bytes(weight.cols)
        total = sum(int(w.data.nbytes) for w in self.weights())
        if self.kernel == "mix_experts":  # each choice of a token needs one expert
            n_experts, n_choices = len(self.args[1]), int(_resolved(self.args[4], False).size)
            return total * min(n_choices, n_experts) // n_experts
        return total

    @property
    def n_bytes(self) -> int:
        """Bytes that must be read: weights, and keys and values in the cache as it is now."""
        return self.weight_bytes + self._cache_bytes()

    @property
    def products(self) -> int:
        """Multiplications: of weights with inputs, of queries with keys, of weights with values."""
        return sum(self.products_by_kind.values())

    @property
    def products_by_kind(self) -> dict[str, int]:
        """Multiplications of integers (``"int8"``, ``"int8x2"``) and of others (``"f32"``)."""
        compute = self.kwargs.get("compute", "int8x2")  # of quantized weights
        by_kind = {"f32": self._products(quantized=False)}
        by_kind[compute] = by_kind.get(compute, 0) + self._products(quantized=True)
        return by_kind

    def _products(self, *, quantized: bool) -> int:
        """Multiplications with weights in quantized blocks, or all others."""
        if self.kernel == "embed":
            return 0
        if self.kernel == "attend":
            q = _resolved(self.args[0], True)
            return 0 if quantized else 2 * q.shape[1] * q.shape[2] * sum(self._keys_seen())
        n = sum(
            int(w.rows) * int(w.cols)
            for w in self.weights()
            if (w.type in QUANTIZED_FORMATS) == quantized
        )
        if self.kernel == "mix_experts":
            return n // len(self.args[1]) * int(_resolved(self.args[4], False).size)
        return n * len(_resolved(self.args[0], False))

    def _keys_seen(self) -> list[int]:
        """How many positions each row of an attention sees."""
        step: Step = self.args[2]
        positions: list[int] = step.positions[: step.n_rows].tolist()
        window = self.kwargs.get("window", 0)
        return [min(p + 1, window) if window else p + 1 for p in positions]

    def _cache_bytes(self) -> int:
        """Bytes of the keys and values that an attention reads."""
        if self.kernel != "attend":
            return 0
        pages: Pages = self.args[1]
        step: Step = self.args[2]
        window = self.kwargs.get("window", 0)
        read = 0
        for s in range(step.n_sequences):
            rows = step.rows_of(s)
            first, n = int(step.positions[rows.start]), rows.stop - rows.start
            read += first + n - (max(0, first - window + 1) if window else 0)
        return read * pages.bytes_per_token // pages.n_layers

    def describe(self) -> str:
        """Render kernel, shapes and types on one line."""
        return f"{self.kernel:<12} {self.label:<34} {', '.join(_shapes(self.args))}"


def _all(values: tuple[Any, ...]) -> Iterator[Any]:
    """All values, those in lists one by one."""
    for value in values:
        yield from value if isinstance(value, list | tuple) else (value,)


def _resolved(value: Any, whole: bool) -> Any:  # noqa: ANN401 - any argument
    if isinstance(value, Counted):
        return value.array if whole else value.now
    if isinstance(value, list | tuple):
        return type(value)(_resolved(item, whole) for item in value)
    return value


def _shapes(values: tuple[Any, ...] | list[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Counted):
            yield from _shapes([value.now])
        elif isinstance(value, np.ndarray):
            yield f"{value.dtype}{list(value.shape)}"
        elif isinstance(value, list | tuple):
            for text, same in groupby(_shapes(value)):  # the matrices of many experts are one
                n = len(list(same))
                yield text if n == 1 else f"{n} x {text}"
        elif hasattr(value, "rows"):
            yield f"{value.type}[{value.rows}, {value.cols}]"

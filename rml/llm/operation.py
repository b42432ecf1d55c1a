"""One record of a plan: which kernel, on what, and what it costs at least.

A plan is recorded for a capacity, and how many rows it computes is counted when it runs: an array
with a row for each row of the step (or for each of its outputs) is recorded as `Counted`.

What it costs is counted from the arguments, as the kernel's entry in the registry says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rml._kernels import OPERATIONS, REGISTRY
from rml._kernels.costs import Cost

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
        Name of the kernel, a key of ``rml._kernels.REGISTRY`` whose entry has an operation.
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

    def needs(self, n_rows: int, n_outputs: int) -> tuple[int, int, int]:
        """Memory that it needs when it is compiled and runs; nothing in reference mode.

        Parameters
        ----------
        n_rows, n_outputs : int
            Rows and outputs of the step.

        Returns
        -------
        records, shared, per_thread : int
            Bytes of its records, of scratch memory for all threads, and for each.
        """
        if self.kernel not in OPERATIONS:
            return 0, 0, 0
        found = next((x for x in _all(self.args) if isinstance(x, Counted)), None)
        n = 0 if found is None else (n_rows, n_outputs)[found.which] * found.each
        needed = OPERATIONS[self.kernel].needs
        records, shared, per_thread = self.call(partial(needed, n), whole=True)
        return records, shared, per_thread

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
    def cost(self) -> Cost:
        """What it costs now, with the rows that the step has."""
        operation = REGISTRY[self.kernel].operation
        if operation is None:
            raise TypeError(f"{self.kernel} is no operation of a plan")
        return self.call(operation.cost)  # type: ignore[no-any-return]

    @property
    def weight_bytes(self) -> int:
        """Stored bytes of the weights that the operation multiplies, with experts at most."""
        return self.cost.weight_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes that must be read: weights, and keys and values in the cache as it is now."""
        cost = self.cost
        return cost.weight_bytes + cost.cache_bytes

    @property
    def products(self) -> int:
        """Multiplications: of weights with inputs, of queries with keys, of weights with values."""
        return sum(self.products_by_kind.values())

    @property
    def products_by_kind(self) -> dict[str, int]:
        """Multiplications of integers (``"int8"``, ``"int8x2"``) and of others (``"f32"``)."""
        compute, cost = self.kwargs.get("compute", "int8x2"), self.cost  # of quantized weights
        by_kind = {"f32": cost.float_products}
        by_kind[compute] = by_kind.get(compute, 0) + cost.quantized_products
        return by_kind

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

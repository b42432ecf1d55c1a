"""One record of a plan: which kernel, on what, and what it costs at least.

The cost is counted from the arguments: bytes of weights, keys and values that must be read, and
multiplications that must be made. Vectors of a step are not counted, they stay in the processor's
caches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import QUANTIZED_FORMATS

__all__ = ["Operation"]


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

    def weights(self) -> Iterator[Any]:
        """All weight matrices among the arguments."""
        for value in self.args:
            for item in value if isinstance(value, list | tuple) else (value,):
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
            ids, weight = self.args[:2]
            return len(ids) * FORMATS[weight.type].row_bytes(weight.cols)
        total = sum(int(w.data.nbytes) for w in self.weights())
        if self.kernel == "mix_experts":  # each choice of a token needs one expert
            n_experts, n_choices = len(self.args[1]), int(self.args[4].size)
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
            q = self.args[0]
            return 0 if quantized else 2 * q.shape[1] * q.shape[2] * sum(self._keys_seen())
        n = sum(
            int(w.rows) * int(w.cols)
            for w in self.weights()
            if (w.type in QUANTIZED_FORMATS) == quantized
        )
        if self.kernel == "mix_experts":
            return n // len(self.args[1]) * int(self.args[4].size)
        return n * len(self.args[0])

    def _keys_seen(self) -> list[int]:
        """How many positions each token of an attention sees."""
        first, n = int(self.args[4][0]), len(self.args[0])
        window = self.kwargs.get("window", 0) or first + n
        return [min(position + 1, window) for position in range(first, first + n)]

    def _cache_bytes(self) -> int:
        if self.kernel != "attend":
            return 0
        first, n = int(self.args[4][0]), len(self.args[0])
        window = self.kwargs.get("window", 0) or first + n
        read = first + n - max(0, first - window + 1)
        per_position = 0  # of keys, values and their scales
        for pages in (*self.args[1:3], self.kwargs.get("k_scales"), self.kwargs.get("v_scales")):
            if pages is not None:  # (n_pages, n_layers, G, ...) with 16 positions a page
                per_position += pages[0, 0].nbytes // 16
        return read * per_position

    def describe(self) -> str:
        """Render kernel, shapes and types on one line."""
        return f"{self.kernel:<12} {self.label:<34} {', '.join(_shapes(self.args))}"


def _shapes(values: tuple[Any, ...] | list[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, np.ndarray):
            yield f"{value.dtype}{list(value.shape)}"
        elif isinstance(value, list | tuple):
            for text, same in groupby(_shapes(value)):  # the matrices of many experts are one
                n = len(list(same))
                yield text if n == 1 else f"{n} x {text}"
        elif hasattr(value, "rows"):
            yield f"{value.type}[{value.rows}, {value.cols}]"

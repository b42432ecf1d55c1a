"""A step of the decoder as a list of operations: recorded once, run at every step.

The recipe in `decoder` is readable Python that records what it would compute: a kernel, the arrays
it reads and writes, its settings. What changes from step to step (token ids, the position, the page
table) is read from small arrays that the records share, so a plan recorded for one number of tokens
serves every step of that size.

Two executors run the same records. With compiled kernels the whole list is one call without Python
in between; in reference mode (``RML_PURE=1``) each record calls its definition, and `Plan.run` is
the place to look at what a model computes.
"""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.block_formats import FORMATS
from rml._kernels.threads import running_threads

__all__ = ["Aborted", "Operation", "Plan", "Timing"]

# One computation at a time in a process: two teams of threads on the same processors are slower
# than one after the other. Held for one step or one part of a prompt.
_engine = threading.RLock()
# A fork waits for the step under way in another thread: a child could never end it.
os.register_at_fork(
    before=_engine.acquire, after_in_parent=_engine.release, after_in_child=_engine.release
)


class Aborted(Exception):  # noqa: N818  (nothing went wrong: somebody asked for it)
    """A step was given up because its abort flag was set; never shown to users."""


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
    def products(self) -> int:
        """Multiplications of weights with inputs."""
        if self.kernel == "embed":
            return 0
        of_a_token = sum(int(w.rows) * int(w.cols) for w in self.weights())
        if self.kernel == "mix_experts":
            of_an_expert = of_a_token // len(self.args[1])
            return of_an_expert * int(self.args[4].size)
        return of_a_token * len(self.args[0])

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


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one operation of a plan, see `Plan.profile`."""

    operation: Operation
    seconds: float

    @property
    def gigabytes_per_second(self) -> float:
        """Rate at which the weights were read."""
        return self.operation.weight_bytes / self.seconds / 1e9

    @property
    def gigaproducts_per_second(self) -> float:
        """Rate of multiplications."""
        return self.operation.products / self.seconds / 1e9


class Plan:
    """Operations in the order in which they run.

    Parameters
    ----------
    n_threads : int
        Threads for every operation; results do not depend on it.
    abort : (1,) int32 array, optional
        Setting it to something else than 0, from any thread, ends a run after the operation
        under way.
    """

    def __init__(self, n_threads: int, abort: npt.NDArray[np.int32] | None = None) -> None:
        self.n_threads = n_threads
        self.operations: list[Operation] = []
        self.abort = np.zeros(1, np.int32) if abort is None else abort
        self._program: Any = None

    def record(self, kernel: str, label: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Append an operation; nothing is computed yet."""
        self.operations.append(Operation(kernel, label, args, kwargs))
        self._program = None

    def run(self) -> bool:
        """Compute all operations in order.

        Returns
        -------
        bool
            False if `abort` was set and the run ended early.
        """
        with _engine:
            if _kernels.TWINS is None:
                return self._run_definitions()
            threads = running_threads(self.n_threads)
            if self._program is None or self._program.n_threads != threads:
                self._program = self._compiled(threads)
            return bool(self._program.run())

    def _run_definitions(self) -> bool:
        for operation in self.operations:
            _kernels.DEFINITIONS[operation.kernel](*operation.args, **operation.kwargs)
            if self.abort[0]:
                return False
        return True

    def _compiled(self, n_threads: int) -> Any:  # noqa: ANN401
        twins: Any = _kernels.TWINS
        ops = [twins.OPS[op.kernel](*op.args, **op.kwargs) for op in self.operations]
        return twins.Program(ops, n_threads, self.abort)

    def profile(self, repeats: int = 5) -> list[Timing]:
        """Time each operation on its own, the best of `repeats` runs.

        The arrays of the plan are overwritten, so a profile belongs between sequences.
        """
        timings = []
        with _engine:
            threads = running_threads(self.n_threads)
            for operation in self.operations:
                call = self._single(operation, threads)
                best = float("inf")
                for _ in range(repeats):
                    start = time.perf_counter()
                    call()
                    best = min(best, time.perf_counter() - start)
                timings.append(Timing(operation, best))
        return timings

    def _single(self, operation: Operation, n_threads: int) -> Any:  # noqa: ANN401
        if _kernels.TWINS is None:
            kernel = _kernels.DEFINITIONS[operation.kernel]
            return lambda: kernel(*operation.args, **operation.kwargs)
        op = _kernels.TWINS.OPS[operation.kernel](*operation.args, **operation.kwargs)
        return lambda: op.run(n_threads)

    def __len__(self) -> int:
        return len(self.operations)

    def __str__(self) -> str:
        lines = [f"{i:>4}  {op.describe()}" for i, op in enumerate(self.operations)]
        total = sum(op.weight_bytes for op in self.operations)
        return "\n".join([*lines, f"{len(self)} operations, {total / 1e6:.1f} MB of weights"])

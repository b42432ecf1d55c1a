"""A step of the decoder as a list of operations: recorded once, run at every step.

The recipe in `recipe` is readable Python that records what it would compute: a kernel, the arrays
it reads and writes, its settings. What changes from step to step (token ids, positions, page
tables, how many rows there are) is read from the arrays of a `Step`, so a plan serves every step
that its arrays have room for.

Two executors run the same records. With compiled kernels the whole list is one call without Python
in between; in reference mode (``RML_PURE=1``) each record calls its definition, and `Plan.run` is
the place to look at what a model computes.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.threads import running_threads
from rml.errors import ArgumentError
from rml.limits import Limits
from rml.llm.operation import Operation
from rml.llm.profile import Profile, Timing
from rml.ranges import checked, integer

__all__ = ["RUNNING", "Aborted", "Plan"]

# One computation at a time in a process: two teams of threads on the same processors are slower
# than one after the other. Held for one step or one part of a prompt.
RUNNING = threading.RLock()
# A fork waits for the step under way in another thread: a child could never end it.
os.register_at_fork(
    before=RUNNING.acquire, after_in_parent=RUNNING.release, after_in_child=RUNNING.release
)


class Aborted(Exception):  # noqa: N818  (nothing went wrong: somebody asked for it)
    """A step was given up because its abort flag was set; never shown to users."""


class Plan:
    """Operations in the order in which they run.

    Parameters
    ----------
    n_threads : int
        Threads for every operation; results do not depend on it.
    abort : (1,) int32 array, optional
        Setting it to something else than 0, from any thread, ends a run after the operation
        under way.
    checks : sequence of callables
        Called before each run; they raise if the step cannot be computed. The operations of a plan
        do not ask again.
    """

    def __init__(
        self,
        n_threads: int,
        abort: npt.NDArray[np.int32] | None = None,
        checks: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.n_threads = n_threads
        self.operations: list[Operation] = []
        self.checks = list(checks)
        self.abort = np.zeros(1, np.int32) if abort is None else abort
        self.kept_alive: object = None  # what the arrays of the records stand for
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
        with RUNNING:
            self._check()
            if _kernels.TWINS is None:
                return self._run_definitions()
            threads = running_threads(self.n_threads)
            if self._program is None or self._program.n_threads != threads:
                self._program = self._compiled(threads, self.abort)
            return bool(self._program.run())

    def _check(self) -> None:
        for check in self.checks:
            check()

    def _run_definitions(self) -> bool:
        for operation in self.operations:
            operation.call(_kernels.KERNELS[operation.kernel])
            if self.abort[0]:
                return False
        return True

    def _compiled(self, n_threads: int, abort: npt.NDArray[np.int32]) -> Any:  # noqa: ANN401
        twins: Any = _kernels.TWINS
        ops = [op.call(_kernels.OPERATIONS[op.kernel], whole=True) for op in self.operations]
        return twins.Program(ops, n_threads, abort, [op.count for op in self.operations])

    @property
    def nbytes(self) -> int:
        """Bytes of the compiled records; 0 before the first run, and in reference mode."""
        return 0 if self._program is None else int(self._program.nbytes)

    def profile(self, repeats: int = 5, limits: Limits | None = None) -> Profile:
        """Run all operations in order and time each; the fastest of `repeats` runs counts.

        In a run as in a real step, an operation's weights come from where the others have left
        them: a small matrix that is alone read again and again would seem faster than it is.

        Parameters
        ----------
        repeats : int
            Runs.
        limits : Limits, optional
            What the machine can do with as many threads, from `rml.limits.measure`; without them
            no timing knows its share of the limit.

        Returns
        -------
        Profile
            A list with the `Timing` of each operation; ``print`` shows it as a table.

        Raises
        ------
        ArgumentError
            If `repeats` is less than 1.

        Notes
        -----
        The arrays of the plan are overwritten, so a profile belongs between sequences. `abort` is
        not looked at.
        """
        repeats = checked("repeats", repeats, integer(1))
        best, seconds = float("inf"), np.zeros(len(self))
        with RUNNING:
            self._check()
            run = self._timed_run()
            for _ in range(repeats):
                start = time.perf_counter()
                times = run()
                whole = time.perf_counter() - start
                if whole < best:
                    best, seconds = whole, times.copy()
            timings = [
                Timing.of(operation, float(t), limits)
                for operation, t in zip(self.operations, seconds, strict=True)
            ]
        return Profile(timings, best, limits)

    def _timed_run(self) -> Callable[[], npt.NDArray[np.float64]]:
        """Return what runs all operations and returns the seconds of each, (n,)."""
        seconds = np.zeros(len(self))
        if _kernels.TWINS is not None:
            program = self._compiled(running_threads(self.n_threads), np.zeros(1, np.int32))

            def run() -> npt.NDArray[np.float64]:
                program.run(seconds)
                return seconds
        else:

            def run() -> npt.NDArray[np.float64]:
                for i, operation in enumerate(self.operations):
                    start = time.perf_counter()
                    operation.call(_kernels.KERNELS[operation.kernel])
                    seconds[i] = time.perf_counter() - start
                return seconds

        return run

    def __reduce__(self) -> NoReturn:
        raise ArgumentError("a Plan is neither pickled nor copied: it holds addresses; record anew")

    def __len__(self) -> int:
        return len(self.operations)

    def __str__(self) -> str:
        lines = [f"{i:>4}  {op.describe()}" for i, op in enumerate(self.operations)]
        total = sum(op.weight_bytes for op in self.operations)
        return "\n".join([*lines, f"{len(self)} operations, {total / 1e6:.1f} MB of weights"])

"""Running steps of a model: tokens of any sequences in, rows of logits out.

An evaluator belongs to a decoder and to the pages that keep its keys and values. What is computed
is in `recipe`, which records operations into a `Plan` once for each of a few capacities; the plan
is run for every step that its arrays have room for.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rml._kernels.pages import Pages
from rml._kernels.step import Step
from rml.llm.plan import Aborted, Plan
from rml.llm.recipe import Recipe
from rml.llm.workspace import CAPACITIES, Workspace

__all__ = ["Evaluator"]

F32 = npt.NDArray[np.float32]


class Evaluator:
    """Runs one step at a time: `begin`, fill the step, `run`, read the logits.

    Parameters
    ----------
    recipe : Recipe
        The model.
    pages : sequence of Pages
        One for each group of layers.
    require_weights : callable
        Called before and after each step; raises if the weights are gone or were changed.

    Attributes
    ----------
    pages : list of Pages
        As given.
    abort : (1,) int32
        Set to 1, from any thread, it ends a step after the operation under way.
    """

    def __init__(
        self, recipe: Recipe, pages: Sequence[Pages], require_weights: Callable[[], None]
    ) -> None:
        self.pages = list(pages)
        self.abort = np.zeros(1, np.int32)
        self._recipe = recipe
        self._require_weights = require_weights
        self._workspaces: dict[int, Workspace] = {}
        self._now: Workspace | None = None

    def begin(self, n_rows: int) -> Step:
        """Return an empty step that has room for `n_rows`, at most the largest of `CAPACITIES`."""
        self._require_weights()
        capacity = CAPACITIES[bisect_left(CAPACITIES, n_rows)]
        w = self._workspaces.get(capacity)
        if w is None:
            w = Workspace(self._recipe.config, capacity, n_groups=len(self.pages))
            self._workspaces[capacity] = w
        self._now = w
        w.step.clear()
        return w.step

    def run(self) -> None:
        """Compute the step, and the logits of the rows that are wanted.

        Raises
        ------
        ArgumentError
            If an id is outside the vocabulary, or a page table leads nowhere.
        Aborted
            If `abort` was set before or during the run.
        CheckpointError
            If the weights were changed meanwhile, so that the result is worth nothing.
        """
        plan = self.plan()
        if self.abort[0] or not plan.run():
            raise Aborted
        self._require_weights()

    def plan(self) -> Plan:
        """Operations of the step that was begun, to look at or to profile."""
        w = self._workspace
        if w.plan is None:
            w.plan = self._recipe.step(w, self.pages, self.abort)
        return w.plan

    @property
    def logits(self) -> Sequence[F32]:
        """Logits of the rows that were wanted, (V,) each; the next step overwrites them."""
        return self._workspace.logits_rows

    def logits_of(self, start: int, stop: int, out: F32) -> None:
        """Write logits of the rows ``start <= row < stop`` of the step that has run.

        Parameters
        ----------
        start, stop : int
            Rows, whether or not their logits were wanted.
        out : (stop - start, V) float32
            Result.
        """
        w = self._workspace
        for first in range(start, stop, len(w.step.outputs)):
            last = min(stop, first + len(w.step.outputs))
            w.step.want_range(first, last)
            if w.head_plan is None:
                w.head_plan = self._recipe.head_alone(w)
            w.head_plan.run()
            self._require_weights()
            out[first - start : last - start] = w.logits[: last - first]

    def states_of(self, start: int, stop: int, out: F32) -> None:
        """Write the states of rows after the last layer and its norm, (stop - start, D)."""
        self._recipe.normed(self._workspace, start, stop, out).run()

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all arrays, of plans, and of the scratch memory that steps needed so far."""
        return self.abort.nbytes + sum(w.nbytes for w in self._workspaces.values())

    @property
    def _workspace(self) -> Workspace:
        if self._now is None:
            raise RuntimeError("no step was begun")
        return self._now

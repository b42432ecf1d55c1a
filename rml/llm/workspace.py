"""The arrays of a step of the decoder."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.step import Step
from rml.llm.config import ModelConfig
from rml.llm.operation import Counted
from rml.llm.plan import Plan

__all__ = ["CAPACITIES", "LEAST_OUTPUTS", "MAX_ROWS", "Workspace", "outputs_of"]

F32 = npt.NDArray[np.float32]

MAX_ROWS = 512  # of a step; a longer prompt runs in pieces, with the same bits
CAPACITIES = (1, 32, MAX_ROWS)  # rows that plans are recorded for
# Logits of a step that are held at once: values at most, but always of so many rows.
MOST_LOGITS = 1 << 21
LEAST_OUTPUTS = 32


_TO_A_LINE = 60  # bytes with which any array of float32 can begin at a cache line


def aligned(*shape: int) -> F32:
    """Zeros that begin at a cache line, so that no vector of a row straddles two of them."""
    n = math.prod(shape)
    memory = np.zeros(n + _TO_A_LINE // 4, np.float32)
    start = -memory.ctypes.data // 4 % 16
    return memory[start : start + n].reshape(shape)


def outlined(*shape: int) -> F32:
    """Zeros that take no memory: an outline of what `aligned` makes, to be looked at only."""
    return np.broadcast_to(np.float32(0.0), shape)


def outputs_of(config: ModelConfig, n_rows: int) -> int:
    """Rows of a step whose logits are held at once."""
    return min(n_rows, max(LEAST_OUTPUTS, MOST_LOGITS // config.n_vocab))


class Workspace:
    """Arrays of a step of at most `n_rows` rows, and the plans that use them.

    Parameters
    ----------
    config : ModelConfig
        The model.
    n_rows : int
        Rows at most.
    n_groups : int
        Groups of layers whose pages are apart.
    allocate : bool
        False makes an outline, which takes no memory and can be recorded but not run.

    Attributes
    ----------
    step : Step
        What is computed.
    logits : (n_outputs, V) float32
        Of the rows whose logits are wanted.
    logits_rows : list of (V,) float32
        The same one by one: making a view takes ten microseconds when the caches hold weights.
    """

    def __init__(
        self, config: ModelConfig, n_rows: int, *, n_groups: int = 1, allocate: bool = True
    ) -> None:
        array = aligned if allocate else outlined
        self.n_rows = n_rows
        n_outputs = outputs_of(config, n_rows)
        self.step = Step(n_rows, n_outputs=n_outputs, n_groups=n_groups)
        self.x = array(n_rows, config.d_model)
        self.normed = array(n_rows, config.d_model)
        self.q = array(n_rows, config.n_heads, config.head_dim)
        self.k = array(n_rows, config.n_kv_heads, config.head_dim)
        self.v = array(n_rows, config.n_kv_heads, config.head_dim)
        self.mixed = array(n_rows, config.n_heads, config.head_dim)
        self.branch = array(n_rows if config.sandwich_norms else 0, config.d_model)
        self.hidden = array(n_rows, 0 if config.n_experts else config.d_ffn)
        self.expert_scores = array(n_rows, config.n_experts)
        self.expert_ids = np.zeros((n_rows, config.n_experts_used), np.int32)
        self.expert_weights = array(n_rows, config.n_experts_used)
        self.angles = [
            (array(n_rows, config.head_dim // 2), array(n_rows, config.head_dim // 2))
            for _ in range(2 if config.rope_local_theta is not None else 1)
        ]
        self.logits = array(n_outputs, config.n_vocab)
        self.logits_rows = list(self.logits)
        self.scratch = _kernels.Scratch()
        self.plan: Plan | None = None
        self.head_plan: Plan | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, of the plans' records, and of the scratch memory needed so far.

        Objects of Python, a few hundred bytes an operation, are not counted.
        """
        floats = [x for x in vars(self).values() if isinstance(x, np.ndarray)]
        floats += [x for pair in self.angles for x in pair]
        others = [x for x in vars(self.step).values() if isinstance(x, np.ndarray)]
        total = sum(x.nbytes for x in (*floats, *others))
        total += sum(_TO_A_LINE for x in floats if x.dtype == np.float32)
        plans = [plan for plan in (self.plan, self.head_plan) if plan is not None]
        return total + sum(plan.nbytes for plan in plans) + int(self.scratch.nbytes)

    def rows(self, array: npt.NDArray[Any]) -> Counted:
        """One of the arrays, with as many rows as the step has."""
        return Counted(array, self.step.counts, 0)

    def outputs(self, array: npt.NDArray[Any]) -> Counted:
        """One of the arrays, with as many rows as there are outputs."""
        return Counted(array, self.step.counts, 1)

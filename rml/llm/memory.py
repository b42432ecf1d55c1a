"""What a model costs in memory, before anything is allocated.

The bill has four items: the weights (file pages, shared by all processes that map the file; with
``mmap=False`` a copy of each process's own); the KV cache, which grows with the context; what is
remembered of its positions in lists and tables; and what steps work with: their arrays, the
records of their plans, and the scratch memory of the kernels. To know the last, steps are recorded
as always but with outlines of weights and arrays, and the kernels are asked what they would need.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from rml import _kernels
from rml._kernels.pages import KV_TYPES, PAGE_SIZE, Pages, PageTable, pages_for, scale_group
from rml._kernels.step import Step
from rml._kernels.threads import default_threads
from rml.llm.config import ModelConfig
from rml.llm.recipe import Recipe
from rml.llm.weight_source import Formats, Outline
from rml.llm.workspace import CAPACITIES, MAX_ROWS, Workspace
from rml.ranges import one_of

__all__ = [
    "LIST_BYTES_PER_TOKEN",
    "MemoryBill",
    "Steps",
    "kv_bytes_per_token",
    "largest_context",
    "scratch_bytes",
]

# What Python's objects take for a position: its token in a list, 40 bytes, and a sixteenth of its
# page's entries in the page table, the counts of users, and the tree of beginnings, 45 as measured.
LIST_BYTES_PER_TOKEN = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the memory of steps depends on, beside sizes.

    Attributes
    ----------
    n_sequences : int
        Sequences that are computed together, at most.
    compute : str
        How quantized weights are multiplied.
    n_threads : int or None
        Threads of a step; None: as many as a model gets when nobody says.
    formats : tuple or None
        Formats of the weights, `WeightSource.formats`; None: those that need most.
    """

    n_sequences: int = 1
    compute: str = "int8x2"
    n_threads: int | None = None
    formats: Formats | None = None


_USUAL = Steps()
# Positions beyond which attention's scratch memory is not counted: keys and values alone are too
# much for any machine, and the sizes stay whole numbers of 64 bits.
_LONGEST = 1 << 36


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBill:
    """Bytes that sequences need: one, unless `Steps` says else.

    Attributes
    ----------
    weights : int
        Of the tensors, as stored; where they are no mapped pages but a copy, of the files.
    kv_cache : int
        Of keys and values of all positions of the context, in whole pages.
    lists : int
        Of what is remembered of these positions: tokens, page tables, counts, beginnings.
    scratch : int
        Of what steps work with, see `scratch_bytes`.
    """

    weights: int
    kv_cache: int
    lists: int
    scratch: int

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        *,
        weights: int,
        n_ctx: int,
        kv_type: str,
        n_batch: int,
        steps: Steps = _USUAL,
    ) -> "MemoryBill":
        """Add up the bill of a context of `n_ctx` positions, filled `n_batch` tokens at a time.

        A step has no more than `MAX_ROWS` tokens, however large a batch is.
        """
        positions = steps.n_sequences * pages_for(n_ctx) * PAGE_SIZE
        return cls(
            weights=weights,
            kv_cache=positions * kv_bytes_per_token(config, kv_type),
            lists=positions * LIST_BYTES_PER_TOKEN,
            scratch=scratch_bytes(config, n_batch, n_ctx, steps),
        )

    @property
    def total(self) -> int:
        """All four together."""
        return self.weights + self.kv_cache + self.lists + self.scratch


def kv_bytes_per_token(config: ModelConfig, kv_type: str) -> int:
    """Bytes that one position takes in the cache, keys and values of all layers.

    Parameters
    ----------
    config : ModelConfig
        The model.
    kv_type : str
        ``"f32"``, ``"f16"``, or ``"int8"``, which adds one f32 scale for each group of channels:
        the largest power of two that divides head_dim, at most 32.
    """
    kv_type = one_of("kv_type", kv_type, KV_TYPES)
    row = config.kv_size * np.dtype(KV_TYPES[kv_type]).itemsize
    if kv_type == "int8":
        row += 4 * (config.kv_size // scale_group(config.head_dim))
    return 2 * config.n_layers * row


def scratch_bytes(config: ModelConfig, n_batch: int, n_ctx: int, steps: Steps = _USUAL) -> int:
    """Bytes of what steps work with, when steps of every kind have run.

    These are, for each number of rows that plans are recorded for, the arrays of a step, the
    compiled records of its plans, and the scratch memory of its kernels. That of attention grows
    with the context; counted is what a step needs at its end.

    Parameters
    ----------
    config : ModelConfig
        The model.
    n_batch : int
        Tokens of a prompt that are computed at a time; a step has no more than `MAX_ROWS`.
    n_ctx : int
        Most positions of a sequence.
    steps : Steps
        What else it depends on.
    """
    n_threads = default_threads()[0] if steps.n_threads is None else steps.n_threads
    n_sequences = steps.n_sequences
    n_rows = max(1, min(max(n_batch, n_sequences), n_sequences * n_ctx, MAX_ROWS))
    longest = min(n_ctx, _LONGEST)
    formats = _worst(config) if steps.formats is None else (steps.formats,)
    return max(
        _scratch_bytes(config, each, steps.compute, n_threads, n_rows, n_sequences, longest)
        for each in formats
    )


def _worst(config: ModelConfig) -> tuple[Formats, ...]:
    """List formats of which one needs most: quantized, or not, or with experts of both kinds."""
    if not config.n_experts:
        return _QUANTIZED, _PLAIN
    ups = tuple((f"blk.{i}.ffn_up_exps.weight", ("F32",)) for i in range(config.n_layers))
    return _QUANTIZED, _PLAIN, _QUANTIZED + ups


_QUANTIZED: Formats = (("", ("Q8_0",)),)
_PLAIN: Formats = (("", ("F32",)),)


@lru_cache(maxsize=4096)
def _scratch_bytes(
    config: ModelConfig,
    formats: Formats,
    compute: str,
    n_threads: int,
    n_rows: int,
    n_sequences: int,
    n_ctx: int,
) -> int:
    """As `scratch_bytes`; a search for a context asks again and again."""
    total = np.dtype(np.int32).itemsize  # the flag that aborts
    before = 0
    for capacity in CAPACITIES[: bisect_left(CAPACITIES, n_rows) + 1]:
        recorded = _recorded(config, formats, compute, capacity)
        most = min(capacity, n_rows)
        total += recorded.n_bytes
        total += max(
            recorded.scratch(most, n_threads),
            recorded.attention_scratch(n_threads, before + 1, most, n_sequences, n_ctx),
        )
        before = capacity
    return total


class _Recorded:
    """Plans of a capacity, recorded with outlines.

    Attributes
    ----------
    n_bytes : int
        Of arrays and records, without scratch memory.
    """

    def __init__(self, recipe: Recipe, capacity: int) -> None:
        w = Workspace(recipe.config, capacity, n_groups=len(recipe.groups), allocate=False)
        self._shape = (capacity, len(w.step.outputs), len(recipe.groups))
        pages = [
            Pages(
                len(group.layers), group.n_kv_heads, group.head_dim, "f32",
                n_pages=1, slab_pages=1, group=i,
            )
            for i, group in enumerate(recipe.groups)
        ]  # fmt: skip
        plans = (recipe.step(w, pages, np.zeros(1, np.int32)), recipe.head_alone(w))
        operations = [op for plan in plans for op in plan.operations]
        needs = [op.needs(capacity, len(w.step.outputs)) for op in operations]
        self.n_bytes = w.nbytes + sum(records for records, _, _ in needs)
        if _kernels.TWINS is not None:
            self.n_bytes += sum(_kernels.TWINS.program_bytes(len(plan)) for plan in plans)
        # Of layers that are alike one is enough.
        self._operations = {
            (op.kernel, op.kind, *scratch): op
            for op, (_, *scratch) in zip(operations, needs, strict=True)
            if any(scratch) and op.kernel != "attend"
        }.values()
        self._attends = {
            (id(op.args[1]), op.args[0].array.shape, op.kwargs["window"]): op
            for op in operations
            if op.kernel == "attend"
        }.values()
        self._needs = {capacity: {(shared, each) for _, shared, each in needs}}

    def scratch(self, n_rows: int, n_threads: int) -> int:
        """Bytes for all kernels but attention."""
        if n_rows not in self._needs:
            n_outputs = min(n_rows, self._shape[1])
            self._needs[n_rows] = {op.needs(n_rows, n_outputs)[1:] for op in self._operations}
        return max((shared + n_threads * each for shared, each in self._needs[n_rows]), default=0)

    def attention_scratch(
        self, n_threads: int, least: int, most: int, n_sequences: int, n_ctx: int
    ) -> int:
        """Bytes for attention, of steps of `least` to `most` rows; the worst that can be."""
        if _kernels.TWINS is None:
            return 0
        twin: Any = _kernels.OPERATIONS["attend"]
        worst = 0
        for op in self._attends:
            window = op.kwargs["window"]
            for lengths in _divisions(least, most, n_sequences, n_ctx, twin.few):
                for begin_late in (False, True) if window else (False,):
                    step = self._step(lengths, n_ctx, (window, twin.span) if begin_late else None)
                    _, shared, each = replace(op, args=(*op.args[:2], step, op.args[3])).needs(0, 0)
                    worst = max(worst, shared + n_threads * each)
        return worst

    def _step(self, lengths: list[int], n_ctx: int, late: tuple[int, int] | None) -> Step:
        """Make a step of the last positions.

        With ``late = (window, span)`` they are the last ones whose window begins at the end of a
        span, and so reaches into as many as it can.
        """
        n_rows, n_outputs, n_groups = self._shape
        step = Step(n_rows, n_outputs=n_outputs, n_groups=n_groups)
        tables = [PageTable()] * n_groups
        for n in lengths:
            position = n_ctx - n
            if late is not None:
                window, span = late
                position -= (position - window + 2) % span
            step.add([0] * n, max(position, 0), tables)
        return step


def _divisions(
    least: int, most: int, n_sequences: int, n_ctx: int, few: int
) -> Iterator[list[int]]:
    """Rows of each sequence in the steps of which one needs most memory for attention.

    Sequences of few rows keep a result for each span of keys, so it needs most to have many of
    them; of those with more rows, the largest needs most.
    """
    for n_few in range(min(n_sequences, -(-most // few)) + 1):
        left, lengths = most, []
        for _ in range(n_few):
            n = min(few, left, n_ctx)
            lengths += [n] * (n > 0)
            left -= n
        if n_few < n_sequences and left > 0:
            lengths.append(min(left, n_ctx))
        if lengths and sum(lengths) >= least:
            yield lengths


@lru_cache(maxsize=16)
def _recorded(config: ModelConfig, formats: Formats, compute: str, capacity: int) -> _Recorded:
    return _Recorded(_outlined(config, formats, compute), capacity)


@lru_cache(maxsize=4)
def _outlined(config: ModelConfig, formats: Formats, compute: str) -> Recipe:
    return Recipe(Outline(formats), config, compute=compute, n_threads=1)


def largest_context(
    config: ModelConfig,
    *,
    memory: int,
    weights: int,
    kv_type: str,
    n_batch: int,
    most: int | None = None,
    steps: Steps = _USUAL,
) -> int:
    """Find the longest context that fits into `memory` bytes; 0 if none.

    Parameters
    ----------
    config : ModelConfig
        The model.
    memory : int
        Bytes that may be used.
    weights : int
        Bytes of the weights, as stored.
    kv_type : str
        Of the cache, see `kv_bytes_per_token`.
    n_batch : int
        Tokens of a prompt that are computed at a time, at least 1.
    most : int, optional
        Longest context to consider; that of training if not given.
    steps : Steps
        What else the memory of steps depends on.
    """
    # The bill grows with the context, in steps: pages, spans of attention, and rows up to n_batch.
    low, high = 0, config.n_ctx_train if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        bill = MemoryBill.of(
            config,
            weights=weights,
            n_ctx=middle,
            kv_type=kv_type,
            n_batch=n_batch,
            steps=steps,
        )
        low, high = (middle, high) if bill.total <= memory else (low, middle - 1)
    return low

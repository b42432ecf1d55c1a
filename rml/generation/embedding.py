"""Texts as vectors: the hidden states of a decoder, pooled."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from rml._kernels.ieee import ieee
from rml._kernels.pages import PAGE_SIZE
from rml.engine.sequence import Sequence
from rml.engine.session import checked_ids
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.errors import ArgumentError, ContextOverflow, NumericError
from rml.generation.candidates import Floats
from rml.llm.evaluator import Evaluator
from rml.ranges import boolean, checked

__all__ = ["POOLINGS", "Pooling", "embed"]

Pooling = Literal["mean", "last"]
POOLINGS = ("mean", "last")
Wide = npt.NDArray[np.float64]

_AT_ONCE = 4096  # positions of texts that are evaluated together


def embed(
    sessions: Sessions,
    prompts: list[list[int]],
    *,
    pooling: Pooling,
    normalize: bool,
) -> Floats:
    """Evaluate texts, several together, and pool what the head would read.

    Parameters
    ----------
    sessions : Sessions
        Of the model.
    prompts : list of list of int
        The tokens of each, at least one.
    pooling : str
        ``"mean"`` of all tokens, or the ``"last"`` one, which has seen all others.
    normalize : bool
        Scale each vector to length 1.

    Returns
    -------
    ndarray of float32, shape (n_texts, d_model)

    Raises
    ------
    ArgumentError
        If `pooling` or `normalize` is something else, or ids are none of the vocabulary.
    ContextOverflow
        If a text is longer than the context; nothing was evaluated.
    NumericError
        If a vector is not finite, or zero where it should be normalized.
    """
    checked("normalize", normalize, boolean)
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise ArgumentError(f"pooling={pooling!r} must be one of {', '.join(POOLINGS)}")
    longest = max(map(len, prompts), default=0)
    if longest > sessions.n_ctx:
        raise ContextOverflow(longest, sessions.n_ctx, "shorten the text or use a larger n_ctx")
    prompts = [checked_ids(ids, sessions.n_vocab) for ids in prompts]
    vectors = np.empty((len(prompts), sessions.d_model), np.float32)
    for group in _groups(prompts, sessions.n_ctx):
        pooled = _pooled(sessions, [prompts[i] for i in group], pooling)
        for i, each in zip(group, pooled, strict=True):
            length = _write(each, vectors[i], normalize)
            if not np.isfinite(length) or (normalize and length == 0):
                raise NumericError(f"the embedding has length {length}")
    return vectors


def _groups(prompts: list[list[int]], n_ctx: int) -> Iterator[list[int]]:
    """Numbers of texts to evaluate together: they take no more memory than the longest may."""
    group: list[int] = []
    taken, most = 0, min(n_ctx, _AT_ONCE)
    for i, ids in enumerate(prompts):
        positions = -(-len(ids) // PAGE_SIZE) * PAGE_SIZE
        if group and taken + positions > most:
            yield group
            group, taken = [], 0
        group.append(i)
        taken += positions
    if group:
        yield group


@ieee
def _write(pooled: Wide, vector: Floats, normalize: bool) -> float:
    """Write a vector, and return its length before it was normalized."""
    length = np.linalg.norm(pooled)
    vector[:] = pooled / length if normalize else pooled
    return float(length)


class _Embedding(Evaluation):
    """The states of a text, pooled as they come."""

    def __init__(self, sequence: Sequence, ids: list[int], pooling: Pooling, d_model: int) -> None:
        super().__init__(sequence, ids, "states", np.empty((0, d_model), np.float32))
        self.pooled: Wide = np.zeros(d_model)
        # By the number of tokens, since the same ones may come again (see `Work.deliver`).
        self._totals: dict[int, Wide] = {0: np.zeros(d_model)}
        self._pooling = pooling
        self._d_model = d_model

    def deliver(self, n: int, _logits: Floats | None, evaluator: Evaluator, first: int) -> None:
        """Pool the states of the next `n` tokens."""
        rows = np.empty((n, self._d_model), np.float32)
        evaluator.states_of(first, first + n, rows)
        states = rows.astype(np.float64)
        before, now = self.n_done, self.n_done + n
        if self._pooling == "mean":
            total = self._totals[before]
            following, self.pooled = _mean(states, total, now)
            self._totals = {before: total, now: following}
        else:
            self.pooled = states[-1]


def _pooled(sessions: Sessions, texts: list[list[int]], pooling: Pooling) -> list[Wide]:
    """Evaluate texts together, each with the bits that it has alone."""
    engine, sequences = sessions.engine, []
    try:
        sequences = [engine.new_sequence(sessions.kv_type) for _ in texts]
        works = [
            _Embedding(sequence, ids, pooling, sessions.d_model)
            for sequence, ids in zip(sequences, texts, strict=True)
        ]
        engine.run(*works)
        return [work.pooled for work in works]
    finally:
        for sequence in sequences:
            sequence.release()


@ieee
def _mean(states: Wide, total: Wide, n: int) -> tuple[Wide, Wide]:
    """Go on with a sum, token by token: it does not matter where the parts begin."""
    states[0] += total
    total = np.add.accumulate(states)[-1]
    return total, total / n

"""Texts as vectors: the hidden states of a decoder, pooled."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from rml._kernels.ieee import ieee
from rml.engine.sequence import Sequence
from rml.engine.session import checked_ids
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.errors import NumericError
from rml.generation.texts import evaluate_together
from rml.llm.evaluator import Evaluator
from rml.ranges import boolean, checked, one_of
from rml.sampling.candidates import Floats

__all__ = ["POOLINGS", "Pooling", "embed"]

Pooling = Literal["mean", "last"]
POOLINGS = ("mean", "last")
Wide = npt.NDArray[np.float64]


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
    pooling = one_of("pooling", pooling, POOLINGS)
    prompts = [checked_ids(ids, sessions.n_vocab) for ids in prompts]
    width = sessions.d_model
    vectors = np.empty((len(prompts), width), np.float32)
    works = evaluate_together(
        sessions, prompts, lambda sequence, ids: _Embedding(sequence, ids, pooling, width)
    )
    for vector, work in zip(vectors, works, strict=True):
        length = _write(work.pooled, vector, normalize)
        if not np.isfinite(length) or (normalize and length == 0):
            raise NumericError(f"the embedding has length {length}")
    return vectors


@ieee
def _write(pooled: Wide, vector: Floats, normalize: bool) -> float:
    """Write a vector, and return its length before it was normalized."""
    length = np.linalg.norm(pooled)
    vector[:] = pooled / length if normalize else pooled
    return float(length)


class _Embedding(Evaluation):
    """The states of a text, pooled as they come."""

    def __init__(self, sequence: Sequence, ids: list[int], pooling: Pooling, d_model: int) -> None:
        super().__init__(sequence, ids, "states", np.empty((0, d_model), np.float32), releases=True)
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
            self._totals = {0: np.zeros(self._d_model), before: total, now: following}
        else:
            self.pooled = states[-1]


@ieee
def _mean(states: Wide, total: Wide, n: int) -> tuple[Wide, Wide]:
    """Go on with a sum, token by token: it does not matter where the parts begin."""
    states[0] += total
    total = np.add.accumulate(states)[-1]
    return total, total / n

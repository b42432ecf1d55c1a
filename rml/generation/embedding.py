"""Texts as vectors: the hidden states of a decoder, pooled."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from rml._kernels.ieee import ieee
from rml.engine.session import Session
from rml.engine.sessions import Sessions
from rml.errors import ArgumentError, ContextOverflow, NumericError
from rml.generation.candidates import Floats
from rml.ranges import boolean, checked

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
    n_batch: int,
) -> Floats:
    """Evaluate texts, and pool what the head would read.

    Parameters
    ----------
    sessions : Sessions
        Lends a session for each text.
    prompts : list of list of int
        The tokens of each, at least one.
    pooling : str
        ``"mean"`` of all tokens, or the ``"last"`` one, which has seen all others.
    normalize : bool
        Scale each vector to length 1.
    n_batch : int
        Tokens that are evaluated at a time; the result does not depend on it.

    Returns
    -------
    ndarray of float32, shape (n_texts, d_model)

    Raises
    ------
    ArgumentError
        If `pooling` or `normalize` is something else.
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
    vectors = np.empty((len(prompts), sessions.d_model), np.float32)
    for vector, ids in zip(vectors, prompts, strict=True):
        with sessions.lend() as session:
            pooled = _pooled(session, ids, pooling, n_batch)
        length = _write(pooled, vector, normalize)
        if not np.isfinite(length) or (normalize and length == 0):
            raise NumericError(f"the embedding has length {length}")
    return vectors


@ieee
def _write(pooled: Wide, vector: Floats, normalize: bool) -> float:
    """Write a vector, and return its length before it was normalized."""
    length = np.linalg.norm(pooled)
    vector[:] = pooled / length if normalize else pooled
    return float(length)


def _pooled(session: Session, ids: list[int], pooling: Pooling, n_batch: int) -> Wide:
    total: Wide = np.zeros(1)
    for start in range(0, len(ids), n_batch):
        states = session.hidden_states(ids[start : start + n_batch]).astype(np.float64)
        pooled: Wide = states[-1]
        if pooling == "mean":
            total, pooled = _mean(states, total, len(ids))
    return pooled


@ieee
def _mean(states: Wide, total: Wide, n: int) -> tuple[Wide, Wide]:
    """Go on with a sum, token by token: it does not matter where the parts begin."""
    states[0] += total
    total = np.add.accumulate(states)[-1]
    return total, total / n

"""Texts as vectors: the hidden states of a decoder, pooled."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError, ContextOverflow, NumericError
from rml.generation.candidates import Floats
from rml.generation.session import Session

__all__ = ["POOLINGS", "Pooling", "embed"]

Pooling = Literal["mean", "last"]
POOLINGS = ("mean", "last")


def embed(
    session: Session, ids: list[int], *, pooling: Pooling, normalize: bool, n_batch: int
) -> Floats:
    """Evaluate tokens in an empty session, and pool what the head would read.

    Parameters
    ----------
    session : Session
        Empty; the tokens are in it afterwards.
    ids : list of int
        At least one token.
    pooling : str
        ``"mean"`` of all tokens, or the ``"last"`` one, which has seen all others.
    normalize : bool
        Scale the vector to length 1.
    n_batch : int
        Tokens that are evaluated at a time; the result does not depend on it.

    Returns
    -------
    ndarray of float32, shape (d_model,)

    Raises
    ------
    NumericError
        If the vector is not finite, or zero where it should be normalized.
    """
    if session.position:
        raise ArgumentError("a text is embedded in an empty session")
    if len(ids) > session.n_ctx:
        raise ContextOverflow(len(ids), session.n_ctx, "shorten the text or use a larger n_ctx")
    total: npt.NDArray[np.float64] | float = 0.0
    for start in range(0, len(ids), n_batch):
        states = session.hidden_states(ids[start : start + n_batch]).astype(np.float64)
        pooled = states[-1]
        if pooling == "mean":  # added token by token: it does not matter where the parts begin
            states[0] += total
            total = np.add.accumulate(states)[-1]
            pooled = total / len(ids)
    length = float(np.linalg.norm(pooled))
    if not np.isfinite(length) or (normalize and length == 0):
        raise NumericError(f"the embedding has length {length}")
    vector: Floats = (pooled / length if normalize else pooled).astype(np.float32)
    return vector

"""How likely a model finds a text."""

import math
from dataclasses import dataclass

from rml.engine.session import Session
from rml.errors import ArgumentError, ContextOverflow
from rml.generation.logprobs import TokenLogprob, exp, logprobs_of, rows_at_once

__all__ = ["Score", "score"]


@dataclass(frozen=True, slots=True)
class Score:
    """The logprobs of a text's tokens.

    Attributes
    ----------
    token_ids : list of int
        The text's tokens.
    logprobs : list of TokenLogprob or None
        One for each token, given those before it. Nothing comes before the first: None.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]

    @property
    def total(self) -> float:
        """Natural logarithm of the probability of all tokens after the first."""
        return math.fsum(entry.logprob for entry in self.logprobs if entry is not None)

    @property
    def perplexity(self) -> float:
        """Inverse of the geometric mean of the probabilities; 1 if there is one token only."""
        return exp(-self.total / max(1, len(self.token_ids) - 1))


def score(session: Session, ids: list[int], *, top: int = 0) -> Score:
    """Evaluate tokens in an empty session, and compare each with what was expected.

    Parameters
    ----------
    session : Session
        Empty; the tokens are in it afterwards.
    ids : list of int
        At least one token.
    top : int
        How many of the likeliest tokens to list for each place.
    """
    if session.position:
        raise ArgumentError("a text is scored in an empty session")
    if len(ids) > session.n_ctx:
        raise ContextOverflow(len(ids), session.n_ctx, "shorten the text or use a larger n_ctx")
    entries: list[TokenLogprob | None] = [None]
    rows = rows_at_once(session.n_vocab)
    for start in range(0, len(ids), rows):
        logits = session.forward(ids[start : start + rows], all_logits=True)
        following = ids[start + 1 : start + rows + 1]
        entries += logprobs_of(logits, following, top, start + 1)
    return Score(ids, entries)

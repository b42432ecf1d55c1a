"""How likely a model finds a text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rml import _kernels
from rml.errors import ArgumentError, ContextOverflow
from rml.generation.candidates import Floats, largest, no_numbers
from rml.generation.results import TokenLogprob
from rml.generation.session import Session

__all__ = ["Score", "exp", "logprobs_of", "rows_at_once", "score", "token_logprob"]

# Values of logits that are held at a time: rows of a large vocabulary come a few at a time.
_VALUES = 1 << 23


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


def exp(x: float) -> float:
    """Raise e to the power of x; infinite where that is too large for a number."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def rows_at_once(n_vocab: int) -> int:
    """Tokens whose logits are asked for at a time."""
    return max(1, _VALUES // n_vocab)


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


def logprobs_of(
    logits: Floats, following: Sequence[int], top: int, position: int
) -> list[TokenLogprob]:
    """Logprobs of tokens, each behind the one whose row of logits stands at its place.

    Parameters
    ----------
    logits : ndarray of float32, shape (n, n_vocab)
        Rows; the last one may be one too many.
    following : sequence of int
        The tokens, n or n - 1.
    top : int
        As in `token_logprob`.
    position : int
        Place of the first token in its text, for the message of an error.
    """
    rows = zip(logits, following, strict=False)
    return [token_logprob(row, token, top, i) for i, (row, token) in enumerate(rows, position)]


def token_logprob(
    logits: Floats, token: int, top: int = 0, position: int | None = None
) -> TokenLogprob:
    """Logprob of a token, and those of the `top` likeliest tokens.

    Parameters
    ----------
    logits : ndarray of float32, shape (n_vocab,)
        Scores of the decoder, before any sampling stage.
    token : int
        The token.
    top : int
        How many of the likeliest tokens to list.
    position : int, optional
        Place in the sequence, for the message of an error.

    Raises
    ------
    NumericError
        If a logit is NaN or plus infinity, or if none is finite.
    """
    measured = np.empty(2)
    _kernels.log_sum_exp(logits, measured)
    top_logit, log_sum = measured.tolist()
    if math.isnan(log_sum):
        raise no_numbers(logits, position)
    # The difference first: it is exact, and nothing is lost beside a large logit.
    best = zip(*largest(logits, min(top, len(logits))), strict=True) if top else ()
    return TokenLogprob(
        token,
        float(logits[token]) - top_logit - log_sum,
        [(int(i), float(value) - top_logit - log_sum) for i, value in best],
    )

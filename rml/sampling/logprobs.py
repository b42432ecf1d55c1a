"""How likely single tokens are, by the decoder's own scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rml import _kernels
from rml.sampling.candidates import Floats, largest, no_numbers

__all__ = ["TokenLogprob", "exp", "logprobs_of", "rows_at_once", "token_logprob"]

# Values of logits that are held at a time: rows of a large vocabulary come a few at a time.
_VALUES = 1 << 23


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was, among all tokens of the vocabulary, before any sampling stage.

    Attributes
    ----------
    id : int
        The token.
    logprob : float
        Natural logarithm of its probability.
    top : list of (int, float)
        The likeliest tokens there and their logprobs, as many as were asked for.
    """

    id: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


def exp(x: float) -> float:
    """Raise e to the power of x; infinite where that is too large for a number."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def rows_at_once(n_vocab: int) -> int:
    """Tokens whose logits are asked for at a time."""
    return max(1, _VALUES // n_vocab)


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

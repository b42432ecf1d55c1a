"""Perplexity of a long text, with the meaning of llama.cpp's ``llama-perplexity``.

The text is cut into chunks of as many tokens as the context holds, and each is evaluated alone; a
rest is left out. In each chunk the first token is replaced by the beginning-of-text token where the
model wants one. The tokens of its second half are scored, each given all before it in the chunk:
of n tokens those from n // 2 + 1 on. The perplexity is the inverse of the geometric mean of their
probabilities.

Unlike there, a text shorter than two chunks is not refused; one shorter than a chunk is a chunk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rml.engine.session import Session
from rml.errors import ArgumentError
from rml.sampling.logprobs import exp, rows_at_once, token_logprob

__all__ = ["Perplexity", "perplexity"]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """A measurement.

    Attributes
    ----------
    value : float
        The perplexity.
    error : float
        Its standard error, as if the tokens' scores were independent; 0 for a single token.
    n_scored : int
        Tokens that were scored.
    n_chunks : int
        Chunks that they come from.
    """

    value: float
    error: float
    n_scored: int
    n_chunks: int


def perplexity(
    session: Session,
    ids: list[int],
    *,
    chunk: int,
    bos_id: int | None = None,
    max_chunks: int | None = None,
    progress: Callable[[int, int, Perplexity], object] | None = None,
) -> Perplexity:
    """Measure the perplexity of a text.

    Parameters
    ----------
    session : Session
        Where to evaluate; what is in it is forgotten.
    ids : list of int
        The text, at least three tokens.
    chunk : int
        Tokens of a chunk, at least 3 and at most the session's context.
    bos_id : int, optional
        What stands at the beginning of every chunk; None leaves the text as it is.
    max_chunks : int, optional
        Measure the first chunks only.
    progress : callable, optional
        Called after each chunk as ``progress(done, total, result so far)``.

    Raises
    ------
    ArgumentError
        If the text or the chunks are too short, or chunks too long.
    """
    if not 3 <= chunk <= session.n_ctx:
        raise ArgumentError(f"a chunk has {chunk} tokens, but 3 to {session.n_ctx} are needed")
    if len(ids) < 3:
        raise ArgumentError(f"the text has {len(ids)} tokens, but at least 3 are needed")
    chunk = min(chunk, len(ids))
    total = len(ids) // chunk
    if max_chunks is not None:
        total = min(total, max(1, max_chunks))
    surprises: list[float] = []
    for done in range(1, total + 1):
        part = ids[(done - 1) * chunk : done * chunk]
        if bos_id is not None:
            part[0] = bos_id
        surprises += _surprises(session, part)
        result = _summary(surprises, done)
        if progress is not None:
            progress(done, total, result)
    return result


def _surprises(session: Session, ids: list[int]) -> list[float]:
    """Minus the logprob of each token of the second half."""
    first = len(ids) // 2
    session.truncate(0)
    session.forward(ids[:first])
    surprises = []
    rows = rows_at_once(session.n_vocab)
    for start in range(first, len(ids) - 1, rows):
        stop = min(start + rows, len(ids) - 1)
        logits = session.forward(ids[start:stop], all_logits=True)
        following = ids[start + 1 : stop + 1]
        surprises += [
            -token_logprob(row, token).logprob for row, token in zip(logits, following, strict=True)
        ]
    return surprises


def _summary(surprises: list[float], n_chunks: int) -> Perplexity:
    n = len(surprises)
    mean = math.fsum(surprises) / n
    spread = math.fsum((surprise - mean) ** 2 for surprise in surprises) / n
    value = exp(mean)
    # d exp(x) = exp(x) dx
    error = value * math.sqrt(spread / (n - 1)) if n > 1 else 0.0
    return Perplexity(value, error, n, n_chunks)

"""The evaluation of a prompt: the first phase of a generation."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from rml.engine.session import Session
from rml.engine.work import Evaluation
from rml.errors import Cancelled
from rml.generation.request import Progress
from rml.sampling.candidates import Floats
from rml.sampling.logprobs import TokenLogprob, logprobs_of, rows_at_once

__all__ = ["Evaluated", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What the evaluation of a prompt has found out.

    Attributes
    ----------
    logits : ndarray of float32, shape (n_vocab,)
        Scores of the token behind it.
    logprobs : list of TokenLogprob or None, or None
        As `Completion.prompt_logprobs`.
    n_adopted : int
        Tokens that others had evaluated.
    """

    logits: Floats
    logprobs: list[TokenLogprob | None] | None
    n_adopted: int


def evaluate(
    session: Session,
    prompt: list[int],
    *,
    n_cached: int,
    top_logprobs: int | None,
    n_batch: int,
    shares: bool,
    progress: Progress | None,
    is_cancelled: Callable[[], bool],
) -> Generator[Evaluation, None, Evaluated | None]:
    """Evaluate a prompt in parts.

    Yields each part for the caller to have it computed, alone or with those of others.

    Parameters
    ----------
    session : Session
        Holds the first `n_cached` tokens, which are not evaluated again; what follows them there
        is forgotten.
    prompt : list of int
        At least one token more.
    n_cached : int
        0 if `top_logprobs` is given.
    top_logprobs : int or None
        If given, the logprobs of the prompt's tokens are found, and so many of the likeliest ones
        are listed for each place.
    n_batch : int
        Most tokens of a part; the result does not depend on it.
    shares : bool
        Whether what others have evaluated may be taken.
    progress : callable or None
        Called after each part.
    is_cancelled : callable
        Asked before each part.

    Returns
    -------
    Evaluated, or None if it was cancelled
    """
    session.truncate(n_cached)
    logits = np.empty(session.n_vocab, np.float32)
    logprobs: list[TokenLogprob | None] | None = None
    if top_logprobs is not None:  # then the logits of all tokens are held at once
        n_batch, logprobs = min(n_batch, rows_at_once(session.n_vocab)), [None]
    done, n_adopted = n_cached, 0
    while done < len(prompt):
        if is_cancelled():
            return None
        if shares and logprobs is None:
            n = session.adopt(prompt[done:-1])
            done += n
            n_adopted += n
        part = prompt[done : done + n_batch]
        try:
            if logprobs is None or top_logprobs is None:
                is_last = done + n_batch >= len(prompt)
                evaluation = (
                    session.evaluation(part, "last", logits, shares=shares)
                    if is_last
                    else session.evaluation(part, "none", shares=shares)
                )
                with evaluation as work:
                    yield work
                n_adopted += work.n_adopted
            else:
                with session.evaluation(part, "all") as work:
                    yield work
                rows = work.out
                following = prompt[done + 1 : done + 1 + len(part)]
                logprobs += logprobs_of(rows, following, top_logprobs, done + 1)
                logits[:] = rows[-1]
        except Cancelled:
            return None
        done += len(part)
        if progress is not None:
            progress(done, len(prompt))
    return Evaluated(logits, logprobs, n_adopted)

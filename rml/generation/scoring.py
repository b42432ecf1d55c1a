"""How likely a model finds a text."""

import math
from dataclasses import dataclass

import numpy as np

from rml.engine.sequence import Sequence
from rml.engine.session import checked_ids
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.generation.texts import evaluate_together
from rml.llm.evaluator import Evaluator
from rml.sampling.candidates import Floats
from rml.sampling.logprobs import TokenLogprob, exp, logprobs_of, rows_at_once

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


def score(sessions: Sessions, texts: list[list[int]], *, top: int = 0) -> list[Score]:
    """Evaluate texts, several together, and compare each token with what was expected.

    Parameters
    ----------
    sessions : Sessions
        Of the model.
    texts : list of list of int
        The tokens of each, at least one.
    top : int
        How many of the likeliest tokens to list for each place.

    Raises
    ------
    ArgumentError
        If ids are none of the vocabulary.
    ContextOverflow
        If a text is longer than the context; nothing was evaluated.
    NumericError
        If logits are no numbers.
    """
    texts = [checked_ids(ids, sessions.n_vocab) for ids in texts]
    works = evaluate_together(
        sessions, texts, lambda sequence, ids: _Scoring(sequence, ids, top, sessions.n_vocab)
    )
    return [Score(ids, work.entries) for ids, work in zip(texts, works, strict=True)]


class _Scoring(Evaluation):
    """The logprobs of a text's tokens, as their logits come."""

    def __init__(self, sequence: Sequence, ids: list[int], top: int, n_vocab: int) -> None:
        super().__init__(sequence, ids, "all", np.empty((0, n_vocab), np.float32), releases=True)
        self.entries: list[TokenLogprob | None] = [None]
        self._given = ids
        self._top = top
        self._n_vocab = n_vocab

    def deliver(self, n: int, _logits: Floats | None, evaluator: Evaluator, first: int) -> None:
        """Score the tokens behind the next `n` tokens."""
        done = self.n_done
        del self.entries[done + 1 :]  # the same ones may come again (see `Work.deliver`)
        rows = min(n, rows_at_once(self._n_vocab))
        held = np.empty((rows, self._n_vocab), np.float32)
        for start in range(0, n, rows):
            logits = held[: min(rows, n - start)]
            evaluator.logits_of(first + start, first + start + len(logits), logits)
            at = done + start + 1
            following = self._given[at : at + len(logits)]
            self.entries += logprobs_of(logits, following, self._top, at)

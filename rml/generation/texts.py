"""Texts that are only looked at: evaluated together, and forgotten."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from rml._kernels.pages import PAGE_SIZE, pages_for
from rml.engine.sequence import Sequence
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.errors import ContextOverflow

__all__ = ["evaluate_together"]

_Work = TypeVar("_Work", bound=Evaluation)
_AT_ONCE = 4096  # positions of texts that are evaluated together


def evaluate_together(
    sessions: Sessions, texts: list[list[int]], work_of: Callable[[Sequence, list[int]], _Work]
) -> Iterator[_Work]:
    """Evaluate texts, several at a time, each with the bits that it has alone.

    Parameters
    ----------
    sessions : Sessions
        Of the model.
    texts : list of list of int
        The tokens of each, at least one.
    work_of : callable
        ``work_of(sequence, ids)`` makes what takes the results of a text.

    Yields
    ------
    Evaluation
        That of each text, in their order.

    Raises
    ------
    ContextOverflow
        If a text is longer than the context; nothing was evaluated.
    RmlError
        What went wrong with a text.
    """
    longest = max(map(len, texts), default=0)
    if longest > sessions.n_ctx:
        raise ContextOverflow(longest, sessions.n_ctx, "shorten the text or use a larger n_ctx")
    for group in _groups(texts, sessions.n_ctx):
        sequences: list[Sequence] = []
        try:
            works = []
            for ids in group:
                sequences.append(sessions.engine.new_sequence(sessions.kv_type, shares=False))
                works.append(work_of(sequences[-1], ids))
            sessions.engine.run(*works)
        finally:
            for sequence in sequences:
                sequence.release()
        yield from works


def _groups(texts: list[list[int]], n_ctx: int) -> Iterator[list[list[int]]]:
    """Texts to evaluate together: they take no more memory than the longest may."""
    group: list[list[int]] = []
    taken, most = 0, min(n_ctx, _AT_ONCE)
    for ids in texts:
        positions = pages_for(len(ids)) * PAGE_SIZE
        if group and taken + positions > most:
            yield group
            group, taken = [], 0
        group.append(ids)
        taken += positions
    if group:
        yield group

"""From what waits and runs to the rows of a step. Pure: nothing here changes anything."""

from collections.abc import Sequence as Row
from typing import TypeVar

from rml.engine.work import Work

__all__ = ["schedule"]

_W = TypeVar("_W", bound=Work)


def schedule(works: Row[_W], budget: int) -> list[tuple[_W, int]]:
    """Share the rows of a step.

    Single tokens, those of running sequences, come first. What remains of the budget is split
    evenly among longer works (prompts), of which each gets at least one row where there is room.
    One row is theirs in any case, or many running sequences would keep prompts out for good; where
    a step has a single row, it is that of the oldest work.

    Parameters
    ----------
    works : sequence of Work
        Oldest first; those that want nothing now are left out.
    budget : int
        Rows of the step, at least 1.

    Returns
    -------
    list of (Work, int)
        How many rows each gets, in the order of `works`.
    """
    wanted = [(work, work.n_wanted) for work in works]
    if len(wanted) == 1:  # nobody to share with, as in most programs
        return [(work, min(n, budget)) for work, n in wanted if n]
    longer = [(work, n) for work, n in wanted if n > 1]
    oldest = next((n for _, n in wanted if n), 0)
    kept = 1 if longer and (budget > 1 or oldest > 1) else 0
    single = [work for work, n in wanted if n == 1][: budget - kept]
    left = budget - len(single)
    shares = dict.fromkeys(map(id, single), 1)
    # Those that want little leave the rest to the others.
    for i, (work, n) in enumerate(sorted(longer, key=lambda pair: pair[1])):
        share = min(n, -(-left // (len(longer) - i)))
        shares[id(work)] = share
        left -= share
    return [(work, shares[id(work)]) for work, _ in wanted if shares.get(id(work))]

"""From what waits and runs to the rows of a step."""

from collections.abc import Sequence as Row
from typing import TypeVar

from rml.engine.work import Work

__all__ = ["Pace", "schedule"]

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
    if len(works) == 1:  # nobody to share with, as in most programs
        return [(works[0], n)] if (n := min(works[0].n_wanted, budget)) else []
    wanted = [(work, work.n_wanted) for work in works]
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


class Pace:
    """How many rows a step may have, so that running sequences do not have to wait for long.

    While a prompt is evaluated beside sequences that go on token by token, a step may last as long
    as about four steps of theirs, or as sixteen rows of the prompt take where that is longer: with
    fewer, prompts would take too much more time. That is estimated from the steps before; what is
    computed does not depend on it.
    """

    def __init__(self) -> None:
        self._single: float | None = None  # seconds of a step of single tokens
        self._row: float | None = None  # seconds of a row of a prompt

    def budget(self, works: Row[Work], most: int) -> int:
        """Rows of a step of these works, at most `most`."""
        if len(works) == 1:
            return most
        n_single = 0
        longer = False
        for work in works:
            if work.n_wanted == 1 and len(work.sequence):
                n_single += 1
            else:
                longer = True
        if not n_single or not longer:
            return most
        rows = _LEAST_ROWS
        if self._single is not None and self._row:
            rows = max(rows, int(3 * self._single / self._row))
        return min(most, n_single + rows)

    def note(self, n: int, n_sequences: int, seconds: float) -> None:
        """Learn from a step: its rows, its sequences, and how long it took."""
        if n == n_sequences:
            self._single = seconds if self._single is None else _mixed(self._single, seconds)
        elif n >= _LEAST_ROWS:
            row = seconds / n
            self._row = row if self._row is None else _mixed(self._row, row)


_LEAST_ROWS = 16


def _mixed(before: float, now: float) -> float:
    """Follow a figure that changes, and not every odd step."""
    return 0.75 * before + 0.25 * now

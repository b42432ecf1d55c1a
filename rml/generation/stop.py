"""Cut a text at a stop string, however the text arrives in pieces.

What comes out depends only on the joined text, never on where the pieces were cut:

* the text ends before the stop string that begins first (of those that begin at the same place,
  the one that is complete first is named);
* nothing that may still turn out to belong to a stop string is passed on;
* what was held back and turns out not to belong to one is passed on; nothing is lost.

All stop strings are looked for at once with the automaton of Aho and Corasick (Communications of
the ACM 18(6), 1975), so the time is linear in the text whatever the stop strings are.
"""

from collections import deque
from collections.abc import Iterable

from rml.ranges import checked, iterated, texts

__all__ = ["StopFilter"]


class _Automaton:
    """Every prefix of every stop string is a state; state 0 is the empty prefix.

    Attributes
    ----------
    steps : list of dict
        Characters that lengthen the prefix of a state, and the state each leads to.
    shorter : list of int
        State of the longest proper suffix of a state's prefix that is itself a prefix.
    depths : list of int
        Length of each state's prefix.
    found : list of str
        The longest stop string that ends a state's prefix; empty where none does.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.steps: list[dict[str, int]] = [{}]
        self.shorter = [0]
        self.depths = [0]
        self.found = [""]
        for stop in stops:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self.steps[state]:
                self.steps[state][character] = len(self.steps)
                self.steps.append({})
                self.shorter.append(0)
                self.depths.append(self.depths[state] + 1)
                self.found.append("")
            state = self.steps[state][character]
        self.found[state] = stop

    def _link(self) -> None:
        queue = deque(self.steps[0].values())
        while queue:  # shorter prefixes first
            state = queue.popleft()
            for character, longer in self.steps[state].items():
                self.shorter[longer] = self.next(self.shorter[state], character)
                # The longest stop string of a place begins first, and that one counts.
                self.found[longer] = self.found[longer] or self.found[self.shorter[longer]]
                queue.append(longer)

    def next(self, state: int, character: str) -> int:
        """State after one more character of text."""
        while state and character not in self.steps[state]:
            state = self.shorter[state]
        return self.steps[state].get(character, 0)


def _stops(value: object) -> tuple[str, ...]:
    entries = None if isinstance(value, str) else iterated(value)
    return texts(value if entries is None else entries)


class StopFilter:
    """Passes text on until a stop string begins.

    Parameters
    ----------
    stop : str or iterable of str
        Stop strings. None at all: everything is passed on.

    Attributes
    ----------
    matched : str or None
        The stop string at which the text was cut. It stays None while a stop string was seen but
        one that began before it may still be completed.

    Raises
    ------
    ArgumentError
        If a stop string is empty or no str.

    Examples
    --------
    >>> stop = StopFilter("END")
    >>> stop.feed("the E"), stop.feed("arth. E"), stop.feed("ND and more"), stop.matched
    ('the ', 'Earth. ', '', 'END')
    """

    def __init__(self, stop: str | Iterable[str] = ()) -> None:
        stops = checked("stop", stop, _stops)
        self._automaton = _Automaton(stops)
        self._state = 0
        self._held: deque[str] = deque()  # pieces that were not passed on yet
        self._passed = 0  # characters passed on
        self._read = 0  # characters looked at
        self._cut: int | None = (
            None  # end of the text, if no stop string that began before completes
        )
        self._candidate = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece of text; return what can be passed on now.

        After a match everything is swallowed.
        """
        if self.matched is not None:
            return ""
        automaton, state = self._automaton, self._state
        for character in text:
            state = automaton.next(state, character)
            self._read += 1
            if stop := automaton.found[state]:
                begin = self._read - len(stop)
                if self._cut is None or begin < self._cut:
                    self._cut, self._candidate = begin, stop
            if self._cut is not None and self._read - automaton.depths[state] >= self._cut:
                self.matched = self._candidate
                break
        self._state = state
        self._held.append(text)
        begun = self._read - automaton.depths[state]
        return self._release(begun if self.matched is None else self._cut)

    def flush(self) -> str:
        """End the text: return what was held back, up to a stop string if one was seen."""
        if self.matched is not None:
            return ""
        if self._cut is not None:
            self.matched = self._candidate
        return self._release(self._cut)

    def _release(self, end: int | None) -> str:
        """Pass on what is held, up to the character number `end` of the whole text."""
        pieces = []
        while self._held and (end is None or self._passed < end):
            piece = self._held.popleft()
            if end is not None and len(piece) > end - self._passed:
                self._held.appendleft(piece[end - self._passed :])
                piece = piece[: end - self._passed]
            self._passed += len(piece)
            pieces.append(piece)
        return "".join(pieces)

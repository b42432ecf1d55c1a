"""Scores that depend on what was said before: repetition penalties and DRY.

Repetition, presence and frequency look at a window of the last tokens, prompt included, as
llama.cpp's do. DRY ("don't repeat yourself") looks at whole phrases: a token that would continue a
phrase said before loses the more, the longer the phrase has already been repeated.

Sources: repetition penalty, Keskar et al., CTRL (arXiv 1909.05858), with the sign rule of
Transformers; presence and frequency, the OpenAI API reference; DRY, p-e-w, text-generation-webui
pull request 5677.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.ieee import ieee
from rml.sampling.candidates import Candidates, Floats, Ids

__all__ = ["PhraseLog", "Window", "penalize", "phrase_penalties", "subtract"]

# A window has room for so many different ids, and grows.
_SLOTS = 128

# More than any difference of logits, and far inside float32.
_LARGEST_PENALTY = 1e30
_LARGEST_POWER = 1e300  # inside float64


class Window:
    """Counts of the last tokens.

    Parameters
    ----------
    size : int
        Tokens that count; 0 for none, -1 for all.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: deque[int] = deque()
        # Each id in the window has a slot; the slots in use come first.
        self._slots: dict[int, int] = {}
        self._ids = np.empty(_SLOTS, np.int64)
        self._counts = np.empty(_SLOTS, np.float32)

    def accept(self, ids: Sequence[int]) -> None:
        """Add tokens; those that leave the window are forgotten."""
        if self._size == 0:
            return
        for token in ids if self._size < 0 else ids[-self._size :]:
            self._add(token)
            if self._size < 0:
                continue
            self._tokens.append(token)
            if len(self._tokens) > self._size:
                self._remove(self._tokens.popleft())

    def _add(self, token: int) -> None:
        slot = self._slots.get(token)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._slots)
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, self._ids])
            self._counts = np.concatenate([self._counts, self._counts])
        self._slots[token], self._ids[slot], self._counts[slot] = slot, token, 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot]:
            return
        del self._slots[token]
        last = len(self._slots)  # whose id moves to the slot that is free now
        if slot != last:
            moved = int(self._ids[last])
            self._slots[moved], self._ids[slot] = slot, moved
            self._counts[slot] = self._counts[last]

    def counts(self) -> tuple[Ids, Floats]:
        """Ids in the window, each once, and how often each occurs there; views."""
        n = len(self._slots)
        return self._ids[:n], self._counts[:n]


def penalize(
    candidates: Candidates,
    window: Window,
    *,
    repeat: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    out: Floats | None = None,
) -> Candidates:
    """Lower the scores of tokens in the window.

    `repeat` divides a positive logit and multiplies one that is not, once for a token however
    often it occurs. Then ``count * frequency + presence`` is taken off.

    Parameters
    ----------
    candidates : Candidates
        All tokens.
    window : Window
        What was said.
    repeat, presence, frequency : float
        See `SamplingSettings`.
    out : ndarray of float32, optional
        Where to write the scores; may be those of `candidates` themselves. A new array if not
        given.
    """
    if repeat == 1.0 and presence == 0.0 and frequency == 0.0:
        return candidates
    ids, counts = window.counts()
    logits = _copied(candidates.logits, out)
    if candidates.is_whole:
        at = ids
    else:
        at, present = candidates.indices_of(ids)
        counts = counts[present]
    _kernels.penalize(at, counts, logits, repeat=repeat, presence=presence, frequency=frequency)
    return candidates.with_logits(logits)


@ieee
def subtract(
    candidates: Candidates, penalties: Mapping[int, float], out: Floats | None = None
) -> Candidates:
    """Take a penalty off the scores of single tokens; `out` is that of `penalize`."""
    if not penalties:
        return candidates
    ids = np.fromiter(penalties, np.int64, len(penalties))
    indices, present = candidates.indices_of(ids)
    if not len(indices):
        return candidates
    logits = _copied(candidates.logits, out)
    logits[indices] -= np.fromiter(penalties.values(), np.float32, len(penalties))[present]
    return candidates.with_logits(logits)


def _copied(logits: Floats, out: Floats | None) -> Floats:
    if out is None:
        return logits.copy()
    if out is not logits:
        out[:] = logits
    return out


class PhraseLog:
    """The tokens that DRY compares, and where the last phrase border is.

    Parameters
    ----------
    size : int
        Tokens that count; 0 for none, -1 for all.
    breakers : iterable of bytes
        Texts that end a phrase: a repetition is not followed across them.
    token_bytes : callable
        Gives the bytes of a token.
    """

    def __init__(
        self, size: int, breakers: Iterable[bytes], token_bytes: Callable[[int], bytes]
    ) -> None:
        self._size = size
        self._breakers = tuple(breakers)
        self._token_bytes = token_bytes
        self._tail_length = max((len(b) for b in self._breakers), default=1) - 1
        self._tail = b""
        self._buffer = np.empty(256, np.int64)
        self._n = 0
        self._border = 0

    def accept(self, ids: Sequence[int]) -> None:
        """Add tokens."""
        if self._size == 0:
            return
        self._make_room(len(ids))
        for token in ids:
            self._buffer[self._n] = token
            self._n += 1
            if self._breakers:
                text = self._tail + self._token_bytes(token)
                # Only a breaker that this token completes: its end lies behind the old tail.
                if any(
                    text.find(breaker, max(0, len(self._tail) + 1 - len(breaker))) >= 0
                    for breaker in self._breakers
                ):
                    self._border = self._n
                self._tail = text[max(0, len(text) - self._tail_length) :]

    def _make_room(self, n: int) -> None:
        if self._n + n > len(self._buffer):
            grown = np.empty(2 * (self._n + n), np.int64)
            grown[: self._n] = self._buffer[: self._n]
            self._buffer = grown

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The last tokens, oldest first; a view."""
        start = 0 if self._size < 0 else max(0, self._n - self._size)
        return self._buffer[start : self._n]

    @property
    def since_border(self) -> int:
        """Tokens after the last breaker."""
        return self._n - self._border

    def is_breaker(self, token: int) -> bool:
        """Whether a token holds a whole breaker; such a token is never penalized."""
        text = self._token_bytes(token)
        return any(breaker in text for breaker in self._breakers)


def phrase_penalties(
    log: PhraseLog, *, multiplier: float, base: float, allowed_length: int
) -> dict[int, float]:
    """Find what DRY takes off each token that would continue a repeated phrase.

    The penalty is ``multiplier * base ** (length - allowed_length)``, where `length` is how many of
    the last tokens repeat what stood before the token's earlier occurrence; there is none below
    `allowed_length`.

    Returns
    -------
    dict of int to float
        Token id to penalty, all above zero and far inside the range of float32.
    """
    tokens, limit = log.tokens, log.since_border
    if multiplier <= 0 or limit < allowed_length or len(tokens) < 2:
        return {}
    longest = limit
    if base > 1:  # beyond this length the penalty would no longer grow
        largest = min(math.log(_LARGEST_PENALTY) - math.log(multiplier), math.log(_LARGEST_POWER))
        room = largest / math.log(base)
        longest = min(longest, allowed_length + max(0, math.floor(room)))
    lengths: dict[int, int] = {}
    for end, length in _repeats(tokens, allowed_length, longest):
        following = int(tokens[end + 1])
        lengths[following] = max(length, lengths.get(following, 0))
    return {
        token: min(multiplier * base ** (length - allowed_length), _LARGEST_PENALTY)
        for token, length in lengths.items()
        if not log.is_breaker(token)
    }


def _repeats(
    tokens: npt.NDArray[np.int64], shortest: int, longest: int
) -> Iterator[tuple[int, int]]:
    """Earlier indices at which a copy of the text's end ends, and the length of the copy."""
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    length = 1
    while len(ends):
        going_on = np.zeros(len(ends), np.bool_)
        if length < longest:
            going_on = ends >= length
            going_on[going_on] = tokens[ends[going_on] - length] == tokens[last - length]
        if length >= shortest:
            for end in ends[~going_on]:
                yield int(end), length
        ends = ends[going_on]
        length += 1

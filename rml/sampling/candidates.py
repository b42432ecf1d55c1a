"""The tokens still in play between the logits and the draw.

Every sampling stage takes `Candidates` and returns `Candidates`: ids and their logits, never
changed in place. Probabilities do not exist until a stage or the draw asks for them; then they are
the softmax over the candidates that are left. At least one candidate is always left.

Everything is float32: a vocabulary of 262144 logits is read several times for each token, and the
time for that must stay far below a millisecond. Sums of probabilities are float64 where they are
cumulative.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.ieee import ieee
from rml.errors import NumericError

__all__ = ["Candidates", "Floats", "Ids", "first_of_largest", "largest", "no_numbers"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def _every_id(n: int) -> Ids:
    ids = np.arange(n, dtype=np.int64)
    ids.flags.writeable = False
    return ids


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be drawn.

    Attributes
    ----------
    ids : ndarray of int64, shape (n,)
        Token ids, n >= 1.
    logits : ndarray of float32, shape (n,)
        Their scores; minus infinity is a token that cannot be drawn. Not to be written to.
    descending : bool
        Whether the logits are sorted, the largest first.
    known_top : float32 or None
        The largest logit, where it is known without looking.
    """

    ids: Ids
    logits: Floats
    descending: bool = False
    known_top: np.float32 | None = None

    @classmethod
    def of(cls, logits: Floats, position: int | None = None) -> "Candidates":
        """Take every token of the vocabulary.

        Parameters
        ----------
        logits : ndarray of float32, shape (n_vocab,)
            Scores of the decoder; kept, not copied.
        position : int, optional
            Place in the sequence, for the message of an error.

        Raises
        ------
        NumericError
            If a logit is NaN or plus infinity, or if none is finite.
        """
        top: np.float32 = logits[first_of_largest(logits, position)]
        return cls(_every_id(len(logits)), logits, known_top=top)

    @classmethod
    def unchecked(cls, logits: Floats) -> "Candidates":
        """Take every token of the vocabulary, whatever its logit is."""
        return cls(_every_id(len(logits)), logits)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_whole(self) -> bool:
        """Whether these are all tokens of a vocabulary: a token's index is its id."""
        return self.ids is _every_id(len(self))

    def where(self, kept: npt.NDArray[np.bool_]) -> "Candidates":
        """Keep the candidates where a mask is true, in their order."""
        return self.take(np.flatnonzero(kept))

    def take(self, indices: Ids) -> "Candidates":
        """Keep the candidates at these indices, which ascend."""
        ids = indices if self.is_whole else self.ids[indices]
        return Candidates(ids, self.logits[indices], self.descending)

    def first(self, n: int) -> "Candidates":
        """Keep the first `n`."""
        return Candidates(self.ids[:n], self.logits[:n], self.descending)

    def with_logits(self, logits: Floats) -> "Candidates":
        """Give the same tokens other scores, in no known order."""
        return Candidates(self.ids, logits)

    def indices_of(self, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Find tokens among the candidates.

        Returns
        -------
        indices : ndarray of int64
            Where the tokens that are present stand.
        present : ndarray of bool, shape of `ids`
            Which of `ids` are candidates.
        """
        if self.is_whole:
            present = ids < len(self)
            return ids[present], present
        order = np.argsort(self.ids)
        at = np.searchsorted(self.ids, ids, sorter=order)
        present = at < len(self)
        present[present] = self.ids[order[at[present]]] == ids[present]
        return order[at[present]], present

    @property
    def top(self) -> np.float32:
        """The largest logit."""
        if self.descending:
            return self.logits[0]  # type: ignore[no-any-return]  # numpy says Any of one element
        return self.logits.max() if self.known_top is None else self.known_top

    @ieee
    def weights(self) -> Floats:
        """Softmax without its division: exp(logit - largest logit), shape (n,)."""
        top = self.top
        if top == np.inf:  # a tiny temperature took the largest logits out of float32's range
            return np.isposinf(self.logits).astype(np.float32)
        weights: Floats = self.logits - top
        return np.exp(weights, out=weights)

    @ieee
    def probabilities(self) -> Floats:
        """Softmax over the candidates, shape (n,); at least one of them is above zero."""
        weights = self.weights()
        weights /= weights.sum()
        return weights


def largest(values: Floats, k: int) -> tuple[Ids, Floats]:
    """Find the k largest values without sorting the rest.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
        NaN counts as larger than any number.
    k : int
        1 <= k <= n.

    Returns
    -------
    ids : ndarray of int64, shape (k,)
        Indices, the largest value first; of equals the smaller index first.
    found : ndarray of float32, shape (k,)
        The values there.
    """
    ids, found = np.empty(k, np.int64), np.empty(k, np.float32)
    _kernels.largest(values, ids, found)
    return ids, found


def first_of_largest(logits: Floats, position: int | None = None) -> int:
    """Find the largest logit; of equals the first.

    Raises
    ------
    NumericError
        If a logit is NaN or plus infinity, or if none is finite.
    """
    at = int(logits.argmax())  # NaN counts as the largest
    if not math.isfinite(logits[at]):
        raise no_numbers(logits, position)
    return at


def no_numbers(logits: Floats, position: int | None) -> NumericError:
    """Make the error that says what is wrong with logits."""
    where = "" if position is None else f" at position {position}"
    return NumericError(f"the logits{where} cannot be sampled: {_what_is_wrong(logits)}")


def _what_is_wrong(logits: Floats) -> str:
    for name, bad in (("NaN", np.isnan(logits)), ("infinite", np.isposinf(logits))):
        if count := int(bad.sum()):
            return f"{count} of {len(logits)} are {name}, the first of them for id {bad.argmax()}"
    return f"all {len(logits)} are minus infinity"

"""The tokens still in play between the logits and the draw.

Every sampling stage takes `Candidates` and returns `Candidates`: ids and their logits, never
changed in place. Probabilities do not exist until a stage or the draw asks for them; then they are
the softmax over the candidates that are left. At least one candidate is always left.

Everything is float32: a vocabulary of 262144 logits is read several times for each token, and the
time for that must stay far below a millisecond. Sums of probabilities are float64 where they are
cumulative.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rml.errors import NumericError

__all__ = ["Candidates", "Floats", "Ids", "largest"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

# `largest` looks at the maxima of this many groups before it looks at single values.
_GROUPS = 1024


@lru_cache(maxsize=4)
def _every_id(n: int) -> Ids:
    ids = np.arange(n, dtype=np.intp)
    ids.flags.writeable = False
    return ids


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be drawn.

    Attributes
    ----------
    ids : ndarray of intp, shape (n,)
        Token ids, n >= 1.
    logits : ndarray of float32, shape (n,)
        Their scores; minus infinity is a token that cannot be drawn. Not to be written to.
    descending : bool
        Whether the logits are sorted, the largest first.
    """

    ids: Ids
    logits: Floats
    descending: bool = False

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
        top = logits[logits.argmax()]  # NaN counts as the largest
        if not np.isfinite(top):
            where = "" if position is None else f" at position {position}"
            raise NumericError(f"the logits{where} cannot be sampled: {_what_is_wrong(logits)}")
        return cls(_every_id(len(logits)), logits)

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, chosen: Ids | npt.NDArray[np.bool_] | slice, *, descending: bool) -> "Candidates":
        """Keep the candidates at some indices, or those where a mask is true."""
        return Candidates(self.ids[chosen], self.logits[chosen], descending)

    def with_logits(self, logits: Floats) -> "Candidates":
        """Give the same tokens other scores, in no known order."""
        return Candidates(self.ids, logits)

    def indices_of(self, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Find tokens among the candidates.

        Returns
        -------
        indices : ndarray of intp
            Where the tokens that are present stand.
        present : ndarray of bool, shape of `ids`
            Which of `ids` are candidates.
        """
        if self.ids is _every_id(len(self)):
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
        largest: np.float32 = self.logits[0] if self.descending else self.logits.max()
        return largest

    def weights(self) -> Floats:
        """Softmax without its division: exp(logit - largest logit), shape (n,)."""
        top = self.top
        if top == np.inf:  # a tiny temperature took the largest logits out of float32's range
            return np.isposinf(self.logits).astype(np.float32)
        with np.errstate(over="ignore", under="ignore"):
            weights: Floats = np.exp(self.logits - top)
        return weights

    def probabilities(self) -> Floats:
        """Softmax over the candidates, shape (n,); at least one of them is above zero."""
        weights = self.weights()
        weights /= weights.sum()
        return weights


def largest(values: Floats, k: int) -> Ids:
    """Find the k largest values without sorting the rest.

    Values are dealt into groups, and the k-th largest of the groups' maxima is a lower bound of the
    k-th largest value: what does not reach it needs no sorting.

    Parameters
    ----------
    values : ndarray of float32, shape (n,)
        No NaN among them.
    k : int
        1 <= k <= n.

    Returns
    -------
    ndarray of intp, shape (k,)
        Indices, the largest value first; of equals the smaller index first.
    """
    rows = len(values) // _GROUPS
    if rows > 1 and k <= _GROUPS // 4:
        maxima = values[: rows * _GROUPS].reshape(rows, _GROUPS).max(axis=0)  # a column is a group
        chosen = np.flatnonzero(values >= _kth_largest(maxima, k))
    else:
        chosen = np.arange(len(values), dtype=np.intp)
    found = values[chosen]
    if k < len(found):
        reach = found >= _kth_largest(found, k)
        chosen, found = chosen[reach], found[reach]
    # `chosen` ascends, so a stable sort puts the smaller index first among equals.
    first: Ids = chosen[np.argsort(-found, kind="stable")[:k]]
    return first


def _kth_largest(values: Floats, k: int) -> np.float32:
    at = len(values) - k
    kth: np.float32 = np.partition(values, at)[at]
    return kth


def _what_is_wrong(logits: Floats) -> str:
    for name, bad in (("NaN", np.isnan(logits)), ("infinite", np.isposinf(logits))):
        if count := int(bad.sum()):
            return f"{count} of {len(logits)} are {name}, the first of them for id {bad.argmax()}"
    return f"all {len(logits)} are minus infinity"

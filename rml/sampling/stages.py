"""The stages of sampling, each a small pure function, and the draw.

A stage takes `Candidates` and returns those that are left, at least one, or the same with other
logits. `sampler` puts the stages together; those that depend on what was said are in `penalties`.

Sources: top-p, Holtzman et al. (arXiv 1904.09751); min-p, Nguyen et al. (arXiv 2407.01082);
typical-p, Meister et al. (arXiv 2202.00666); top-n-sigma, Tang et al. (arXiv 2411.07641); Mirostat
2, Basu et al. (arXiv 2007.14966); XTC, p-e-w, text-generation-webui pull request 6335; dynamic
temperature, kalomaze's entropy scheme as in llama.cpp. Borders are those of llama.cpp's tests.
"""

import math

import numpy as np
import numpy.typing as npt

from rml._kernels.choose_py import BORDER
from rml._kernels.ieee import ieee
from rml.sampling.candidates import Candidates, Floats, largest
from rml.sampling.settings import GREEDY_BELOW

__all__ = [
    "draw",
    "greedy",
    "limit_surprise",
    "min_p",
    "temperature",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typical_p",
    "xtc",
]

# The smallest normal float32: less than any probability that matters.
_TINY = float(np.finfo(np.float32).tiny)


@ieee
def temperature(
    candidates: Candidates, value: float, *, dynamic_range: float = 0.0, exponent: float = 1.0
) -> Candidates:
    """Divide the logits by the temperature, which may depend on the candidates' entropy."""
    if dynamic_range > 0 and len(candidates) > 1:
        low, high = max(0.0, value - dynamic_range), value + dynamic_range
        entropy = _entropy(candidates.probabilities()) / math.log(len(candidates))
        value = low + (high - low) * entropy**exponent
    if value == 1.0:
        return candidates
    divisor, top = np.float32(max(value, GREEDY_BELOW)), candidates.top
    if math.isfinite(hottest := top / divisor):
        logits = candidates.logits / divisor
    else:  # out of float32's range: differences count
        hottest, logits = np.float32(0), (candidates.logits - top) / divisor
    return Candidates(candidates.ids, logits, candidates.descending, hottest)


@ieee
def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keep logits within `n` standard deviations of the largest one; n <= 0 keeps all."""
    if n <= 0:
        return candidates
    logits = candidates.logits
    finite = logits if np.isfinite(logits.min()) else logits[np.isfinite(logits)]
    spread = float(finite.std())
    if not math.isfinite(spread):
        spread = float(finite.std(dtype=np.float64))
    least = float(candidates.top) - n * spread
    return candidates.where(logits >= least)


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` largest logits, sorted; k <= 0 or k >= n keeps all as they are."""
    if k <= 0 or k >= len(candidates):
        return candidates
    if candidates.descending:
        return candidates.first(k)
    indices, logits = largest(candidates.logits, k)
    return Candidates(candidates.ids[indices], logits, descending=True)


@ieee
def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the likeliest tokens until their probabilities sum to `p`; p >= 1 keeps all."""
    if p >= 1:
        return candidates
    weights = candidates.weights()
    if candidates.descending:
        cumulative = np.cumsum(weights, dtype=np.float64)
        count = 1 + int(np.searchsorted(cumulative[:-1], (p - BORDER) * cumulative[-1]))
        return candidates.first(count)
    total = float(weights.sum())
    goal = (p - BORDER) * total
    # Tokens below this share, all together, cannot be what is missing to `p`: they need no sorting.
    share = (1 - p) * total / len(weights)
    likely = np.flatnonzero(weights >= np.float32(min(1.0, 16 * share)))
    if weights[likely].sum(dtype=np.float64) < goal:  # most often these are enough
        likely = np.flatnonzero(weights >= np.float32(share))
    weights = weights[likely]
    likeliest = np.sort(weights)[::-1]
    count = _count_to(goal, likeliest)
    least = likeliest[count - 1]
    kept = weights >= least
    # Of tokens as likely as the last one kept, the smallest logits go; of equals the largest ids.
    if excess := np.count_nonzero(kept) - count:
        equal = np.flatnonzero(weights == least)
        order = np.argsort(-candidates.logits[likely[equal]], kind="stable")
        kept[equal[order[-excess:]]] = False
    return candidates.take(likely[kept])


@ieee
def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep tokens at least `p` times as likely as the likeliest one; p <= 0 keeps all."""
    if p <= 0:
        return candidates
    least = candidates.top + np.float32(min(0.0, math.log(p)))
    return candidates.where(candidates.logits >= least)


@ieee
def typical_p(candidates: Candidates, p: float) -> Candidates:
    """Keep tokens whose surprise is nearest to the entropy, until they exceed `p` together."""
    if p >= 1:
        return candidates
    probabilities = candidates.probabilities()
    distance = np.abs(_entropy(probabilities) + np.log(_positive(probabilities)))
    order = np.argsort(distance, kind="stable")
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    count = int(np.searchsorted(cumulative, p, side="right")) + 1
    kept = np.zeros(len(candidates), np.bool_)
    kept[order[:count]] = True
    return candidates.where(kept)


@ieee
def xtc(candidates: Candidates, probability: float, threshold: float, chance: float) -> Candidates:
    """Exclude the top choices: keep, of all tokens above `threshold`, only the least likely.

    Parameters
    ----------
    candidates : Candidates
        Tokens to choose from.
    probability : float
        How often this happens at all.
    threshold : float
        Probability that makes a token a top choice.
    chance : float
        Random number in [0, 1); it happens if this is below `probability`.
    """
    if chance >= probability or threshold > 0.5:
        return candidates
    probabilities = candidates.probabilities()
    threshold = max(threshold, _TINY)  # a token that cannot be drawn is no top choice
    top_choices = np.flatnonzero(probabilities >= threshold)
    if len(top_choices) < 2:
        return candidates
    # Of equally likely ones the one with the largest id stays.
    spared = top_choices[::-1][probabilities[top_choices[::-1]].argmin()]
    kept = probabilities < threshold
    kept[spared] = True
    return candidates.where(kept)


@ieee
def limit_surprise(candidates: Candidates, limit: float) -> Candidates:
    """Mirostat's cut: keep tokens of at most `limit` bits of surprise, or else the likeliest."""
    probabilities = candidates.probabilities()
    least = min(2.0 ** min(0.0, -limit), float(probabilities.max()))
    return candidates.where(probabilities >= least)


def greedy(candidates: Candidates) -> int:
    """Take the token with the largest logit; of equals the one that comes first."""
    return int(candidates.ids[0 if candidates.descending else candidates.logits.argmax()])


@ieee
def draw(candidates: Candidates, chance: float) -> int:
    """Draw a token by its probability.

    Parameters
    ----------
    candidates : Candidates
        Tokens to choose from.
    chance : float
        Random number in [0, 1): the token is the one at which the cumulative probability exceeds
        it.
    """
    weights = candidates.weights()
    at, n = 0, 1024
    if len(weights) > 4 * n:  # find the block first: a cumulative sum of a vocabulary is slow
        rows = len(weights) // n
        sums = np.append(
            weights[: rows * n].reshape(rows, n).sum(axis=1), weights[rows * n :].sum()
        )
        cumulative = np.cumsum(sums, dtype=np.float64)
        goal = chance * cumulative[-1]
        block = _reached(cumulative, goal)
        at = block * n
        # Where in the block the goal lies, from 0 to 1.
        before = cumulative[block] - sums[block]
        chance = min(1.0, max(0.0, float((goal - before) / sums[block])))
        weights = weights[at : at + n]
    cumulative = np.cumsum(weights, dtype=np.float64)
    return int(candidates.ids[at + _reached(cumulative, chance * cumulative[-1])])


def _count_to(goal: float, weights: Floats) -> int:
    """How many of the first weights reach a sum; all of them if they do not."""
    cumulative = np.cumsum(weights.astype(np.float64))  # faster than casting on the way
    return 1 + int(np.searchsorted(cumulative[:-1], goal))


def _reached(cumulative: npt.NDArray[np.float64], goal: float) -> int:
    """First index whose sum exceeds `goal`; rounding never leads to one that adds nothing."""
    at = int(np.searchsorted(cumulative, goal, side="right"))
    return min(at, int(np.searchsorted(cumulative, cumulative[-1])))


def _positive(probabilities: Floats) -> Floats:
    return np.maximum(probabilities, np.float32(_TINY))


def _entropy(probabilities: Floats) -> float:
    return -float((probabilities * np.log(_positive(probabilities))).sum())

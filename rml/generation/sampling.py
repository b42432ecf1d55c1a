"""From logits to one token: a chain of small pure stages, then a draw.

Order: logits processors, banned tokens, `logit_bias`; then the stages of `STAGES` that
`SamplingSettings.samplers` names, in its order (by default penalties, DRY, temperature,
top-n-sigma, top-k, top-p, min-p, typical-p, XTC); then the draw. The softmax is taken by the first
stage that needs probabilities, over the tokens that are left, and again after each cut.

A stage never empties the candidates. At temperature 0 nothing is drawn: the largest logit wins
(of equals the smaller id), after masks, biases and penalties given as arguments.

Sources: top-p, Holtzman et al. (arXiv 1904.09751); min-p, Nguyen et al. (arXiv 2407.01082);
typical-p, Meister et al. (arXiv 2202.00666); top-n-sigma, Tang et al. (arXiv 2411.07641); Mirostat
2, Basu et al. (arXiv 2007.14966); XTC, p-e-w, text-generation-webui pull request 6335; dynamic
temperature, kalomaze's entropy scheme as in llama.cpp. Borders are those of llama.cpp's tests.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError
from rml.generation.candidates import Candidates, Floats, largest
from rml.generation.penalties import PhraseLog, Window, penalize, phrase_penalties, subtract
from rml.generation.settings import GREEDY_BELOW, SamplingSettings

__all__ = [
    "STAGES",
    "LogitsProcessor",
    "Sampler",
    "draw",
    "greedy",
    "min_p",
    "temperature",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typical_p",
    "xtc",
]

# Called with the ids so far (prompt included) and the logits; returns the logits to go on with.
LogitsProcessor = Callable[[Sequence[int], Floats], Floats]

# Cumulative float32 probabilities this close to a border count as having reached it.
_BORDER = 5e-7


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
    divisor = np.float32(max(value, GREEDY_BELOW))
    with np.errstate(over="ignore"):
        logits = candidates.logits / divisor
        if not np.isfinite(logits.max()):  # out of float32's range: only differences count
            logits = (candidates.logits - candidates.logits.max()) / divisor
    return Candidates(candidates.ids, logits, candidates.descending)


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keep logits within `n` standard deviations of the largest one; n <= 0 keeps all."""
    if n <= 0:
        return candidates
    logits = candidates.logits
    finite = logits if np.isfinite(logits.min()) else logits[np.isfinite(logits)]
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(finite.std())
    if not math.isfinite(spread):
        spread = float(finite.std(dtype=np.float64))
    least = float(logits.max()) - n * spread
    return candidates.at(logits >= least, descending=candidates.descending)


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` largest logits, sorted; k <= 0 or k >= n keeps all as they are."""
    if k <= 0 or k >= len(candidates):
        return candidates
    if candidates.descending:
        return candidates.at(slice(k), descending=True)
    return candidates.at(largest(candidates.logits, k), descending=True)


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the likeliest tokens until their probabilities sum to `p`; p >= 1 keeps all."""
    if p >= 1:
        return candidates
    weights = candidates.weights()
    total = float(weights.sum())
    # Tokens below this share, all together, cannot be what is missing to `p`: they need no sorting.
    share = np.float32((1 - p) * total / len(weights))
    likeliest = np.sort(weights[weights >= share])[::-1]
    cumulative = np.cumsum(likeliest.astype(np.float64))  # faster than casting on the way
    count = 1 + int(np.searchsorted(cumulative[:-1], (p - _BORDER) * total))
    least = likeliest[count - 1]
    kept = weights >= least
    # Of tokens as likely as the last one kept, those with the largest ids go.
    if excess := int(kept.sum()) - count:
        kept[np.flatnonzero(weights == least)[-excess:]] = False
    return candidates.at(kept, descending=candidates.descending)


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep tokens at least `p` times as likely as the likeliest one; p <= 0 keeps all."""
    if p <= 0:
        return candidates
    least = candidates.logits.max() + np.float32(min(0.0, math.log(p)))
    return candidates.at(candidates.logits >= least, descending=candidates.descending)


def typical_p(candidates: Candidates, p: float) -> Candidates:
    """Keep tokens whose surprise is nearest to the entropy, until they exceed `p` together."""
    if p >= 1:
        return candidates
    probabilities = candidates.probabilities()
    distance = np.abs(_entropy(probabilities) + np.log(_positive(probabilities)))
    order = np.argsort(distance, kind="stable")
    cumulative = np.cumsum(probabilities[order], dtype=np.float64)
    count = int(np.searchsorted(cumulative, p, side="right")) + 1
    return candidates.at(np.sort(order[:count]), descending=candidates.descending)


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
    top_choices = np.flatnonzero(probabilities >= threshold)
    if len(top_choices) < 2:
        return candidates
    # Of equally likely ones the one with the largest id stays.
    spared = top_choices[::-1][probabilities[top_choices[::-1]].argmin()]
    kept = probabilities < threshold
    kept[spared] = True
    return candidates.at(kept, descending=candidates.descending)


def greedy(candidates: Candidates) -> int:
    """Take the token with the largest logit; of equals the one that comes first."""
    return int(candidates.ids[candidates.logits.argmax()])


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


def _reached(cumulative: npt.NDArray[np.float64], goal: float) -> int:
    """First index whose sum exceeds `goal`; rounding never leads to one that adds nothing."""
    at = int(np.searchsorted(cumulative, goal, side="right"))
    return min(at, int(np.searchsorted(cumulative, cumulative[-1])))


def _positive(probabilities: Floats) -> Floats:
    return np.maximum(probabilities, np.finfo(np.float32).tiny)


def _entropy(probabilities: Floats) -> float:
    return -float((probabilities * np.log(_positive(probabilities))).sum())


class Sampler:
    """Chooses tokens; owns the random numbers, the windows of the penalties and Mirostat's state.

    Parameters
    ----------
    settings : SamplingSettings, optional
        What to do; the defaults if not given.
    seed : int
        Start of the random numbers. The same seed, settings and logits give the same tokens on
        every machine and with every version of Python (`random.Random.random` promises that).
    n_tokens : int, optional
        Size of the vocabulary where the decoder has more rows than there are tokens: ids from here
        on are padding and never chosen.
    banned : sequence of int
        Ids that are never chosen.
    processors : sequence of callable
        Each is called with the ids so far, prompt included, and a copy of the logits, and returns
        the logits to go on with. They come first, so that they cannot undo a mask.
    token_bytes : callable, optional
        Gives the bytes of a token; DRY needs it to find its breakers.

    Attributes
    ----------
    settings : SamplingSettings
        What is in effect.
    seed : int
        As given.

    Raises
    ------
    ArgumentError
        If `logit_bias` or `banned` name ids outside the vocabulary, or DRY lacks `token_bytes`.
    """

    def __init__(
        self,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        *,
        n_tokens: int | None = None,
        banned: Sequence[int] = (),
        processors: Sequence[LogitsProcessor] = (),
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self.settings = (settings or SamplingSettings()).in_effect()
        self.seed = seed
        self._random = random.Random(seed)  # noqa: S311 - no secrets are made of these
        self._n_tokens = n_tokens
        self._banned = np.asarray(sorted(set(banned)), np.intp)
        self._bias_ids = np.fromiter(self.settings.logit_bias, np.intp)
        self._biases = np.fromiter(self.settings.logit_bias.values(), np.float32)
        for name, ids in (("logit_bias", self._bias_ids), ("banned", self._banned)):
            if n_tokens is not None and len(ids) and ids.max() >= n_tokens:
                raise ArgumentError(f"{name} names token {ids.max()} of a vocabulary of {n_tokens}")
        self._processors = tuple(processors)
        self._said: list[int] = []
        self._window = Window(self.settings.repeat_last_n if self.settings.has_penalties else 0)
        self._phrases = PhraseLog(
            self.settings.dry_last_n if self.settings.dry_multiplier else 0,
            [text.encode() for text in self.settings.dry_breakers],
            token_bytes or _no_token_bytes,
        )
        self._surprise_limit = 2 * self.settings.mirostat_tau  # Mirostat's mu, in bits
        self._stages = [STAGES[name] for name in self.settings.samplers]

    def accept(self, ids: Sequence[int]) -> None:
        """Take note of tokens that are now part of the text: the prompt, then what was chosen."""
        self._window.accept(ids)
        self._phrases.accept(ids)
        if self._processors:
            self._said.extend(ids)

    def sample(self, logits: Floats, position: int | None = None) -> int:
        """Choose the next token; it counts as said only after `accept`.

        Parameters
        ----------
        logits : ndarray of float32, shape (n_vocab,)
            Scores of the decoder; not changed.
        position : int, optional
            Place in the sequence, for the message of an error.

        Raises
        ------
        NumericError
            If a logit is NaN or plus infinity, or if none is finite.
        ArgumentError
            If masks, biases or processors leave no token.
        """
        candidates = self.candidates(logits, position)
        if self.settings.is_greedy:
            return greedy(candidates)
        if self.settings.mirostat:
            return self._draw_by_surprise(candidates)
        return draw(candidates, self.chance())

    def candidates(self, logits: Floats, position: int | None = None) -> Candidates:
        """Tokens that all stages leave for the draw; the arguments are those of `sample`."""
        candidates = self._allowed(Candidates.of(logits[: self._n_tokens], position))
        for stage in self._stages:
            candidates = stage(candidates, self)
        return candidates

    def chance(self) -> float:
        """Return the next random number, in [0, 1)."""
        return self._random.random()

    def penalized(self, candidates: Candidates) -> Candidates:
        """Apply the repetition, presence and frequency penalties to what was said."""
        settings = self.settings
        return penalize(
            candidates,
            self._window,
            repeat=settings.repeat_penalty,
            presence=settings.presence_penalty,
            frequency=settings.frequency_penalty,
        )

    def without_phrases(self, candidates: Candidates) -> Candidates:
        """Apply DRY to what was said."""
        settings = self.settings
        penalties = phrase_penalties(
            self._phrases,
            multiplier=settings.dry_multiplier,
            base=settings.dry_base,
            allowed_length=settings.dry_allowed_length,
        )
        return subtract(candidates, penalties)

    def _allowed(self, candidates: Candidates) -> Candidates:
        """Apply processors, biases and bans."""
        if not (self._processors or len(self._bias_ids) or len(self._banned)):
            return candidates
        logits = candidates.logits.copy()
        for process in self._processors:
            logits = np.array(process(self._said, logits), np.float32)
            if logits.shape != candidates.logits.shape:
                raise ArgumentError(
                    f"a logits processor returned shape {logits.shape}, "
                    f"but {candidates.logits.shape} is needed"
                )
        logits[self._bias_ids] += self._biases
        logits[self._banned] = -np.inf
        if np.isneginf(logits.max()):
            raise ArgumentError("bans, logit_bias and logits processors leave no token to choose")
        return Candidates.of(logits)

    def _draw_by_surprise(self, candidates: Candidates) -> int:
        """Mirostat 2: cut at the surprise limit, draw, and move the limit by the error."""
        probabilities = candidates.probabilities()
        least = min(2.0**-self._surprise_limit, float(probabilities.max()))
        candidates = candidates.at(probabilities >= least, descending=candidates.descending)
        token = draw(candidates, self.chance())
        probability = candidates.probabilities()[(candidates.ids == token).argmax()]
        error = -math.log2(probability) - self.settings.mirostat_tau
        self._surprise_limit -= self.settings.mirostat_eta * error
        return token


def _no_token_bytes(token: int) -> bytes:
    raise ArgumentError(f"dry_multiplier needs token_bytes, to look for breakers in token {token}")


Stage = Callable[[Candidates, Sampler], Candidates]

# A further stage is one entry here, its name in settings.SAMPLERS and its settings beside it.
STAGES: Mapping[str, Stage] = {
    "penalties": lambda candidates, sampler: sampler.penalized(candidates),
    "dry": lambda candidates, sampler: sampler.without_phrases(candidates),
    "temperature": lambda candidates, sampler: temperature(
        candidates,
        sampler.settings.temperature,
        dynamic_range=sampler.settings.dynatemp_range,
        exponent=sampler.settings.dynatemp_exponent,
    ),
    "top_n_sigma": lambda candidates, sampler: top_n_sigma(
        candidates, sampler.settings.top_n_sigma
    ),
    "top_k": lambda candidates, sampler: top_k(candidates, sampler.settings.top_k),
    "top_p": lambda candidates, sampler: top_p(candidates, sampler.settings.top_p),
    "min_p": lambda candidates, sampler: min_p(candidates, sampler.settings.min_p),
    "typical_p": lambda candidates, sampler: typical_p(candidates, sampler.settings.typical_p),
    "xtc": lambda candidates, sampler: xtc(
        candidates,
        sampler.settings.xtc_probability,
        sampler.settings.xtc_threshold,
        sampler.chance() if sampler.settings.xtc_probability else 1.0,
    ),
}

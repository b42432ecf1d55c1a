"""From logits to one token: the stages of sampling in order, then a draw.

Order: logits processors, `logit_bias`, banned tokens and `mask`; then the stages of `STAGES` that
`SamplingSettings.samplers` names, in its order (by default penalties, DRY, temperature,
top-n-sigma, top-k, top-p, min-p, typical-p, XTC); then the draw. The softmax is taken by the first
stage that needs probabilities, over the tokens that are left, and again after each cut.

At temperature 0 nothing is drawn: the largest logit wins (of equals the smaller id), after masks,
biases and penalties given as arguments.

Only `accept` changes what a sampler knows. Chance is a function of the seed, of how many tokens
were accepted and of what is drawn, so `sample` may be asked again, or its answer be dropped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.ieee import ieee
from rml.errors import ArgumentError
from rml.ranges import checked, functions, integer, shown, token_ids
from rml.sampling import stages
from rml.sampling.candidates import Candidates, Floats, first_of_largest, no_numbers
from rml.sampling.chance import Draw, chance
from rml.sampling.penalties import PhraseLog, Window, penalize, phrase_penalties, subtract
from rml.sampling.settings import SamplingSettings

__all__ = ["STAGES", "LogitsProcessor", "Mask", "Sampler"]

# Called with the ids so far (prompt included) and the logits; returns the logits to go on with.
LogitsProcessor = Callable[[Sequence[int], Floats], Floats]
# True for every token that may be chosen: once for all tokens, or called with the ids so far.
Mask = npt.NDArray[np.bool_] | Callable[[Sequence[int]], npt.NDArray[np.bool_]]


class Sampler:
    """Chooses tokens; owns the windows of the penalties and Mirostat's state.

    Parameters
    ----------
    settings : SamplingSettings, optional
        What to do; the defaults if not given.
    seed : int
        Start of the random numbers, from 0 to 2**64 - 1. They are the same on every machine and
        with every version of Python, and depend on nothing but the seed and how many tokens were
        accepted: see `rml.sampling.chance`.
    n_tokens : int, optional
        Size of the vocabulary where the decoder has more rows than there are tokens: ids from here
        on are padding and never chosen.
    banned : sequence of int
        Ids that are never chosen.
    processors : sequence of callable
        Each is called with the ids so far, prompt included, and a copy of the logits, and returns
        the logits to go on with. They come first, so that they cannot undo a mask.
    mask : ndarray of bool, shape (n_tokens,), or callable
        True for every token that may be chosen; a callable is given the ids so far, prompt
        included, and returns such an array for the next token.
    token_bytes : callable, optional
        Gives the bytes of a token; DRY needs it to find its breakers.

    Attributes
    ----------
    settings : SamplingSettings
        What is in effect.
    seed : int
        As given.
    surprise_limit : float
        Mirostat's mu, in bits: all that it has learned from the tokens so far.

    Raises
    ------
    ArgumentError
        If `seed` is out of its range, `logit_bias` or `banned` name ids outside the vocabulary, or
        DRY lacks `token_bytes`.
    """

    def __init__(
        self,
        settings: SamplingSettings | None = None,
        seed: int = 0,
        *,
        n_tokens: int | None = None,
        banned: Sequence[int] = (),
        processors: Sequence[LogitsProcessor] = (),
        mask: Mask | None = None,
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        if not isinstance(settings, SamplingSettings | None):
            raise ArgumentError(f"settings are SamplingSettings, not {type(settings).__name__}")
        if n_tokens is not None:
            n_tokens = checked("n_tokens", n_tokens, integer(1))
        banned = checked("banned", banned, token_ids)
        processors = checked("processors", processors, functions)
        self.settings = (settings or SamplingSettings()).in_effect()
        self.seed: int = checked("seed", seed, integer(0, 2**64 - 1))
        self._n_tokens = n_tokens
        limit = 2**63 if n_tokens is None else n_tokens  # ids are integers of 64 bits
        for name, ids in (("logit_bias", self.settings.logit_bias), ("banned", banned)):
            if (largest := max(ids, default=-1)) >= limit:
                raise ArgumentError(
                    f"{name} names token {shown(largest)} of a vocabulary of {limit}"
                )
        suppressed = {i for i in self.settings.suppress_tokens if i < limit}
        self._banned = np.asarray(sorted({*banned, *suppressed}), np.int64)
        self._bias_ids = np.fromiter(self.settings.logit_bias, np.int64)
        self._biases = np.fromiter(self.settings.logit_bias.values(), np.float32)
        self._processors = processors
        self._mask = mask
        self._keeps_text = bool(self._processors) or callable(mask)
        self._said: list[int] = []
        self._window = Window(self.settings.repeat_last_n if self.settings.has_penalties else 0)
        self._phrases = PhraseLog(
            self.settings.dry_last_n if self.settings.dry_multiplier else 0,
            [text.encode("utf-8", "surrogatepass") for text in self.settings.dry_breakers],
            token_bytes or _no_token_bytes,
        )
        self._n_accepted = 0
        self.surprise_limit = 2 * self.settings.mirostat_tau  # Mirostat's mu, in bits
        # What Mirostat's last draw was from, until a token is accepted.
        self._drawn_from: Candidates | None = None
        names = _arranged(self.settings)
        self._stages = [STAGES[name] for name in names]
        self._changes_logits = bool(
            self._processors or mask is not None or len(self._bias_ids) or len(self._banned)
        )
        # Penalties and DRY, which begin most chains: they change the logits of single tokens.
        n_first = next((i for i, name in enumerate(names) if name not in _OF_WHAT_WAS_SAID), None)
        self._first_stages = self._stages[:n_first]
        self._can_choose = names[len(self._first_stages) :] in _CHOSEN_AT_ONCE
        # Of `top_k` tokens, once there are logits: a larger number than they are keeps all of them.
        self._largest_ids, self._largest = np.empty(0, np.int64), np.empty(0, np.float32)
        self._chosen = np.empty(1, np.int64)
        # What biases, bans and penalties are written into; its contents last for one token.
        self._changed: Floats | None = None

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "a Sampler is neither pickled nor copied: make another one from its settings and seed"
        )

    def accept(self, ids: Sequence[int]) -> None:
        """Take note of tokens that are now part of the text: the prompt, then what was chosen.

        In how many calls this is said makes no difference. (Mirostat measures the token that
        follows a `sample` by the logits that were given there, so that one begins a call.)
        """
        if self._drawn_from is not None and len(ids):
            self._move_surprise_limit(self._drawn_from, ids[0])
            self._drawn_from = None
        self._n_accepted += len(ids)
        self._window.accept(ids)
        self._phrases.accept(ids)
        if self._keeps_text:
            self._said.extend(ids)

    def sample(self, logits: Floats, position: int | None = None) -> int:
        """Choose the next token; it counts as said only after `accept`.

        Until then the same logits give the same token.

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
        if self.settings.is_greedy and not (self._stages or self._changes_logits):
            return first_of_largest(logits[: self._n_tokens], position)
        if self._can_choose and self.settings.top_k < len(logits[: self._n_tokens]):
            return self._choose(logits[: self._n_tokens], position)
        candidates = self._left(logits, position)
        if self.settings.is_greedy:
            return stages.greedy(candidates)
        if self.settings.mirostat:
            candidates = stages.limit_surprise(candidates, self.surprise_limit)
            self._drawn_from = candidates
        return stages.draw(candidates, self.chance(Draw.TOKEN))

    def candidates(self, logits: Floats, position: int | None = None) -> Candidates:
        """Tokens that all stages leave for the draw; the arguments are those of `sample`."""
        left = self._left(logits, position)
        if left.logits is self._changed:  # the next token's
            return left.with_logits(left.logits.copy())
        return left

    def _left(self, logits: Floats, position: int | None) -> Candidates:
        candidates = self._allowed(_checked(logits[: self._n_tokens], position))
        for stage in self._stages:
            candidates = stage(candidates, self)
        return candidates

    def _choose(self, logits: Floats, position: int | None) -> int:
        """Do what the stages and the draw do, for the chains that two kernels cover."""
        given, settings = logits, self.settings
        if self._changes_logits or self._first_stages:
            if self._changes_logits:
                candidates = self._allowed(_checked(logits, position))
            else:  # penalties leave what is no number as it is: it will be found below
                candidates = Candidates.unchecked(logits)
            for stage in self._first_stages:
                candidates = stage(candidates, self)
            logits = candidates.logits
        if not len(self._largest):
            self._largest_ids = np.empty(settings.top_k, np.int64)
            self._largest = np.empty(settings.top_k, np.float32)
        _kernels.largest(logits, self._largest_ids, self._largest)
        if not math.isfinite(self._largest[0]):
            raise no_numbers(given, position)
        _kernels.choose(
            self._largest,
            self._chosen,
            temperature=settings.temperature,
            top_p=settings.top_p if "top_p" in settings.samplers else 1.0,
            min_p=settings.min_p if "min_p" in settings.samplers else 0.0,
            chance=self.chance(Draw.TOKEN),
        )
        return int(self._largest_ids[self._chosen[0]])

    def chance(self, draw: Draw) -> float:
        """Return the random number of a draw for the next token, in [0, 1)."""
        return chance(self.seed, self._n_accepted, draw)

    def penalized(self, candidates: Candidates) -> Candidates:
        """Apply the repetition, presence and frequency penalties to what was said."""
        settings = self.settings
        return penalize(
            candidates,
            self._window,
            repeat=settings.repeat_penalty,
            presence=settings.presence_penalty,
            frequency=settings.frequency_penalty,
            out=self._own(candidates),
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
        return subtract(candidates, penalties, self._own(candidates))

    def _own(self, candidates: Candidates) -> Floats:
        """Memory for changed logits of these candidates, which may be there already."""
        if self._changed is None or len(self._changed) != len(candidates):
            self._changed = np.empty(len(candidates), np.float32)
        return self._changed

    def _allowed(self, candidates: Candidates) -> Candidates:
        """Apply processors, biases, bans and the mask."""
        if not self._changes_logits:
            return candidates
        logits = self._own(candidates)
        logits[:] = candidates.logits
        for process in self._processors:
            found = _floats(process(self._said, logits.copy()))
            if found.shape != logits.shape:
                raise ArgumentError(
                    f"a logits processor returned shape {found.shape}, but {logits.shape} is needed"
                )
            logits[:] = found
        _add_at(logits, self._bias_ids, self._biases)
        logits[self._banned[: np.searchsorted(self._banned, len(logits))]] = -np.inf
        if self._mask is not None:
            logits[~self._allowed_by_mask(len(logits))] = -np.inf
        if logits.max() == -np.inf:
            raise ArgumentError(
                "mask, bans, logit_bias and logits processors leave no token to choose"
            )
        return Candidates.of(logits)

    def _allowed_by_mask(self, n: int) -> npt.NDArray[np.bool_]:
        mask = self._mask(self._said) if callable(self._mask) else self._mask
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.ndim != 1:
            raise ArgumentError("mask must be an array of bool, one for each token")
        if len(mask) < n:
            raise ArgumentError(f"mask has {len(mask)} values, but there are {n} tokens")
        return mask[:n]  # what is beyond is padding

    def _move_surprise_limit(self, candidates: Candidates, token: int) -> None:
        """Mirostat 2: move the limit by how far the surprise of a token is from the one wanted."""
        probability = float(candidates.probabilities()[candidates.ids == token].sum())
        if probability > 0:  # else something else than what was drawn: its surprise says nothing
            error = -math.log2(probability) - self.settings.mirostat_tau
            self.surprise_limit -= self.settings.mirostat_eta * error


# Stages that look at what was said before.
_OF_WHAT_WAS_SAID = ("penalties", "dry")

# What may follow them for the kernels `largest` and `choose` to do the rest.
_CHOSEN_AT_ONCE = (
    ["top_k", "temperature", "top_p", "min_p"],
    ["top_k", "temperature", "top_p"],
    ["top_k", "temperature", "min_p"],
    ["top_k", "temperature"],
)


def _arranged(settings: SamplingSettings) -> list[str]:
    """Order of the stages that do anything, with a cheaper one that chooses the same.

    Division keeps the order of logits, so top-k may come before the temperature that it follows:
    then 40 numbers are divided, not a vocabulary.
    """
    idle = {
        "penalties": not settings.has_penalties,
        "dry": not settings.dry_multiplier,
        "top_n_sigma": settings.top_n_sigma <= 0,
        "top_k": settings.top_k <= 0,
        "top_p": settings.top_p >= 1,
        "min_p": settings.min_p <= 0,
        "typical_p": settings.typical_p >= 1,
        "xtc": not settings.xtc_probability,
    }
    names = [name for name in settings.samplers if not idle.get(name)]
    if not settings.dynatemp_range:
        for i in range(len(names) - 1):
            if names[i : i + 2] == ["temperature", "top_k"]:
                names[i : i + 2] = ["top_k", "temperature"]
    return names


@ieee
def _floats(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float32)


@ieee
def _add_at(logits: Floats, ids: npt.NDArray[np.int64], amounts: Floats) -> None:
    logits[ids] += amounts


def _checked(logits: Floats, position: int | None) -> Candidates:
    return Candidates.of(np.ascontiguousarray(_floats(logits)), position)


def _no_token_bytes(token: int) -> bytes:
    raise ArgumentError(f"dry_multiplier needs token_bytes, to look for breakers in token {token}")


Stage = Callable[[Candidates, Sampler], Candidates]

# A further stage is one entry here, its name in settings.SAMPLERS and its settings beside it.
STAGES: Mapping[str, Stage] = {
    "penalties": lambda candidates, sampler: sampler.penalized(candidates),
    "dry": lambda candidates, sampler: sampler.without_phrases(candidates),
    "temperature": lambda candidates, sampler: stages.temperature(
        candidates,
        sampler.settings.temperature,
        dynamic_range=sampler.settings.dynatemp_range,
        exponent=sampler.settings.dynatemp_exponent,
    ),
    "top_n_sigma": lambda candidates, sampler: stages.top_n_sigma(
        candidates, sampler.settings.top_n_sigma
    ),
    "top_k": lambda candidates, sampler: stages.top_k(candidates, sampler.settings.top_k),
    "top_p": lambda candidates, sampler: stages.top_p(candidates, sampler.settings.top_p),
    "min_p": lambda candidates, sampler: stages.min_p(candidates, sampler.settings.min_p),
    "typical_p": lambda candidates, sampler: stages.typical_p(
        candidates, sampler.settings.typical_p
    ),
    "xtc": lambda candidates, sampler: stages.xtc(
        candidates,
        sampler.settings.xtc_probability,
        sampler.settings.xtc_threshold,
        sampler.chance(Draw.XTC),
    ),
}

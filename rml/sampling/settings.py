"""Every sampling setting: its name, default and range, and where a model's files keep it.

A setting is decided once for each call: an argument of the call wins over the model's own files
(`generation_config.json`, or the `general.sampling.*` keys of a GGUF file), and these win over the
defaults below. `SamplingSettings.origin` remembers which it was.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

import numpy as np

from rml.errors import ArgumentError, CheckpointError
from rml.ranges import Check, biases, checked, integer, listed, number, texts, token_ids

__all__ = [
    "GREEDY_BELOW",
    "LLAMA_CPP_SAMPLERS",
    "SAMPLERS",
    "SamplingSettings",
    "settings_of_gguf",
    "settings_of_hugging_face",
]

_log = logging.getLogger("rml")
_GGUF = "general.sampling."

# Below this temperature float32 quotients leave nothing but the largest logit.
GREEDY_BELOW = 1e-6

# The project's order. Masks and biases always come before these, the draw always after them.
SAMPLERS = (
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "xtc",
)

# llama.cpp's order, chosen by samplers="llama.cpp".
LLAMA_CPP_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)

# llama.cpp's letters (--sampler-seq, general.sampling.sequence) and its other spellings.
_SAMPLER_ALIASES = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "temp": "temperature",
    "typ_p": "typical_p",
    "typical": "typical_p",
}


def samplers(value: object) -> tuple[str, ...]:
    """Accept names of stages: a list, llama.cpp's ``"top_k;temp"`` or its letters ``"kt"``."""
    if isinstance(value, str):
        if value == "llama.cpp":
            return LLAMA_CPP_SAMPLERS
        names = value.split(";") if ";" in value or value in SAMPLERS else list(value)
    elif (found := listed(value)) is not None and all(isinstance(name, str) for name in found):
        names = found
    else:
        raise ValueError(f"must be a list of names out of {', '.join(SAMPLERS)}")
    result = tuple(_SAMPLER_ALIASES.get(name, name) for name in names)
    if unknown := [name for name in result if name not in SAMPLERS]:
        raise ValueError(f"must be names out of {', '.join(SAMPLERS)}; {unknown[0]!r} is none")
    return result


def mirostat_version(value: object) -> int:
    """Accept 0 (off) or 2."""
    version: int = integer(0, 2)(value)
    if version == 1:
        raise ValueError("must be 0 or 2: version 1 of Mirostat is not implemented")
    return version


def _setting(default: object, check: Check, gguf: str = "", hugging_face: str = "") -> Any:  # noqa: ANN401 - a dataclass field stands for a value of its default's type
    return field(
        default=default, metadata={"check": check, "gguf": gguf, "hugging_face": hugging_face}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the next token is chosen; every value is checked when the object is made.

    Attributes
    ----------
    temperature : float
        Logits are divided by it. 0, and anything below 1e-6, takes the largest logit: then only
        masks, `logit_bias` and penalties given as arguments apply.
    dynatemp_range, dynatemp_exponent : float
        If the range is above 0, the temperature moves within ``temperature +- range`` with the
        entropy of the candidates: ``(entropy / largest possible entropy) ** exponent``.
    top_k : int
        Keep the k likeliest tokens. 0 or -1: all.
    top_p : float
        Keep the likeliest tokens until their probabilities reach this sum; 1: all, 0: only the
        likeliest one.
    min_p : float
        Keep tokens at least this fraction as likely as the likeliest one. 0: all.
    typical_p : float
        Keep tokens whose surprise is nearest to the expected one until their probabilities exceed
        this sum. 1: all.
    top_n_sigma : float
        Keep tokens whose logit is within this many standard deviations of the largest. 0 or less:
        all.
    repeat_penalty : float
        Divides positive logits of tokens in the window, multiplies others. 1: off.
    repeat_last_n : int
        Window of the three penalties, in tokens, prompt included. 0: none, -1: everything.
    presence_penalty, frequency_penalty : float
        Taken off a token in the window: once, and once for each occurrence. 0: off.
    dry_multiplier, dry_base, dry_allowed_length, dry_last_n, dry_breakers
        DRY: a token that would continue a phrase of `length` tokens said before loses
        ``multiplier * base ** (length - allowed_length)``. A multiplier of 0: off. `dry_last_n` is
        a window as above, `dry_breakers` are texts across which no phrase is followed.
    xtc_probability, xtc_threshold : float
        With this probability, drop every token above the threshold but the least likely of them.
        A probability of 0 or a threshold above 0.5: off.
    mirostat, mirostat_tau, mirostat_eta
        2: after the penalties and the temperature, drop tokens more surprising than a bound that
        steers the surprise of the output to `tau` bits, at the rate `eta`. 0: off.
    samplers : tuple of str
        Stages in the order in which they run; what is not named does not run.
    suppress_tokens : tuple of int
        Ids that are never chosen. Those beyond the vocabulary do not matter.
    logit_bias : mapping of int to float
        Added to the logits of single tokens; minus infinity bans one.
    origin : mapping of str to str
        Where each setting that is no default came from: ``"argument"`` or the name of a file or
        key. Not part of equality.

    Raises
    ------
    ArgumentError
        If a value is out of its range.
    """

    temperature: float = _setting(0.8, number(0), "temp", "temperature")
    dynatemp_range: float = _setting(0.0, number(0, 100))
    dynatemp_exponent: float = _setting(1.0, number(0, 100))
    top_k: int = _setting(40, integer(-1), "top_k", "top_k")
    top_p: float = _setting(0.95, number(0, 1), "top_p", "top_p")
    min_p: float = _setting(0.05, number(0, 1), "min_p", "min_p")
    typical_p: float = _setting(1.0, number(0, 1), "", "typical_p")
    top_n_sigma: float = _setting(0.0, number(-1, 1000))
    repeat_penalty: float = _setting(
        1.0, number(0, 1000, above=True), "penalty_repeat", "repetition_penalty"
    )
    repeat_last_n: int = _setting(64, integer(-1), "penalty_last_n")
    presence_penalty: float = _setting(0.0, number(-100, 100))
    frequency_penalty: float = _setting(0.0, number(-100, 100))
    dry_multiplier: float = _setting(0.0, number(0, 100))
    dry_base: float = _setting(1.75, number(1, 100))
    dry_allowed_length: int = _setting(2, integer(1))
    dry_last_n: int = _setting(-1, integer(-1))
    dry_breakers: tuple[str, ...] = _setting(("\n", ":", '"', "*"), texts)
    xtc_probability: float = _setting(0.0, number(0, 1), "xtc_probability")
    xtc_threshold: float = _setting(0.1, number(0, 1), "xtc_threshold")
    mirostat: int = _setting(0, mirostat_version, "mirostat")
    mirostat_tau: float = _setting(5.0, number(0, 100), "mirostat_tau")
    mirostat_eta: float = _setting(0.1, number(0, 1), "mirostat_eta")
    samplers: tuple[str, ...] = _setting(SAMPLERS, samplers, "sequence")
    suppress_tokens: tuple[int, ...] = _setting(
        (), token_ids, "tokenizer.ggml.suppress_tokens", "suppress_tokens"
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata={"check": biases})
    origin: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for setting in fields(self):
            if check := setting.metadata.get("check"):
                value = checked(setting.name, getattr(self, setting.name), check)
                object.__setattr__(self, setting.name, value)

    def __str__(self) -> str:
        lists = {"suppress_tokens": self.suppress_tokens, "logit_bias": self.logit_bias}
        names = [name for name in self.names() if lists.get(name, True)]
        return "\n".join(
            f"{name:20} {getattr(self, name)!s:20} {self.origin.get(name, 'default')}"
            for name in names
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every setting's name."""
        return tuple(setting.name for setting in fields(cls) if setting.name != "origin")

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is taken, without chance."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether tokens in the window lose or gain anything."""
        return (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def in_effect(self) -> "SamplingSettings":
        """Resolve what excludes each other, as the sampler does.

        At temperature 0 only the penalties are left of the stages, and a penalty from a model's
        file is off: it must not make "greedy" something else behind the caller's back. Mirostat
        takes the place of all stages that cut.
        """
        if self.is_greedy:
            kept = [name for name in self.samplers if name in {"penalties", "dry"}]
            neutral = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
            from_file = {
                name: value
                for name, value in neutral.items()
                if self.origin.get(name, "argument") != "argument"
            }
            return self.replace({"samplers": kept, **from_file}, "temperature 0")
        if self.mirostat:
            kept = [n for n in self.samplers if n in {"penalties", "dry", "temperature"}]
            return self.replace({"samplers": kept}, f"mirostat {self.mirostat}")
        return self

    def replace(self, values: Mapping[str, Any], origin: str) -> "SamplingSettings":
        """Give some settings other values, and say where these came from."""
        kept = {name: getattr(self, name) for name in self.names()}
        origins = {**self.origin, **dict.fromkeys(values, origin)}
        return SamplingSettings(**{**kept, **values}, origin=origins)


def settings_of_gguf(metadata: Mapping[str, Any], path: object = "") -> SamplingSettings:
    """Read the `general.sampling.*` keys of a GGUF file.

    Raises
    ------
    CheckpointError
        If a value is out of its range.
    """
    result = SamplingSettings()
    for setting in fields(SamplingSettings):
        key = _gguf_key(setting)
        if key and key in metadata:
            value = metadata[key]
            if isinstance(value, np.ndarray):
                value = [i for i in value.tolist() if i != -1]  # some writers' "none"
            result = _with(result, setting.name, value, key, path)
    known = set(map(_gguf_key, fields(SamplingSettings)))
    if unknown := [key for key in metadata if key.startswith(_GGUF) and key not in known]:
        _log.warning("%s has keys that rml does not know: %s", path, ", ".join(unknown))
    return result


def _gguf_key(setting: "Field[Any]") -> str:
    name: str = setting.metadata.get("gguf", "")
    return name if not name or "." in name else _GGUF + name


def settings_of_hugging_face(config: Mapping[str, Any], path: object = "") -> SamplingSettings:
    """Read a `generation_config.json`.

    Transformers writes only what differs from its own defaults, so with ``do_sample: true`` a
    missing key means Transformers' default (temperature 1, top_k 50, top_p 1, no min_p).
    Without `do_sample` only the keys that are there count; ``do_sample: false`` is temperature 0.

    Raises
    ------
    CheckpointError
        If a value is out of its range.
    """
    result = SamplingSettings()
    origin = "generation_config.json"
    sampled = config.get("do_sample")
    if sampled is True:
        unsaid = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0}
        result = result.replace(unsaid, f"Transformers' default, for {origin}")
    for setting in fields(SamplingSettings):
        value = config.get(setting.metadata.get("hugging_face", ""))
        if value is not None:
            result = _with(result, setting.name, value, origin, path)
    if config.get("bad_words_ids") is not None:
        # Of several tokens in a row nothing is forbidden; `generation_config` says so.
        words = _with(result, "suppress_tokens", _single_words(config, path), origin, path)
        both = (*result.suppress_tokens, *words.suppress_tokens)
        result = words.replace({"suppress_tokens": tuple(dict.fromkeys(both))}, origin)
    if sampled is False:
        result = result.replace({"temperature": 0.0}, origin)
    return result


def _single_words(config: Mapping[str, Any], path: object) -> list[Any]:
    words = config["bad_words_ids"]
    if not isinstance(words, list) or not all(
        isinstance(word, list) and all(type(i) is int and i >= 0 for i in word) for word in words
    ):
        raise CheckpointError(
            f"{path}: generation_config.json: bad_words_ids={words!r:.60} must be lists of ids"
        )
    return [word[0] for word in words if len(word) == 1]


def _with(
    settings: SamplingSettings, name: str, value: object, origin: str, path: object
) -> SamplingSettings:
    # GGUF keeps numbers as float32: 0.8 is read as 0.800000011920929, which no one typed.
    if isinstance(value, float) and math.isfinite(value):
        value = float(f"{value:.7g}")
    try:
        return settings.replace({name: value}, origin)
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {origin}: {error}") from None

"""What one call asks for: the arguments of `generate`, `stream` and `chat`, checked.

Other tools' names for an argument are accepted; a name that means nothing is refused with the
nearest one that does.
"""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, Literal, TypedDict

import numpy as np

from rml.engine.session import Session
from rml.errors import ArgumentError
from rml.ranges import Check, boolean, checked, functions, integer, plain_text, texts, token_ids
from rml.sampling.sampler import LogitsProcessor, Mask
from rml.sampling.settings import SamplingSettings

__all__ = [
    "ALIASES",
    "DEFAULT_LENGTH",
    "ChatOptions",
    "GenerateOptions",
    "Progress",
    "Request",
    "canonical",
]

# Most tokens of a completion for which none is asked: a text has no natural end. An answer in a
# chat has one, so it may go on to the end of the context.
DEFAULT_LENGTH = 256

# Called during the prefill with the tokens evaluated and the tokens of the prompt.
Progress = Callable[[int, int], object]

ALIASES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "temp": "temperature",
    "typical": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "stop_strings": "stop",
    "logits_processors": "logits_processor",
}


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of a generation; `SamplingSettings` says what the sampling ones do.

    Attributes
    ----------
    max_tokens : int or None
        Most tokens to generate; 0: none. -1: until a stop or the end of the context. None, or not
        given: 256 for `generate` and `stream`; as -1 for `chat` and `stream_chat`.
    stop : str or list of str
        Strings that end the text before themselves.
    stop_token_ids : int or list of int
        Ids that end the text, besides those of the model.
    ignore_eos : bool
        Never choose an end token of the model.
    seed : int or None
        Start of the random numbers. None or -1: drawn, and returned with the result.
    logits_processor : callable or list of callables
        See `Sampler`.
    mask : ndarray of bool, or callable
        True for every token that may be chosen, for all tokens or, if callable, for the next one:
        see `Sampler`. An end token that it forbids is not chosen either.
    logprobs : bool or int
        Return the logprob of each token; a number asks for as many of the likeliest tokens, too.
    top_logprobs : int
        How many of the likeliest tokens `logprobs` lists for each place, 0 to 20.
    progress : callable
        Called after each part of the prompt as ``progress(done, total)``, in tokens.
    session : Session
        Where to evaluate. What it already holds of the prompt is not evaluated again, and it stays
        open. By default a new one that is closed at the end.
    truncate : str
        ``"left"``: shorten a prompt that is too long, instead of raising `ContextOverflow`. The
        oldest tokens are left out, a beginning-of-text token excepted; of a chat the oldest turns
        (a user's message and what follows it), never the system message or the last turn. The
        prompt then leaves room for `max_tokens` or for a quarter of the context, whichever is less.
        `Usage.dropped_tokens` of the result says how much was left out.
    echo : bool
        Begin the text with the prompt's, and with `logprobs` return those of its tokens, too; these
        need its evaluation as a whole, whatever the session holds. Not for chats.
    prefix_cache : bool
        Whether what other requests have evaluated of the same beginning is used, and what this one
        evaluates is left for others. It changes no result, only how long a prompt takes.
    parse_special : bool
        Whether the name of a control token in a prompt means that token. Leave it off for text
        that others wrote. Not for chats: there the template makes the control tokens.
    """

    max_tokens: int | None
    stop: str | Iterable[str]
    stop_token_ids: int | Collection[int]
    ignore_eos: bool
    seed: int | None
    logits_processor: LogitsProcessor | Sequence[LogitsProcessor]
    mask: Mask
    logprobs: bool | int
    top_logprobs: int
    progress: Progress
    session: Session | None
    truncate: Literal["left"] | None
    echo: bool
    prefix_cache: bool
    parse_special: bool
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    dry_breakers: str | Sequence[str]
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    samplers: str | Sequence[str]
    suppress_tokens: int | Collection[int]
    logit_bias: Mapping[int, float]
    # Names of other tools.
    max_new_tokens: int | None
    max_completion_tokens: int | None
    n_predict: int | None
    num_predict: int | None
    temp: float
    typical: float
    repetition_penalty: float
    stop_strings: str | Iterable[str]
    logits_processors: Sequence[LogitsProcessor]
    do_sample: bool


class ChatOptions(GenerateOptions, total=False):
    """Keyword arguments of a chat, besides those of `GenerateOptions`.

    Attributes
    ----------
    tools : list
        Descriptions of tools, each a mapping; an error where the template does not read them.
    continue_final_message : bool
        Go on with the last message instead of answering it.
    merge_system : bool
        Write the system message at the beginning of the first user message, for templates that
        refuse a system message.
    chat_template_kwargs : mapping
        Further variables of the template, such as ``{"enable_thinking": False}``; a warning names
        those that it does not read.
    """

    tools: Sequence[Any] | None
    continue_final_message: bool
    merge_system: bool
    chat_template_kwargs: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A checked call; the fields are those of `GenerateOptions`.

    Here a `max_tokens` of None means that only a stop or the context ends the text.
    """

    sampling: SamplingSettings
    seed: int
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logits_processor: tuple[LogitsProcessor, ...] = ()
    mask: Mask | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    progress: Progress | None = None
    session: Session | None = None
    truncate: Literal["left"] | None = None
    echo: bool = False
    prefix_cache: bool = True
    parse_special: bool = False

    @classmethod
    def of(
        cls,
        options: Mapping[str, Any],
        defaults: SamplingSettings,
        max_tokens: int | None = None,
    ) -> "Request":
        """Check keyword arguments.

        Parameters
        ----------
        options : mapping
            As given by the caller. None stands for "not given".
        defaults : SamplingSettings
            The model's own.
        max_tokens : int or None
            What applies where the caller gives no length.

        Raises
        ------
        ArgumentError
            If a name is unknown or given twice, or a value is out of its range.
        """
        own = {field.name for field in fields(cls)} - {"sampling"}
        known = own | set(SamplingSettings.names()) | {"do_sample"}
        given = canonical(options, known, ALIASES)
        if not checked("do_sample", given.pop("do_sample", True), boolean):
            given["temperature"] = 0  # Transformers' way to say greedy
        values = {name: checked(name, given.pop(name), _CHECKS[name]) for name in own & set(given)}
        values.setdefault("max_tokens", max_tokens)
        if isinstance(asked := values.get("logprobs"), int) and not isinstance(asked, bool):
            values["logprobs"] = True
            values.setdefault("top_logprobs", asked)
        if values.get("seed") is None:
            values["seed"] = secrets.randbits(32)
        sampling = defaults.replace(given, "argument") if given else defaults
        return cls(sampling=sampling, **values)


def canonical(
    options: Mapping[str, Any], known: Collection[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Resolve other tools' names, and leave out what is None.

    Raises
    ------
    ArgumentError
        If a name is unknown, or two names of one thing are given.
    """
    result: dict[str, Any] = {}
    for name, value in options.items():
        target = aliases.get(name, name)
        if target not in known:
            near = get_close_matches(name, [*known, *aliases], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {sorted(known)}"
            raise ArgumentError(f"unknown argument {name!r}{hint}")
        if value is None:
            continue
        if target in result:
            raise ArgumentError(f"{target} was given twice, once as {name}")
        result[target] = value
    return result


def _minus_one_is_none(check: Check) -> Check:
    return lambda value: None if isinstance(value, Real) and value == -1 else check(value)


def _function(value: object) -> Any:  # noqa: ANN401 - a function
    if not callable(value):
        raise ValueError("must be a function")  # noqa: TRY004 - the contract of a check
    return value


def _session(value: object) -> Session:
    if not isinstance(value, Session):
        raise ValueError("must be a Session")  # noqa: TRY004 - the contract of a check
    return value


def _mask(value: object) -> Any:  # noqa: ANN401 - an array or a function
    if callable(value) or (isinstance(value, np.ndarray) and value.dtype == np.bool_):
        return value
    raise ValueError("must be an array of bool or a function that returns one")


def _truncate(value: object) -> str:
    if not isinstance(value, str) or plain_text(value) != "left":
        raise ValueError("must be 'left'")
    return "left"


def _logprobs(value: object) -> bool | int:
    return boolean(value) if isinstance(value, bool | np.bool_) else integer(0, 20)(value)


_CHECKS: Mapping[str, Check] = {
    "max_tokens": _minus_one_is_none(integer(0)),
    "stop": texts,
    "stop_token_ids": lambda value: frozenset(token_ids(value)),
    "ignore_eos": boolean,
    "seed": _minus_one_is_none(integer(0, 2**64 - 1)),
    "logits_processor": functions,
    "mask": _mask,
    "logprobs": _logprobs,
    "top_logprobs": integer(0, 20),
    "progress": _function,
    "session": _session,
    "truncate": _truncate,
    "echo": boolean,
    "prefix_cache": boolean,
    "parse_special": boolean,
}

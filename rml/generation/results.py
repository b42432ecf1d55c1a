"""What a generation gives back: pieces while it runs, and a completion at its end."""

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rml.generation import openai
from rml.sampling.logprobs import TokenLogprob
from rml.sampling.settings import SamplingSettings

__all__ = ["Completion", "Delta", "FinishReason", "Timings", "TokenLogprob", "Usage"]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream; the pieces joined are the completion.

    Attributes
    ----------
    text : str
        Text that is certain now: never half a character, never the beginning of a stop string.
    token_ids : list of int
        Tokens since the last piece. Their text may still be held back, or come with the next one.
    logprobs : list of TokenLogprob, or None
        One for each token, if asked for.
    """

    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens.

    Attributes
    ----------
    prompt_tokens : int
        Tokens of the prompt, cached ones included.
    completion_tokens : int
        Tokens of the completion. The token that ended it is not one of them.
    cached_tokens : int
        Tokens of the prompt that were evaluated before: by the session, or by other requests that
        begin with them.
    dropped_tokens : int
        Tokens that ``truncate="left"`` left out of the prompt; not counted in `prompt_tokens`.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    dropped_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and completion."""
        return self.prompt_tokens + self.completion_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the OpenAI API's object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went; the names are those of llama.cpp's server.

    Time that the caller takes between two pieces of a stream is not counted.

    Attributes
    ----------
    cache_n : int
        Tokens of the prompt that had been evaluated before, see `Usage.cached_tokens`.
    prompt_n : int
        Tokens of the prompt that were evaluated.
    prompt_ms : float
        Milliseconds for these: the prefill.
    predicted_n : int
        Tokens that were sampled, one that ended the text included.
    predicted_ms : float
        Milliseconds from the end of the prefill to the end: decoding, sampling and text.
    sampling_ms : float
        The part of `predicted_ms` that went into choosing tokens.
    queued_ms : float
        Milliseconds until the first step for it began: others were computed.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    sampling_ms: float
    queued_ms: float = 0.0

    @property
    def prompt_per_second(self) -> float:
        """Tokens a second in the prefill; 0 if there was none."""
        return self.prompt_n / self.prompt_ms * 1e3 if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        """Steps of one token a second; 0 if there was none.

        The first token costs no step: its logits are the prefill's.
        """
        steps = max(0, self.predicted_n - 1)
        return steps / self.predicted_ms * 1e3 if self.predicted_ms else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers by name, rates included."""
        return {
            **asdict(self),
            "prompt_per_second": self.prompt_per_second,
            "predicted_per_second": self.predicted_per_second,
        }


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation; ``str(completion)`` is its text.

    Attributes
    ----------
    text : str
        The text, up to a stop string, without end tokens; with ``echo=True`` behind the prompt's.
    token_ids : list of int
        All tokens that were generated. An end token is not one of them; tokens of a stop string
        are, although their text is not.
    prompt_token_ids : list of int
        What was evaluated before them.
    finish_reason : str
        ``"stop"`` (an end token or a stop string), ``"length"`` (`max_tokens`, or the context is
        full) or ``"cancelled"``.
    stop_reason : str or int or None
        Of a ``"stop"`` the stop string or the id of the end token; of a ``"length"``
        ``"max_tokens"``, or ``"context"`` if the context had less room than was asked for.
    usage : Usage
        Counts of tokens.
    timings : Timings
        Prefill and decode apart.
    seed : int
        With it, the same call gives the same tokens again.
    sampling : SamplingSettings
        Every value in effect, and where it came from.
    logprobs : list of TokenLogprob, or None
        One for each token, if asked for.
    prompt_logprobs : list of TokenLogprob or None, or None
        One for each token of the prompt, if asked for with `echo`. Nothing comes before the first:
        None.
    is_chat : bool
        Whether it answers a conversation.
    created : int
        When it ended, in seconds since 1970.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    timings: Timings
    seed: int
    sampling: SamplingSettings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    is_chat: bool = False
    created: int = 0

    def __str__(self) -> str:
        return self.text

    def to_openai(
        self, *, model: str = "rml", token_bytes: Callable[[int], bytes] | None = None
    ) -> dict[str, Any]:
        """Return the OpenAI API's object: a chat completion, or a text completion.

        Parameters
        ----------
        model : str
            Its name in the object.
        token_bytes : callable, optional
            Gives the bytes of a token, as `Tokenizer.token_bytes` does: then logprobs name tokens
            by their text.
        """
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": openai.finish_reason(self.finish_reason),
        }
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": self.text}
        else:
            choice["text"] = self.text
        choice["logprobs"] = self._openai_logprobs(token_bytes)
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if self.is_chat else "text_completion",
            "created": self.created,
            "model": model,
            "choices": [choice],
            "usage": self.usage.to_dict(),
        }

    def _openai_logprobs(self, token_bytes: Callable[[int], bytes] | None) -> dict[str, Any] | None:
        if self.logprobs is None:
            return None
        if self.is_chat:
            return openai.chat_logprobs(self.logprobs, token_bytes)
        if self.prompt_logprobs is None:
            return openai.text_logprobs(self.token_ids, self.logprobs, token_bytes)
        ids, entries = self.prompt_token_ids + self.token_ids, self.prompt_logprobs + self.logprobs
        return openai.text_logprobs(ids, entries, token_bytes, self.text)

"""The OpenAI API's words for a completion, as clients of that API expect them.

Tokens are named by their text where it can be known, else ``token_id:123``, as vLLM does on
request. A cancelled generation has no word there: its reason is null, as of one that goes on. Nor
has what made it too long, `max_tokens` or the context: both are ``"length"``.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from rml.sampling.logprobs import TokenLogprob

__all__ = ["chat_logprobs", "finish_reason", "text_logprobs"]

TokenBytes = Callable[[int], bytes]


def finish_reason(reason: str) -> str | None:
    """Translate the reason for the end."""
    return None if reason == "cancelled" else reason


def chat_logprobs(
    entries: Sequence[TokenLogprob], token_bytes: TokenBytes | None
) -> dict[str, Any]:
    """Make the ``logprobs`` object of a chat completion's choice."""

    def named(token: int, logprob: float) -> dict[str, Any]:
        data = None if token_bytes is None else token_bytes(token)
        return {
            "token": _name(token, data),
            "logprob": logprob,
            "bytes": None if data is None else list(data),
        }

    return {
        "content": [
            {
                **named(entry.id, entry.logprob),
                "top_logprobs": [named(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
    }


def text_logprobs(
    ids: Sequence[int],
    entries: Sequence[TokenLogprob | None],
    token_bytes: TokenBytes | None,
    text: str | None = None,
) -> dict[str, Any]:
    """Make the ``logprobs`` object of a text completion's choice.

    Parameters
    ----------
    ids : sequence of int
        The tokens.
    entries : sequence of TokenLogprob or None
        What is known of each; of the first token of a prompt nothing.
    token_bytes : callable or None
        Gives the bytes of a token.
    text : str, optional
        The tokens' text, if it need not be their bytes one after another: a prompt's may lack a
        beginning-of-text token, and the space that a tokenizer puts before it.
    """

    def name(token: int) -> str:
        return _name(token, None if token_bytes is None else token_bytes(token))

    return {
        "tokens": [name(token) for token in ids],
        "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
        "top_logprobs": [
            None if entry is None else {name(token): logprob for token, logprob in entry.top}
            for entry in entries
        ],
        "text_offset": [] if token_bytes is None else _offsets(ids, token_bytes, text),
    }


def _offsets(ids: Sequence[int], token_bytes: TokenBytes, text: str | None) -> list[int]:
    """Whole characters before each token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = [0]
    for token in ids:
        at, piece = offsets[-1], decoder.decode(token_bytes(token))
        if text is not None and not text.startswith(piece, at):
            piece = piece.removeprefix(" ")
            if not text.startswith(piece, at):
                piece = ""
        offsets.append(at + len(piece))
    return offsets[:-1]


def _name(token: int, data: bytes | None) -> str:
    return f"token_id:{token}" if data is None else data.decode("utf-8", "replace")

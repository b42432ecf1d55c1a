"""Prompts as token ids: what a caller may give, and what is left of one that is too long."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError
from rml.ranges import listed, plain_text, token_ids
from rml.tokenizers import Tokenizer

__all__ = [
    "Ids",
    "Prompt",
    "Prompts",
    "given_prompt",
    "given_prompts",
    "longest_prompt",
    "prompt_ids",
    "text_prompt",
    "without_oldest",
]

Ids = Sequence[int] | npt.NDArray[np.integer]
Texts = list[str] | tuple[str, ...] | npt.NDArray[np.str_] | npt.NDArray[np.object_]
Prompts = Texts | Sequence[list[int]] | Sequence[npt.NDArray[np.integer]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is evaluated.

    Attributes
    ----------
    ids : list of int
        The tokens.
    n_dropped : int
        How many tokens were left out, since they did not fit.
    is_chat : bool
        Whether it is a conversation.
    text : str or None
        What the tokens were made of, where that is known and nothing was left out.
    """

    ids: list[int]
    n_dropped: int = 0
    is_chat: bool = False
    text: str | None = None


def given_prompts(value: object) -> tuple[list[str | list[int]], bool]:
    """Prompts that a caller gave, and whether they came as a list.

    Parameters
    ----------
    value : str, sequence of int, or sequence of these
        A sequence is a list, a tuple, an array, a column of a table and the like.

    Raises
    ------
    ArgumentError
        If it is something else, or an id is no integer.
    """
    if isinstance(value, str):
        return [plain_text(value)], False
    entries = listed(value)
    if entries is None:
        raise ArgumentError(_no_prompt(value))
    if any(isinstance(each, str) or _is_list(each) for each in entries):
        return [_given_in_list(each, i) for i, each in enumerate(entries)], True
    if any(isinstance(each, Mapping) for each in entries):
        raise ArgumentError(_no_prompt(value))
    return [_given_ids(entries, "prompt")] if entries else [], not entries


def given_prompt(value: object) -> str | list[int]:
    """One prompt that a caller gave; see `given_prompts`."""
    prompts, many = given_prompts(value)
    if many and prompts:
        raise ArgumentError(
            "one text or one list of token ids is expected here, not several: call it for each"
        )
    return prompts[0] if prompts else []


def _given_in_list(value: object, index: int) -> str | list[int]:
    name = f"prompt {index} of the list"
    if isinstance(value, str):
        return plain_text(value)
    entries = listed(value)
    if entries is None:
        raise ArgumentError(f"{name}: {_no_prompt(value)}")
    return _given_ids(entries, name)


def _given_ids(entries: list[Any], name: str) -> list[int]:
    try:
        return list(token_ids(entries))
    except ValueError as error:
        raise ArgumentError(f"{name} {error}") from None


def _is_list(value: object) -> bool:
    return not isinstance(value, int) and listed(value) is not None


def _no_prompt(value: object) -> str:
    """Say what a prompt is, and what to do with something else."""
    entries = listed(value) or [None]
    if isinstance(value, bytes | bytearray):
        advice = ": decode the bytes first"
    elif isinstance(value, Mapping) or isinstance(entries[0], Mapping):
        advice = ": messages of a conversation are for chat"
    elif isinstance(value, Iterator):
        advice = ": make a list of it"
    else:
        advice = ""
    what = "messages" if isinstance(value, list) else type(value).__name__
    return f"a prompt is a text or a list of token ids, not {what}{advice}"


def longest_prompt(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens that a prompt may have where it is shortened: the rest is room for the answer.

    That is `max_tokens`, or a quarter of the context where this is less.
    """
    quarter = n_ctx // 4
    return n_ctx - (quarter if max_tokens is None else min(quarter, max_tokens))


def without_oldest(ids: list[int], limit: int, bos_id: int | None) -> Prompt:
    """Leave out the oldest tokens of a prompt, but for a beginning-of-text token, until it fits."""
    n_dropped = max(0, len(ids) - limit)
    first = 1 if ids[0] == bos_id and limit > 1 else 0
    return Prompt(ids[:first] + ids[first + n_dropped :], n_dropped)


def prompt_ids(
    prompt: str | list[int],
    tokenizer: Tokenizer,
    *,
    parse_special: bool = False,
    whole: bool = False,
) -> list[int]:
    """Token ids of a text, or ids as they were given.

    Parameters
    ----------
    prompt : str or list of int
        Text gets a beginning-of-text token where the model wants one.
    tokenizer : Tokenizer
        Makes tokens of a text.
    parse_special : bool
        Whether the name of a control token in a text means that token.
    whole : bool
        The text is not to be continued: it also gets an end token where the model wants one.

    Raises
    ------
    ArgumentError
        If `prompt` has no tokens.
    """
    if not isinstance(prompt, str):
        if not prompt:
            raise ArgumentError("a prompt is a text or a list of token ids, not an empty one")
        return prompt
    ids = tokenizer.encode(prompt, parse_special=parse_special)
    if tokenizer.add_eos and ids and not whole:
        ids.pop()
    if not ids:
        raise ArgumentError("the text has no tokens, but at least one is needed")
    return ids


def text_prompt(
    prompt: str | list[int], tokenizer: Tokenizer, *, parse_special: bool, limit: int | None
) -> Prompt:
    """Make the prompt of a completion; the arguments are those of `prompt_ids`, and a `limit`.

    Parameters
    ----------
    prompt, tokenizer, parse_special
        See `prompt_ids`.
    limit : int or None
        Most tokens; the oldest ones that are too many are left out.
    """
    ids = prompt_ids(prompt, tokenizer, parse_special=parse_special)
    if limit is not None and len(ids) > limit:
        return without_oldest(ids, limit, tokenizer.bos_id)
    return Prompt(ids, text=prompt if isinstance(prompt, str) else None)

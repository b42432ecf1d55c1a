"""Prompts as token ids: what a caller may give, and what is left of one that is too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError
from rml.generation.ranges import token_ids
from rml.tokenizers import Tokenizer

__all__ = [
    "Ids",
    "Prompt",
    "is_list_of_prompts",
    "longest_prompt",
    "prompt_ids",
    "text_prompt",
    "without_oldest",
]

Ids = Sequence[int] | npt.NDArray[np.integer]


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


def is_list_of_prompts(value: object) -> bool:
    """Whether this is a list of texts or of lists of ids, and not one of ids."""
    return isinstance(value, list) and bool(value) and not isinstance(value[0], int | np.integer)


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
    prompt: str | Ids, tokenizer: Tokenizer, *, parse_special: bool = False, whole: bool = False
) -> list[int]:
    """Token ids of a text, or ids as they were given.

    Parameters
    ----------
    prompt : str or sequence of int
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
        If `prompt` is neither, or has no tokens.
    """
    if not isinstance(prompt, str):
        return _checked_ids(prompt)
    ids = tokenizer.encode(prompt, parse_special=parse_special)
    if tokenizer.add_eos and ids and not whole:
        ids.pop()
    if not ids:
        raise ArgumentError("the text has no tokens, but at least one is needed")
    return ids


def text_prompt(
    prompt: str | Ids, tokenizer: Tokenizer, *, parse_special: bool, limit: int | None
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


def _checked_ids(ids: Ids) -> list[int]:
    plain: Any = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if isinstance(plain, (list, tuple)) and plain:
        try:
            return list(token_ids(plain))
        except ValueError as error:
            raise ArgumentError(f"prompt {error}") from None
    what = "an empty one" if plain == [] else type(ids).__name__
    raise ArgumentError(f"a prompt is a text or a list of token ids, not {what}")

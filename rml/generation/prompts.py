"""Prompts as token ids: what a caller may give, and what is left of one that is too long."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError
from rml.generation.ranges import token_ids
from rml.tokenizers import Tokenizer

__all__ = ["Ids", "prompt_ids"]

Ids = Sequence[int] | npt.NDArray[np.integer]


def prompt_ids(prompt: str | Ids, tokenizer: Tokenizer, *, parse_special: bool) -> list[int]:
    """Token ids of a text that is to be continued, or ids as they were given.

    Raises
    ------
    ArgumentError
        If `prompt` is neither, or has no tokens.
    """
    if not isinstance(prompt, str):
        return _checked_ids(prompt)
    ids = tokenizer.encode(prompt, parse_special=parse_special)
    if tokenizer.add_eos and ids:
        ids.pop()  # a text that is to be continued has not ended
    if not ids:
        raise ArgumentError("the text has no tokens, but at least one is needed")
    return ids


def _checked_ids(ids: Ids) -> list[int]:
    plain: Any = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if isinstance(plain, (list, tuple)) and plain:
        try:
            return list(token_ids(plain))
        except ValueError as error:
            raise ArgumentError(f"prompt {error}") from None
    what = "an empty one" if plain == [] else type(ids).__name__
    raise ArgumentError(f"a prompt is a text or a list of token ids, not {what}")

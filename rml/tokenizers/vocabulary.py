"""The vocabulary of a GGUF file, checked: token texts, types, scores and the named ids.

Source: the keys ``tokenizer.ggml.*`` of the GGUF documentation. The architecture plays no part.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rml.errors import TokenizerError

__all__ = ["TokenType", "Vocabulary", "metadata_flag", "string_list"]

_MAX_TOKENS: Final = 1 << 24  # sixty times the largest vocabulary in use
_log = logging.getLogger("rml")

# Ids that a text cannot do without, and further ones that end a generation: of a turn, a message,
# or a part that a model of code fills in.
_NAMED: Final = ("bos", "eos", "unknown")
_ENDS: Final = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")


class TokenType(IntEnum):
    """What kind of entry a token is (``tokenizer.ggml.token_type``)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens by id.

    Attributes
    ----------
    tokens : list of str
        Texts as the file spells them.
    types : ndarray of int8
        A `TokenType` for each token.
    scores : ndarray of float32 or None
        Of a SentencePiece vocabulary; a higher score merges first.
    ids : dict
        Named ids that the file gives, by the names of `_NAMED` and `_ENDS`. Ids that nothing uses
        (padding, separators) are not read.
    add_bos, add_eos : bool or None
        Whether encoding puts the token before or after the text; None where the file is silent.
    """

    tokens: list[str]
    types: NDArray[np.int8]
    scores: NDArray[np.float32] | None = None
    ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None

    def of_type(self, *types: TokenType) -> list[int]:
        """Ids of all tokens of these types, rising."""
        return [int(i) for i in np.flatnonzero(np.isin(self.types, types))]

    def with_control(self, ids: Iterable[int]) -> "Vocabulary":
        """Make control tokens of some ids."""
        types = self.types.copy()
        types[list(ids)] = TokenType.CONTROL
        return replace(self, types=types)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], where: str) -> "Vocabulary":
        """Read and check the keys.

        Parameters
        ----------
        metadata : mapping
            GGUF keys and values.
        where : str
            Names the file in messages.

        Raises
        ------
        TokenizerError
            A key is missing, has another type than the format gives it, or contradicts another.
        """
        tokens = string_list(metadata, "tokenizer.ggml.tokens", where)
        if not 0 < len(tokens) <= _MAX_TOKENS:
            raise TokenizerError(
                f"{where}: tokenizer.ggml.tokens holds {len(tokens)} tokens; "
                f"1 to {_MAX_TOKENS} are expected"
            )
        types = _numbers(metadata, "tokenizer.ggml.token_type", "iu", len(tokens), where)
        if types is None:
            types = np.full(len(tokens), TokenType.NORMAL)
        elif (bad := np.flatnonzero((types < 0) | (types > max(TokenType)))).size:
            raise TokenizerError(
                f"{where}: tokenizer.ggml.token_type gives token {bad[0]} the type "
                f"{types[bad[0]]}; types are 1 to 6"
            )
        scores = _numbers(metadata, "tokenizer.ggml.scores", "f", len(tokens), where)
        if scores is not None and np.isnan(scores).any():
            raise TokenizerError(f"{where}: tokenizer.ggml.scores has values that are not numbers")
        return cls(
            tokens=tokens,
            types=types.astype(np.int8),
            scores=None if scores is None else scores.astype(np.float32),
            ids={
                name: i
                for name in (*_NAMED, *_ENDS)
                if (i := _token_id(metadata, name, len(tokens), where)) is not None
            },
            add_bos=metadata_flag(metadata, "tokenizer.ggml.add_bos_token", where),
            add_eos=metadata_flag(metadata, "tokenizer.ggml.add_eos_token", where),
        )


def string_list(metadata: Mapping[str, Any], key: str, where: str) -> list[str]:
    """Value of a key that has to be there and to be a list of strings.

    Raises
    ------
    TokenizerError
        It is missing or something else.
    """
    values = metadata.get(key)
    if values is None:
        raise TokenizerError(f"{where}: no {key}; this kind of vocabulary needs it")
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise TokenizerError(f"{where}: {key} is {type(values).__name__}, not a list of strings")
    texts = list(values)
    if set(map(type, texts)) - {str}:
        odd = next(value for value in texts if not isinstance(value, str))
        raise TokenizerError(f"{where}: {key} holds {odd!r}, which is not a string")
    return texts


def _numbers(
    metadata: Mapping[str, Any], key: str, kinds: str, length: int, where: str
) -> "np.ndarray[Any, np.dtype[Any]] | None":
    values = metadata.get(key)
    if values is None:
        return None
    kind = "whole numbers" if "i" in kinds else "floating-point numbers"
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # ragged lists, numbers that fit no type
        array = np.asarray(None)
    if array.dtype.kind not in kinds or array.ndim != 1:
        raise TokenizerError(f"{where}: {key} is not a list of {kind}")
    if len(array) != length:
        raise TokenizerError(f"{where}: {key} has {len(array)} entries for {length} tokens")
    return array


def _token_id(metadata: Mapping[str, Any], name: str, n_vocab: int, where: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TokenizerError(f"{where}: {key} is {value!r}, not a token id")
    if value in (-1, 0xFFFFFFFF):  # how some writers say "none"
        return None
    if not 0 <= value < n_vocab:
        fault = f"{where}: {key} is {value}, but the vocabulary has {n_vocab} tokens"
        if name in _NAMED:
            raise TokenizerError(fault)
        _log.warning("%s; it is left out", fault)
        return None
    return int(value)


def metadata_flag(metadata: Mapping[str, Any], key: str, where: str) -> bool | None:
    """Read a key that may be missing (None) and else is true or false."""
    value = metadata.get(key)
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    raise TokenizerError(f"{where}: {key} is {value!r}, not true or false")

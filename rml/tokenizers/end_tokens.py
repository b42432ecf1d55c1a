"""Which tokens end a generation, and why each is one.

The keys and files of a model name some of them, and forget others; those are known by their names,
as in llama.cpp. A token with such a name is a control token whatever type the file gives it: text
that others wrote does not become one, and its own text is not shown. One exception: a token that
ordinary text is made of (``</s>`` in a vocabulary of HTML tags, or one that merges make).

Source: the documentation of GGUF's ``tokenizer.ggml.*`` keys, and what llama.cpp
(``src/llama-vocab.cpp``) counts as an end of generation.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import add
from typing import Final

__all__ = [
    "END_NAMES",
    "EndTokens",
    "collect_ends",
    "hidden_ends",
    "named_ends",
    "spared_ends",
    "within",
]

_log = logging.getLogger("rml")

EndTokens = Mapping[int, tuple[str, ...]]
"""Id of each token that ends a generation -> reasons, such as ``"tokenizer.ggml.eos_token_id"``."""

# Names under which model makers end a text, a turn or a message ...
_ENDS: Final = (
    "</s>",
    "<EOT>",
    "<eos>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|call|>",
    "<|calls|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|flush|>",
    "<|im_end|>",
    "<|return|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[EOT]",
    "[e~[",
    "_<EOT>",
)
# ... and what models of code write when the missing part is complete: padding, or the name of the
# next repository or file.
_CODE_ENDS: Final = (
    "<PAD>",
    "<REPO>",
    "<fim-pad>",
    "<fim-repo>",
    "<fim_pad>",
    "<file_sep>",
    "<reponame>",
    "<repo_name>",
    "<|file_sep|>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "[PAD]",
)
END_NAMES: Final = frozenset((*_ENDS, *_CODE_ENDS))

# Names that end nothing beside all tokens of one of these sets.
_SPARED: Final[Mapping[str, tuple[frozenset[str], ...]]] = {
    # Harmony and Solar end a message with <|end|>, and the turn goes on after it.
    "<|end|>": (
        frozenset(("<|return|>", "<|call|>")),
        frozenset(("<|return|>", "<|calls|>")),
        frozenset(("<|flush|>", "<|call|>")),
        frozenset(("<|flush|>", "<|calls|>")),
    ),
    # Gemma 4 has tags of HTML among its tokens.
    "</s>": (frozenset(("<|tool_response>",)),),
}
_BYTE: Final = re.compile("<0x[0-9A-F]{2}>")
_HTML: Final = "</b>"  # where this is a token, </s> ends what is struck out


def named_ends(
    tokens: Sequence[str],
    control: Collection[int],
    merges: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> dict[int, str]:
    """Find tokens that end a generation by their names.

    Parameters
    ----------
    tokens : sequence of str
        Texts by id.
    control : collection of int
        Ids that the file itself calls control tokens.
    merges : pair of sequences of str
        Left and right parts. A token that they make is text.

    Returns
    -------
    dict of int to str
        Ids and their names.
    """
    found = {i: text for i, text in enumerate(tokens) if text in END_NAMES}
    spared = spared_ends(found.values())
    return {
        i: text
        for i, text in found.items()
        if text not in spared
        and (i in control or not (_is_markup(text, tokens) or text in map(add, *merges)))
    }


def _is_markup(text: str, tokens: Collection[str]) -> bool:
    return text == "</s>" and _HTML in tokens


def spared_ends(names: Iterable[str]) -> set[str]:
    """Of these names, those that end nothing beside the others."""
    present = set(names)
    return {name for name in _SPARED if any(beside <= present for beside in _SPARED[name])}


def hidden_ends(
    ends: Iterable[int],
    tokens: Sequence[str],
    *,
    control: Collection[int],
    whole: Collection[int],
    merges: tuple[Sequence[str], Sequence[str]] | None,
) -> list[int]:
    """Of the ids that end a generation, those that have to be made control tokens.

    Ordinary text must not become such a token, and its name is not for the reader. One that
    ordinary text is made of stays what it is: of a byte, of a single character, or one that merges
    make.

    Parameters
    ----------
    ends : iterable of int
        Ids of `tokens`.
    tokens : sequence of str
        Texts by id.
    control : collection of int
        Control tokens.
    whole : collection of int
        Ids that are known to stand for their text as a whole, by their type or by their name.
    merges : pair of sequences of str, or None
        Left and right parts; without a list any ordinary token may be text.
    """
    return sorted(
        i
        for i in set(ends).difference(control)
        if i in whole
        or not (
            merges is None
            or len(tokens[i]) < 2
            or _BYTE.fullmatch(tokens[i])
            or tokens[i] in map(add, *merges)
        )
    )


def collect_ends(found: Iterable[tuple[int, str]]) -> dict[int, tuple[str, ...]]:
    """Put the reasons of each id together; those of one id stay in order, without repetitions."""
    ends: dict[int, dict[str, None]] = {}
    for token, reason in found:
        ends.setdefault(token, {})[reason] = None
    return {token: tuple(ends[token]) for token in sorted(ends)}


def within(ends: EndTokens, n_tokens: int, where: str) -> EndTokens:
    """Leave out ids that the model cannot produce, with a warning that names them."""
    kept = {token: reasons for token, reasons in ends.items() if token < n_tokens}
    for token in ends.keys() - kept.keys():
        _log.warning(
            "%s: %s names token %d as an end, but there are %d tokens; it is left out",
            where,
            ", ".join(ends[token]),
            token,
            n_tokens,
        )
    return kept

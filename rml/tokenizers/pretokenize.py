r"""How text is cut into words before merging: one table, name -> rule.

A rule is one or more patterns. Each pattern in turn cuts every piece at hand: what it matches and
what lies between matches become pieces of their own, in order, so no character is ever lost.
The names are those of the GGUF key ``tokenizer.ggml.pre``.

Sources: the ``pre_tokenizer`` section of the tokenizer.json that each model was published with, and
the list of names in the GGUF documentation. Patterns use the classes of Unicode as the ``regex``
package knows them (``\p{L}`` letters, ``\p{N}`` numbers, ``\s`` White_Space).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import regex  # type: ignore[import-untyped]  # has no stubs

from rml.errors import TokenizerError

__all__ = ["SPLITTERS", "Splitter", "splitter"]

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# What GPT-4's splitter and its many descendants share; {digits} is how long a number may be.
_GPT4: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3: Final = _GPT4.format(digits=r"\p{N}{1,3}")
_QWEN2: Final = _GPT4.format(digits=r"\p{N}")


@dataclass(frozen=True, slots=True)
class Splitter:
    """One rule.

    Attributes
    ----------
    patterns : tuple of str
        Applied one after the other.
    ignore_merges : bool
        A word that is itself a token is that token, whatever the merges would make of it.
    add_bos : bool
        The family puts a beginning-of-sequence token first unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def split(self, text: str) -> list[str]:
        """Cut a text into words; joined together they are the text again."""
        pieces = [text]
        for pattern in _compiled(self.patterns):
            # With a group around the pattern, split() returns gaps and matches in turn.
            pieces = [part for piece in pieces for part in pattern.split(piece) if part]
        return pieces


@lru_cache(maxsize=128)
def _compiled(patterns: tuple[str, ...]) -> tuple["regex.Pattern[str]", ...]:
    return tuple(regex.compile(f"({pattern})") for pattern in patterns)


SPLITTERS: Final[dict[str, Splitter]] = {
    "gpt-2": Splitter((_GPT2,)),
    "smollm": Splitter((r"\p{N}", _GPT2)),
    "llama-bpe": Splitter((_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": Splitter((_QWEN2,)),
}


def splitter(name: str) -> Splitter:
    """Rule of a name.

    Raises
    ------
    TokenizerError
        The name is not known. Guessing another rule would give wrong ids without a sign.
    """
    try:
        return SPLITTERS[name]
    except KeyError:
        known = ", ".join(sorted(SPLITTERS))
        raise TokenizerError(
            f"the splitting rule (tokenizer.ggml.pre) {name!r} is not known; known are: {known}. "
            "If the vocabulary follows one of these, name it with pre="
        ) from None

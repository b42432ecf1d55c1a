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
from itertools import chain
from typing import Final

import regex  # type: ignore[import-untyped]  # has no stubs

from rml.errors import TokenizerError

__all__ = ["SPLITTERS", "Splitter", "splitter"]

# The published patterns list contractions one by one; behind one "'" they are found twice as fast.
_GPT2: Final = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT: Final = r"\p{N}"  # each digit a word of its own
_CONTRACTION: Final = r"'(?i:[stmd]|re|ve|ll)"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    """Give what GPT-4's splitter and its descendants share; `digits` bounds a number's length."""
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    )


def _cased(digits: str, suffix: str, not_here: str = "", tail: str = r"[\r\n/]*") -> str:
    """Give GPT-4o's splitter and its kin: words also break where a capital follows a small letter.

    `suffix` may end a word, `not_here` keeps some letters out of words, `tail` may follow
    punctuation.
    """
    capital = rf"(?:{not_here}[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}])"
    small = rf"(?:{not_here}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}])"
    head = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{head}{capital}*{small}+{suffix}|{head}{capital}+{small}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{tail}|{_BLANKS}"
    )


_LLAMA3: Final = _gpt4(r"\p{N}{1,3}")
_QWEN2: Final = _gpt4(_DIGIT)
_GPT4O: Final = _cased(r"\p{N}{1,3}", f"{_CONTRACTION}?")

# DeepSeek LLM lists the letters of cased scripts one by one. Where its list ends in the Greek
# extended block, characters look like others outside it; hence numbers.
_CASED_SCRIPTS: Final = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134"
    "\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_EAST_ASIA: Final = "[\u0800-\u9fa5\uac00-\ud7ff]+"  # of DeepSeek LLM and Coder
_DEEPSEEK_V3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_CJK_RUN: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_BAILING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_QWEN35: Final = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_SEED_CODER: Final = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
)
_EXAONE_MOE: Final = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2: Final = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)"
    r"|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
)
_SPARK: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"


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
            pieces = list(filter(None, chain.from_iterable(map(pattern.split, pieces))))
        return pieces


@lru_cache(maxsize=128)
def _compiled(patterns: tuple[str, ...]) -> tuple["regex.Pattern[str]", ...]:
    return tuple(regex.compile(f"({pattern})") for pattern in patterns)


_GPT2_RULE: Final = Splitter((_GPT2,))
_DIGITS_GPT2: Final = Splitter((_DIGIT, _GPT2))
_LLAMA3_RULE: Final = Splitter((_LLAMA3,))
_LLAMA3_WHOLE: Final = Splitter((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE: Final = Splitter((_QWEN2,))
_GPT4O_RULE: Final = Splitter((_GPT4O,))
_DEEPSEEK_V3_RULE: Final = Splitter((r"\p{N}{1,3}", _CJK_RUN, _DEEPSEEK_V3))
_BAILING_RULE: Final = Splitter((_BAILING,))
_BLOOM_RULE: Final = Splitter((_BLOOM,))
_TINY_AYA_RULE: Final = Splitter((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O))

SPLITTERS: Final[dict[str, Splitter]] = {
    # What llama.cpp falls back to; no model was trained with it.
    "default": Splitter((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    # GPT-2's own
    "gpt-2": _GPT2_RULE,
    "gpt-neox": _GPT2_RULE,
    "a.x-4.0": _GPT2_RULE,
    "exaone4": _GPT2_RULE,
    "gigachat": _GPT2_RULE,
    "granite-docling": _GPT2_RULE,
    "jais": _GPT2_RULE,
    "jina-de": _GPT2_RULE,
    "jina-es": _GPT2_RULE,
    "jina-v2-de": _GPT2_RULE,
    "jina-v2-es": _GPT2_RULE,
    "mellum": _GPT2_RULE,
    "modern-bert": _GPT2_RULE,
    "mpt": _GPT2_RULE,
    "olmo": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "trillion": _GPT2_RULE,
    # the same, each digit apart
    "codeshell": _DIGITS_GPT2,
    "command-r": _DIGITS_GPT2,
    "exaone": _DIGITS_GPT2,
    "mellum2": _DIGITS_GPT2,
    "minerva-7b": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    # GPT-4's, numbers up to three digits
    "chatglm-bpe": _LLAMA3_RULE,
    "dbrx": _LLAMA3_RULE,
    "glm4": _LLAMA3_RULE,
    "smaug-bpe": _LLAMA3_RULE,
    "falcon-h1": _LLAMA3_WHOLE,
    "falcon3": _LLAMA3_WHOLE,
    "jina-v5-nano": _LLAMA3_WHOLE,
    "lfm2": _LLAMA3_WHOLE,
    "llama-bpe": _LLAMA3_WHOLE,
    "llama-v3": _LLAMA3_WHOLE,
    "llama3": _LLAMA3_WHOLE,
    "midm-2.0": _LLAMA3_WHOLE,
    "pixtral": _LLAMA3_WHOLE,
    "jais-2": Splitter((_JAIS2,)),
    "minicpm5": Splitter((r"\p{N}{1,3}", _gpt4(r"\p{N}+"))),
    # GPT-4's, each digit apart
    "deepseek-r1-qwen": _QWEN2_RULE,
    "f2llmv2": _QWEN2_RULE,
    "grok-2": _QWEN2_RULE,
    "hunyuan": _QWEN2_RULE,
    "kormo": _QWEN2_RULE,
    "megrez": _QWEN2_RULE,
    "qwen2": _QWEN2_RULE,
    "solar-open": _QWEN2_RULE,
    "stablelm2": _QWEN2_RULE,
    "laguna": Splitter((r"[^\n]+|[\n]+", _QWEN2)),
    "qwen35": Splitter((_QWEN35,)),
    "seed-coder": Splitter((_SEED_CODER,)),
    "ufakzeka": Splitter(
        (rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}",)
    ),
    "exaone-moe": Splitter((_EXAONE_MOE,)),
    "bailingmoe": _BAILING_RULE,
    "bailingmoe2": _BAILING_RULE,
    "llada-moe": _BAILING_RULE,
    # GPT-4o's
    "gpt-4o": _GPT4O_RULE,
    "kanana2": _GPT4O_RULE,
    "llama4": _GPT4O_RULE,
    "minimax-m2": _GPT4O_RULE,
    "talkie": _GPT4O_RULE,
    "cohere2moe": _TINY_AYA_RULE,
    "tiny_aya": _TINY_AYA_RULE,
    "tekken": Splitter((_cased(_DIGIT, ""),), ignore_merges=True, add_bos=True),
    "kimi-k2": Splitter(
        (r"\p{Han}+|" + _cased(r"\p{N}{1,3}", f"{_CONTRACTION}?", r"(?!\p{Han})", r"[\r\n]*"),)
    ),
    "youtu": Splitter(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
            _cased(_DIGIT, f"{_CONTRACTION}?"),
        ),
        ignore_merges=True,
    ),
    # DeepSeek's
    "deepseek-llm": Splitter(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_SCRIPTS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _EAST_ASIA,
            _DIGIT,
        )
    ),
    "deepseek-coder": Splitter((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIA, _DIGIT)),
    "deepseek-v3": _DEEPSEEK_V3_RULE,
    "hunyuan-dense": _DEEPSEEK_V3_RULE,
    "hy_v4": _DEEPSEEK_V3_RULE,
    "joyai-llm": _DEEPSEEK_V3_RULE,
    "spark2_5": Splitter((r"\p{N}{1,3}", _CJK_RUN, _SPARK, _DIGIT)),
    # others
    "bloom": _BLOOM_RULE,
    "gpt3-finnish": _BLOOM_RULE,
    "poro-chat": _BLOOM_RULE,
    "viking": Splitter((_BLOOM, _DIGIT)),
    "falcon": Splitter((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "superbpe": Splitter((r"\p{N}+", r"(?=(?:\d{3})+(?!\d))")),
    "chameleon": Splitter(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
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

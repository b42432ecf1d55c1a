"""The steps that a tokenizer.json describes: normalizers and pre-tokenizers, as functions.

What would change ids and is not here is refused by name.

Source: the documentation and behaviour of Hugging Face tokenizers. Its patterns are those of
Oniguruma; the ``regex`` package reads them alike in its version 1 mode, lines included.
"""

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # has no stubs

from rml.errors import TokenizerError
from rml.files.limits import MAX_STEP_DEPTH, MAX_STEPS
from rml.tokenizers.byte_level import as_bytes, to_visible
from rml.tokenizers.json_keys import check_keys
from rml.tokenizers.patterns import (
    compile_pattern,
    grown_too_much,
    most_characters,
    seconds_for,
)
from rml.tokenizers.pretokenize import SPLITTERS
from rml.tokenizers.sentencepiece import SPACE
from rml.tokenizers.text_model import Prefix

__all__ = [
    "Normalizer",
    "PreTokenizer",
    "flat",
    "read_normalizer",
    "read_pre_tokenizer",
    "read_replace",
]

Stage = Callable[[str, bool, float], list[str]]
"""One piece of text, whether nothing stands before it, until when -> pieces."""

Change = Callable[[str, int, float], str]
"""A text, how long it may become, until when -> another text."""

_SCHEMES: Final[dict[str, Prefix]] = {"always": "always", "first": "first", "never": "never"}
_FORMS: Final = ("NFC", "NFD", "NFKC", "NFKD")
# Escapes that mean something else in Oniguruma than in `regex`.
_FOREIGN: Final = regex.compile(r"(?<!\\)(?:\\\\)*\\[hHKGRXyYO]")
_GPT2: Final = SPLITTERS["gpt-2"].patterns[0]


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Changes of the text before anything is cut.

    Attributes
    ----------
    steps : list of callable
        Applied one after the other.
    prefix : str
        Whether one of them puts a space before each text.
    """

    steps: list[Change] = field(default_factory=list)
    prefix: Prefix = "never"

    def __call__(self, text: str) -> str:
        """Normalize a text."""
        if not self.steps:
            return text
        given, most, until = text, most_characters(text), time.monotonic() + seconds_for(text)
        for step in self.steps:
            text = step(text, most, until)
            if len(text) > most:
                raise grown_too_much("the normalizer", given, most)
        return text


@dataclass(slots=True)
class PreTokenizer:
    """Cutting text into words.

    Attributes
    ----------
    stages : list of callable
        Each cuts every piece of the one before.
    byte_level : bool
        In the end words are spelled in visible bytes.
    spell_last : bool
        That spelling is the last step, and left to the caller.
    prefix : str
        Which text gets a space before it.
    """

    stages: list[Stage] = field(default_factory=list)
    byte_level: bool = False
    spell_last: bool = False
    prefix: Prefix = "never"

    def __call__(self, text: str, first: bool) -> list[str]:
        """Cut a text."""
        pieces, most, until = [text], most_characters(text), time.monotonic() + seconds_for(text)
        for stage in self.stages:
            pieces = [
                part
                for n, piece in enumerate(pieces)
                for part in stage(piece, first and n == 0, until)
                if part
            ]
            if sum(map(len, pieces)) > most:
                raise grown_too_much("the pre_tokenizer", text, most)
        return pieces


def read_normalizer(spec: Mapping[str, Any] | None, where: str) -> Normalizer:
    """Build the normalizer of a tokenizer.json.

    Raises
    ------
    TokenizerError
        A step is not implemented.
    """
    steps: list[Change] = []
    prefix: Prefix = "never"
    for part in flat(spec, "normalizers", where, "normalizer"):
        kind = part["type"]
        if kind in _FORMS:
            steps.append(_normal_form(kind))
        elif kind == "Lowercase":
            steps.append(_lowercase)
        elif kind == "Strip":
            steps.append(_strip(part.get("strip_left", True), part.get("strip_right", True)))
        elif kind == "Prepend":
            steps.append(_prepend(str(part["prepend"])))
            prefix = "always" if part["prepend"] in (SPACE, " ") else prefix
        else:
            steps.append(read_replace(part, where))
    return Normalizer(steps, prefix)


def read_pre_tokenizer(spec: Mapping[str, Any] | None, where: str) -> PreTokenizer:
    """Build the pre-tokenizer of a tokenizer.json.

    Raises
    ------
    TokenizerError
        A step is not implemented.
    """
    result = PreTokenizer()
    parts = flat(spec, "pretokenizers", where, "pre_tokenizer")
    for n, part in enumerate(parts):
        kind = part["type"]
        last = n == len(parts) - 1
        if kind == "ByteLevel":
            _add_byte_level(result, part, last)
        elif kind == "Split":
            behavior, invert = str(part["behavior"]), bool(part.get("invert", False))
            result.stages.append(_split(_pattern(part, where), behavior, invert, where))
        elif kind == "Digits":
            pattern = r"\p{N}" if part.get("individual_digits") else r"\p{N}+"
            result.stages.append(_split(pattern, "Isolated", False, where))
        elif kind == "Punctuation":
            behavior = str(part.get("behavior", "Isolated"))
            result.stages.append(_split(r"[!-/:-@\[-`{-~\p{P}]", behavior, False, where))
        elif kind == "Whitespace":
            result.stages.append(_split(r"\w+|[^\w\s]+", "Removed", True, where))
        elif kind == "WhitespaceSplit":
            result.stages.append(_split(r"\s", "Removed", False, where))
        else:
            _add_metaspace(result, part, where)
    return result


def flat(
    spec: Mapping[str, Any] | None, inner: str, where: str, what: str, depth: int = 0
) -> list[Mapping[str, Any]]:
    """Flatten nested sequences of steps, and check the kind and the keys of each."""
    if depth > MAX_STEP_DEPTH:
        raise TokenizerError(
            f"{where}: the {what} has more than {MAX_STEP_DEPTH} sequences in each other"
        )
    if spec is None:
        return []
    if not isinstance(spec, Mapping) or not isinstance(spec.get("type"), str):
        raise TokenizerError(f"{where}: the {what} is not an object with a type")
    check_keys(what, spec["type"], spec, where)
    if spec["type"] != "Sequence":
        return [spec]
    parts = spec.get(inner)
    if not isinstance(parts, list):
        raise TokenizerError(f"{where}: the {what} Sequence has no list {inner!r}")
    steps = [step for part in parts for step in flat(part, inner, where, what, depth + 1)]
    if len(steps) > MAX_STEPS:
        raise TokenizerError(
            f"{where}: the {what} has {len(steps):,} steps; {MAX_STEPS} are allowed"
        )
    return steps


def _normal_form(form: Any) -> Change:  # noqa: ANN401  # a literal of unicodedata
    return lambda text, *_: text if text.isascii() else unicodedata.normalize(form, text)


def _strip(left: bool, right: bool) -> Change:
    ends = [source for wanted, source in ((left, r"\A\s+"), (right, r"\s+\Z")) if wanted]
    if not ends:
        return lambda text, *_: text
    compiled = regex.compile("|".join(ends))
    return lambda text, *_: str(compiled.sub("", text))


def _lowercase(text: str, _most: int, _until: float) -> str:
    # Character by character: str.lower() would treat a sigma at the end of a word otherwise.
    return text.lower() if text.isascii() else "".join(char.lower() for char in text)


def _prepend(prefix: str) -> Change:
    return lambda text, *_: prefix + text if text else text


def read_replace(part: Mapping[str, Any], where: str) -> Change:
    """Build a replacement of texts: a step of a normalizer or decoder."""
    pattern, content = _pattern(part, where), part["content"]
    plain = regex.sub(r"\\(.)", r"\1", pattern)
    if regex.escape(plain, special_only=True) == pattern:
        growth = len(content) - len(plain)

        def replace(text: str, most: int, _until: float) -> str:
            if growth > 0 and len(text) + growth * text.count(plain) > most:
                raise grown_too_much(f"{where}: Replace", text, most)
            return text.replace(plain, content)

        return replace
    compiled = compile_pattern(pattern, where)
    return lambda text, most, until: compiled.replaced(content, text, most, until)


def _pattern(part: Mapping[str, Any], where: str) -> str:
    """Give the pattern of a step as a regular expression."""
    pattern = part.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(pattern.get("String"), str):
        return str(regex.escape(pattern["String"], special_only=True))
    if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
        source = pattern["Regex"]
        if _FOREIGN.search(source):
            raise TokenizerError(f"{where}: the pattern {source!r} has escapes of Oniguruma alone")
        return str(source)
    raise TokenizerError(f"{where}: {part['type']} has no pattern that is a String or a Regex")


def _split(source: str, behavior: str, invert: bool, where: str) -> Stage:
    compiled = compile_pattern(source, where)
    if behavior == "Isolated":
        return lambda text, _, until: [part for part in compiled.split(text, until) if part]
    join = _JOINS.get(behavior)
    if join is None:
        raise TokenizerError(f"{where}: the Split behavior {behavior!r} is not implemented")

    def split(text: str, _: bool, until: float) -> list[str]:
        pieces: list[tuple[str, bool]] = []
        end = 0
        for start, stop in compiled.spans(text, until):
            pieces += [(text[end:start], invert), (text[start:stop], not invert)]
            end = stop
        pieces.append((text[end:], invert))
        return join((part, matched) for part, matched in pieces if part)

    return split


def _isolated(pieces: Iterable[tuple[str, bool]]) -> list[str]:
    return [part for part, _ in pieces]


def _removed(pieces: Iterable[tuple[str, bool]]) -> list[str]:
    return [part for part, matched in pieces if not matched]


def _contiguous(pieces: Iterable[tuple[str, bool]]) -> list[str]:
    words: list[str] = []
    before: bool | None = None
    for part, matched in pieces:
        if matched == before:
            words[-1] += part
        else:
            words.append(part)
        before = matched
    return words


def _merged_with_previous(pieces: Iterable[tuple[str, bool]]) -> list[str]:
    words: list[str] = []
    before = False
    for part, matched in pieces:
        if matched and not before and words:
            words[-1] += part
        else:
            words.append(part)
        before = matched
    return words


def _merged_with_next(pieces: Iterable[tuple[str, bool]]) -> list[str]:
    words: list[str] = []
    after = False
    for part, matched in reversed(list(pieces)):
        if matched and not after and words:
            words[-1] = part + words[-1]
        else:
            words.append(part)
        after = matched
    return words[::-1]


_JOINS: Final = {
    "Isolated": _isolated,
    "Removed": _removed,
    "Contiguous": _contiguous,
    "MergedWithPrevious": _merged_with_previous,
    "MergedWithNext": _merged_with_next,
}


def _add_byte_level(result: PreTokenizer, part: Mapping[str, Any], last: bool) -> None:
    if part.get("add_prefix_space", True):
        result.stages.append(lambda text, *_: [text if text.startswith(" ") else " " + text])
    if part.get("use_regex", True):
        cut = regex.compile(f"({_GPT2})").split
        result.stages.append(lambda text, *_: cut(text))
    result.byte_level = True
    result.spell_last = last
    if not last:
        result.stages.append(lambda text, *_: [to_visible(as_bytes(text))])


def _add_metaspace(result: PreTokenizer, part: Mapping[str, Any], where: str) -> None:
    replacement = str(part.get("replacement", SPACE))
    named = part.get("prepend_scheme")
    if named is None:
        named = "always" if part.get("add_prefix_space", True) else "never"
    scheme = _SCHEMES.get(named)
    if replacement != SPACE or scheme is None:
        raise TokenizerError(
            f"{where}: a Metaspace with replacement {replacement!r} and prepend_scheme {named!r} "
            "is not implemented"
        )
    result.prefix = scheme

    def replace(text: str, first: bool, _until: float) -> list[str]:
        text = text.replace(" ", SPACE)
        add = scheme == "always" or (scheme == "first" and first)
        return [SPACE + text if add and not text.startswith(SPACE) else text]

    result.stages.append(replace)
    if part.get("split", True):
        result.stages.append(_split(SPACE, "MergedWithNext", False, where))

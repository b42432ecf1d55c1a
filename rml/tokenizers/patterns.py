"""Regular expressions from strangers: bounded before they are compiled, and while they match.

The ``regex`` package writes bounded repeats out when it compiles: ``((a{1000}){1000}){1000}``, a
pattern of 24 characters, takes all memory there is. And ``(?:a|aa)+$`` tries out twice as many ways
with every character that a text has more. So the length of a pattern and the product of its nested
repeats are limited (`rml.files.limits`), and matching has a time, which grows with the text. That
makes matching take twice as long, so patterns that are known to be sound, those of published files,
are matched without.
"""

import time
from collections.abc import Callable
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # has no stubs

from rml.errors import TokenizerError
from rml.files.limits import MAX_PATTERN_CHARS, MAX_PATTERN_REPEATS, MAX_TEXT_GROWTH
from rml.tokenizers.pretokenize import SPLITTERS
from rml.tokenizers.sentencepiece import SPACE

__all__ = ["Pattern", "compile_pattern", "grown_too_much", "most_characters", "seconds_for"]

_SECONDS: Final = 0.5  # and for each character of a text:
_SECONDS_A_CHARACTER: Final = 4e-6  # twenty times what patterns of real files take
_COUNTS: Final = regex.compile(r"\{(\d*)(,?)(\d*)\}")

# Of published files as they are written there: rml's own table has shorter spellings.
_CONTRACTIONS: Final = {
    r"'(?i:[stmd]|re|ve|ll)": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"'(?:[stmd]|re|ve|ll)": r"'s|'t|'re|'ve|'m|'ll|'d",
}
_TABLE: Final = {pattern for splitter in SPLITTERS.values() for pattern in splitter.patterns}
_KNOWN: Final = frozenset(
    # The steps Digits, Punctuation, Whitespace, WhitespaceSplit and Metaspace.
    {r"\p{N}", r"\p{N}+", r"[!-/:-@\[-`{-~\p{P}]", r"\w+|[^\w\s]+", r"\s", SPACE}
    | _TABLE
    | {pattern.replace(*each) for pattern in _TABLE for each in _CONTRACTIONS.items()}
)


def seconds_for(text: str) -> float:
    """Return how long all matching in a text may take."""
    return _SECONDS + _SECONDS_A_CHARACTER * len(text)


def most_characters(text: str) -> int:
    """Return how long a text may become."""
    return 10_000 + MAX_TEXT_GROWTH * len(text)


def grown_too_much(what: str, text: str, most: int) -> TokenizerError:
    """Say that a step makes too much of a text."""
    return TokenizerError(
        f"{what} makes more than {most:,} characters of a text that begins with {text[:20]!r}; no "
        f"sound tokenizer makes it {MAX_TEXT_GROWTH} times as long"
    )


class Pattern:
    """A compiled pattern.

    Attributes
    ----------
    split : callable
        ``split(text, until)``: gaps and matches in turn. `until` is a time of the monotonic clock.
    """

    __slots__ = ("_compiled", "_where", "known", "source", "split")

    def __init__(self, source: str, compiled: Any, where: str) -> None:  # noqa: ANN401  # no stubs
        self.source = source
        self.known = source in _KNOWN
        self._compiled = compiled
        self._where = where
        cut = regex.compile(f"({source})", compiled.flags).split if not compiled.groups else None
        self.split: Callable[[str, float], list[str]]
        if cut is None:
            self.split = self._split_by_matches
        elif self.known:
            self.split = lambda text, _until: cut(text)
        else:
            self.split = lambda text, until: self._in_time(lambda s: cut(text, timeout=s), until)

    def _split_by_matches(self, text: str, until: float) -> list[str]:
        pieces, end = [], 0
        for start, stop in self.spans(text, until):
            pieces += [text[end:start], text[start:stop]]
            end = stop
        return [*pieces, text[end:]]

    def spans(self, text: str, until: float) -> list[tuple[int, int]]:
        """Return the places of matches."""
        finditer = self._compiled.finditer
        if self.known:
            return [match.span() for match in finditer(text)]
        found: list[tuple[int, int]] = self._in_time(
            lambda seconds: [match.span() for match in finditer(text, timeout=seconds)], until
        )
        return found

    def replaced(self, content: str, text: str, most: int, until: float) -> str:
        """Put `content` in the place of every match; at most `most` characters come of it."""
        n = len(text)

        def count(match: Any) -> str:  # noqa: ANN401  # `regex` has no stubs
            nonlocal n
            n += len(content) - (match.end() - match.start())
            if n > most:
                raise grown_too_much(f"{self._where}: Replace", text, most)
            return content

        def replace(seconds: float) -> str:
            nonlocal n
            n = len(text)
            return str(self._compiled.sub(count, text, timeout=seconds))

        replaced: str = self._in_time(replace, until)
        return replaced

    def _in_time(self, match: Callable[[float], Any], until: float) -> Any:  # noqa: ANN401
        seconds = max(until - time.monotonic(), 1e-3)
        while True:
            try:
                return match(seconds)
            except TimeoutError:
                # The package counts the time of all processors that this process has used. So this
                # says nothing where other threads compute; then it may try for longer.
                if time.monotonic() < until:
                    seconds *= 2
                    continue
                raise TokenizerError(
                    f"{self._where}: the pattern {_brief(self.source)} takes too long: it has "
                    f"{_SECONDS:g} s, and {_SECONDS_A_CHARACTER * 1e6:g} s for a million "
                    "characters, for one text"
                ) from None
            except RecursionError as error:
                raise TokenizerError(f"{self._where}: {_brief(self.source)}: {error}") from None


def compile_pattern(source: str, where: str) -> Pattern:
    """Compile a pattern of a tokenizer.json.

    Raises
    ------
    TokenizerError
        If it is no pattern, or exceeds a limit.
    """
    if len(source) > MAX_PATTERN_CHARS:
        raise TokenizerError(
            f"{where}: the pattern {_brief(source)} has {len(source):,} characters; "
            f"{MAX_PATTERN_CHARS:,} are allowed"
        )
    if (repeats := _nested_repeats(source)) > MAX_PATTERN_REPEATS:
        raise TokenizerError(
            f"{where}: the nested repeats of the pattern {_brief(source)} come to {repeats:,}; "
            f"{MAX_PATTERN_REPEATS:,} are allowed"
        )
    try:
        return Pattern(source, regex.compile(source, regex.VERSION1 | regex.MULTILINE), where)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        raise TokenizerError(
            f"{where}: the pattern {_brief(source)} is not valid: {error}"
        ) from error


def _brief(source: str) -> str:
    return repr(source if len(source) <= 60 else source[:57] + "...")


def _nested_repeats(source: str) -> int:
    """Count how often a part is written out at most: the product of all bounds around it.

    An estimate from above: what looks like a bound within a class counts as one, too.
    """
    stack, most, at = [1], 1, 0  # of each group that is open: the largest product within
    while at < len(source):
        char = source[at]
        if char == "\\":
            at += 2
            continue
        within = 1  # of the part that ends here
        if char == "(":
            stack.append(1)
        elif char == ")" and len(stack) > 1:
            within = stack.pop()
        at += 1
        # Bounds may follow each other.
        while (bounds := _COUNTS.match(source, at)) and (bounds[1] or bounds[3]):
            within *= max(1, int((bounds[3] or bounds[1])[:12]))
            at = bounds.end()
            if source[at : at + 1] in ("?", "+"):
                at += 1
        stack[-1] = max(stack[-1], within)
        most = max(most, within)
    return max(most, *stack)

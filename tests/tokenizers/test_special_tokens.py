"""Special tokens in text: the leftmost wins, and of those that start together the longest."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml.tokenizers.special_tokens import SpecialToken, SpecialTokens

MANY = [chr(n) for n in range(0x4E00, 0x4E80)]


def slow_split(text, known):
    """Try every token at every place."""
    pieces, start, at = [], 0, 0
    while at < len(text):
        found = max((t for t in known if text.startswith(t, at)), key=len, default=None)
        if found is None:
            at += 1
            continue
        pieces += [*([text[start:at]] if at > start else []), known[found]]
        start = at = at + len(found)
    return pieces + ([text[start:]] if start < len(text) else [])


@pytest.mark.parametrize("more", [[], MANY])
@given(
    st.text("ab-]^\\", max_size=30),
    st.lists(st.text("ab-]^\\", min_size=1, max_size=4), max_size=6, unique=True),
)
def test_tokens_are_found_as_by_trying_all(more, text, tokens):
    known = {token: i for i, token in enumerate([*tokens, *more])}
    specials = SpecialTokens(SpecialToken(t, i, control=False) for t, i in known.items())

    assert specials.split(text, control=False) == slow_split(text, known)


@pytest.mark.parametrize("control", [False, True])
@given(
    st.text("ab-]^\\", max_size=30),
    st.lists(st.text("ab-]^\\", min_size=1, max_size=4), max_size=6, unique=True),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=3),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_many_lengths_change_nothing(control, text, tokens, ranges, controls):
    """The same tokens, with and without many others that never occur."""
    rows = sorted({min(r): max(r) for r in ranges}.items())
    written = [r for i, r in enumerate(rows) if all(r[0] > other[1] for other in rows[:i])]
    some = [
        SpecialToken(t, i, control=c)
        for i, (t, c) in enumerate(zip(tokens, controls, strict=False))
    ]
    more = [SpecialToken("ab" + "z" * n, 100 + n, control=False) for n in range(100)]
    few, many = SpecialTokens(some), SpecialTokens([*some, *more])
    if "ab" in tokens or "ab" in text:  # one of `more` is found
        few = SpecialTokens([*some, more[0]])
    for where in (None, written):
        assert many.split(text, control=control, written=where) == few.split(
            text, control=control, written=where
        )


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["a" * n for n in range(1, 3000)], "a" * 100_000),
        (["a" * n + "b" for n in range(1, 3000)], "a" * 100_000),
        (["<|" + "x" * n + "|>" for n in range(3000)], "<|" + "<|xx" * 25_000),
        ([f"<|common_{n:05}|>" for n in range(10_000)], "<|common_0000" * 8_000),
        (["ab" * n + "c" for n in range(2000)], "ab" * 50_000),
    ],
)
def test_many_overlapping_tokens(tokens, text):
    """Trying all would take minutes."""
    began = time.monotonic()
    specials = SpecialTokens(SpecialToken(t, i, control=True) for i, t in enumerate(tokens))
    specials.split(text, control=True)
    specials.split(text, control=True, written=[(0, 10), (20, len(text))])
    assert time.monotonic() - began < 20

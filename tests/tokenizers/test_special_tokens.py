"""Special tokens in text: the leftmost wins, and of those that start together the longest."""

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

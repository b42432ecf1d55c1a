"""Stop strings: the same cut for every way to split the text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml.errors import ArgumentError
from rml.generation.stop import StopFilter


def run(chunks, stop):
    """Pieces passed on, and the stop string."""
    cut = StopFilter(stop)
    pieces = [cut.feed(chunk) for chunk in chunks]
    return [*pieces, cut.flush()], cut.matched


def test_the_case_bank(cases_dir):
    cases = json.loads((cases_dir / "bugs" / "B41.json").read_text(encoding="utf-8"))["data"]
    assert len(cases) >= 8

    for case in cases:
        pieces, matched = run(case["chunks"], case["stop"])
        assert "".join(pieces) == case["text"]
        assert ("end" if matched is None else "stop") == case["reason"]


def test_a_possible_stop_string_waits_and_is_released():
    pieces, matched = run(["ab", "c", "d", "bc", "x"], ["bcx"])
    assert pieces == ["a", "", "bcd", "", "", ""]
    assert matched == "bcx"

    pieces, matched = run(["ab", "c"], ["bcx"])
    assert pieces == ["a", "", "bc"]
    assert matched is None


def test_text_that_cannot_be_a_stop_string_does_not_wait():
    pieces, _ = run(["aab", "aac", "aaaab"], ["aabb"])

    assert pieces == ["", "aabaac", "aa", "aab"]


def test_the_stop_string_that_begins_first_wins_although_it_is_complete_later():
    assert run(["a", "b", "c", "d"], ["bc", "abcd"]) == (["", "", "", "", ""], "abcd")
    assert run(["a", "b", "c", "x"], ["bc", "abcd"]) == (["", "", "", "a", ""], "bc")
    assert run(["a", "b", "c"], ["bc", "abcd"]) == (["", "", "", "a"], "bc")


def test_of_two_that_begin_together_the_shorter_is_named():
    assert run(["xEN", "Dy"], ["END2", "END"])[1] == "END"


def test_nothing_comes_after_a_match():
    cut = StopFilter(["b"])

    assert [cut.feed("abc"), cut.feed("abc"), cut.flush(), cut.flush()] == ["a", "", "", ""]


@pytest.mark.parametrize("bad", ["", ["a", ""], [1], 5, b"a", [b"a"], None, {"a": 1, "": 2}])
def test_what_is_no_stop_string_is_refused(bad):
    with pytest.raises(ArgumentError, match=r"^stop="):
        StopFilter(bad)


@st.composite
def split_texts(draw):
    text = draw(st.text(alphabet="ab", max_size=30))
    borders = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[i:j] for i, j in zip([0, *borders], [*borders, len(text)], strict=True)]
    stops = draw(st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=5))
    return text, chunks, stops


@given(split_texts())
def test_every_split_gives_the_text_before_the_earliest_stop_string(example):
    text, chunks, stops = example
    begins = {stop: text.find(stop) for stop in stops if stop in text}
    expected = text[: min(begins.values(), default=len(text))]
    first = {stop for stop, begin in begins.items() if begin == len(expected)}

    cut = StopFilter(stops)
    passed = ""
    for i, chunk in enumerate(chunks):
        passed += cut.feed(chunk)
        assert expected.startswith(passed)
        # What waits is the beginning of a stop string: it is no longer than one.
        if cut.matched is None:
            held = "".join(chunks[: i + 1])[len(passed) :]
            assert any(stop.startswith(held[:1]) for stop in stops) or not held
            assert len(held) <= max(map(len, stops), default=0)
    passed += cut.flush()

    assert passed == expected
    assert cut.matched == min(first, key=len, default=None)


@given(split_texts())
def test_one_character_at_a_time_passes_on_as_early_as_possible(example):
    """Held text always is a proper beginning of a stop string: nothing waits without need."""
    text, _, stops = example
    cut = StopFilter(stops)
    passed = ""
    for i, character in enumerate(text):
        passed += cut.feed(character)
        if cut.matched is not None:
            break
        held = text[len(passed) : i + 1]
        assert not held or any(stop.startswith(held) or held in stop for stop in stops)


@pytest.mark.parametrize(
    ("unit", "stop"),
    [("a", ["a" * 20000 + "b"]), ("ab", ["ab" * 5000 + "c", "b" * 5000]), ("xy", ["q"])],
)
def test_time_is_linear_for_repetitive_texts(unit, stop):
    """A quadratic search would take minutes here."""
    text = unit * 100_000
    start = time.process_time()

    pieces, matched = run(list(text), stop)

    assert "".join(pieces) == text
    assert matched is None
    assert time.process_time() - start < 10

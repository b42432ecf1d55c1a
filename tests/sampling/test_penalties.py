"""Repetition penalties and DRY against values worked out by hand."""

import numpy as np
import pytest

from rml.errors import ArgumentError
from rml.sampling.candidates import Candidates
from rml.sampling.penalties import PhraseLog, Window, penalize, phrase_penalties, subtract
from rml.sampling.sampler import Sampler
from rml.sampling.settings import SamplingSettings


def window_of(tokens, size=-1):
    window = Window(size)
    window.accept(tokens)
    return window


@pytest.mark.parametrize("seen", [[0, 1], [0, 1, 0]])
def test_repetition_penalty_pushes_down_whatever_the_sign(seen):
    candidates = Candidates.of(np.array([2.0, -1.0, 0.5], np.float32))

    after = penalize(candidates, window_of(seen), repeat=1.5)

    np.testing.assert_allclose(after.logits, [4 / 3, -1.5, 0.5], rtol=1e-6)
    assert candidates.logits.tolist() == [2.0, -1.0, 0.5]


def test_frequency_counts_and_presence_does_not():
    candidates = Candidates.of(np.ones(5, np.float32))

    after = penalize(candidates, window_of([0, 1, 2, 0, 0]), frequency=0.5, presence=0.25)

    assert after.logits.tolist() == [-0.75, 0.25, 0.25, 1, 1]


def test_penalties_find_tokens_among_sorted_candidates():
    candidates = Candidates(np.array([9, 4, 7]), np.array([3, 2, 1], np.float32), descending=True)

    after = penalize(candidates, window_of([4, 5]), presence=5.0)

    assert after.logits.tolist() == [3, -3, 1]
    assert not after.descending


@pytest.mark.parametrize(
    ("size", "expected"), [(0, {}), (2, {2: 1, 3: 1}), (4, {2: 2, 1: 1, 3: 1}), (-1, None)]
)
def test_window_forgets_what_leaves_it(size, expected):
    window = Window(size)
    for token in [1, 1, 1, 2, 1]:
        window.accept([token])
    window.accept([2, 3])

    ids, counts = window.counts()

    expected = {1: 4, 2: 2, 3: 1} if expected is None else expected
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


def word(token):
    return b"%c" % (97 + token)


def dry(tokens, *, breakers=(), size=-1, **settings):
    log = PhraseLog(size, breakers, word)
    log.accept(tokens)
    values = {"multiplier": 1.0, "base": 1.1, "allowed_length": 2} | settings
    return phrase_penalties(log, **values)


def test_dry_penalizes_what_would_continue_a_phrase():
    assert dry([0, 1]) == {}
    assert dry([0, 1, 2, 0, 1]) == {2: 1.0}
    assert dry([0, 1, 2, 0, 1], multiplier=2.0) == {2: 2.0}
    assert dry([9, 0, 1, 2, 9, 0, 1]) == {2: pytest.approx(1.1)}
    assert dry([0, 1, 2, 3, 4, 0, 1], allowed_length=4) == {}
    assert dry([1, 2, 1], allowed_length=1) == {2: 1.0}


def test_dry_takes_the_longest_repeat_of_each_token():
    # "b" after "a" alone, and after "x a": the longer counts; and "c" after "a".
    assert dry([0, 1, 9, 0, 1, 0, 2, 9, 0], allowed_length=1) == {
        1: pytest.approx(1.1),
        2: 1.0,
    }


def test_dry_stops_at_breakers():
    tokens = [0, 1, 3, 4, 0, 1]
    assert dry(tokens) == {3: 1.0}
    assert dry(tokens, breakers=[b"d"]) == {}  # a breaker itself is not penalized
    # "e" ends a phrase: of the last tokens only (0, 1) may be compared, not (4, 0, 1).
    longer = [4, 0, 1, 2, 4, 0, 1]
    assert dry(longer) == {2: pytest.approx(1.1)}
    assert dry(longer, breakers=[b"e"]) == {2: 1.0}
    assert dry([*longer, 4], breakers=[b"e"], allowed_length=1) == {}


def test_dry_finds_breakers_across_tokens():
    longer = [3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert dry(longer) == {2: pytest.approx(1.21)}
    assert dry(longer, breakers=[b"de"]) == {2: 1.0}
    assert dry(longer, breakers=[b"xx", b"ea"], allowed_length=1) == {2: 1.0}


def test_dry_window():
    tokens = [0, 1, 2, 5, 0, 1]
    assert dry(tokens, size=6) == {2: 1.0}
    assert dry(tokens, size=5) == {}
    assert dry(tokens, size=0) == {}


@pytest.mark.parametrize("base", [1.0, 1.75, 100.0])
def test_dry_stays_a_number_after_many_repeats(base):
    found = dry([7] * 5000, multiplier=100.0, base=base)

    assert 0 < found[7] < 3e38


def test_dry_against_a_slow_definition():
    """All pairs of positions, compared token by token."""
    rng = np.random.default_rng(11)
    for _ in range(60):
        tokens = rng.integers(0, 3, rng.integers(2, 40)).tolist()
        lengths = {}
        for end in range(len(tokens) - 1):
            length = 0
            while length <= end and tokens[end - length] == tokens[len(tokens) - 1 - length]:
                length += 1
            if length >= 2:
                following = tokens[end + 1]
                lengths[following] = max(length, lengths.get(following, 0))
        expected = {token: pytest.approx(1.1 ** (n - 2)) for token, n in lengths.items()}

        assert dry(tokens) == expected


def test_subtract():
    candidates = Candidates(np.array([9, 4]), np.array([3, 2], np.float32), descending=True)

    assert subtract(candidates, {}) is candidates
    assert subtract(candidates, {4: 1.5, 5: 9.0}).logits.tolist() == [3, 0.5]


def test_dry_through_the_sampler():
    settings = SamplingSettings(temperature=0, dry_multiplier=5.0)
    logits = np.array([0, 0, 4, 3], np.float32)
    sampler = Sampler(settings, token_bytes=word)
    assert sampler.sample(logits) == 2

    sampler.accept([0, 1, 2, 0, 1])
    assert sampler.sample(logits) == 3

    with pytest.raises(ArgumentError, match="token_bytes"):
        Sampler(settings).accept([0])

"""Candidates: what enters sampling, and the search for the largest logits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml.errors import NumericError
from rml.sampling.candidates import Candidates, first_of_largest, largest
from rml.sampling.sampler import Sampler
from rml.sampling.settings import SamplingSettings


@given(
    n=st.integers(1, 9000),
    k=st.integers(1, 400),
    distinct=st.integers(1, 10000),
    seed=st.integers(0, 2**32 - 1),
)
def test_largest_is_a_stable_sort_cut_short(n, k, distinct, seed):
    values = np.random.default_rng(seed).integers(0, distinct, n).astype(np.float32)
    k = min(k, n)

    expected = np.argsort(-values, kind="stable")[:k]

    ids, found = largest(values, k)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(found, values[expected])


def test_largest_with_minus_infinity():
    values = np.full(5000, -np.inf, np.float32)
    values[[4999, 17]] = 1, 2

    assert largest(values, 4)[0].tolist() == [17, 4999, 0, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({3: np.nan}, "at position 12 .* 1 of 8 are NaN, the first of them for id 3"),
        ({3: np.inf, 5: np.inf}, "2 of 8 are infinite, the first of them for id 3"),
        ({2: np.inf, 3: np.nan}, "1 of 8 are NaN, the first of them for id 3"),
        (dict.fromkeys(range(8), -np.inf), "all 8 are minus infinity"),
    ],
)
def test_logits_that_are_no_numbers_are_named(bad, message):
    logits = np.zeros(8, np.float32)
    for index, value in bad.items():
        logits[index] = value
    # These look for the largest ones only, after penalties on all tokens or none.
    plain = Sampler(SamplingSettings(top_k=3))
    penalized = Sampler(
        SamplingSettings(top_k=3, repeat_penalty=1.1, dry_multiplier=1),
        0,
        token_bytes=lambda token: b"x",
    )
    penalized.accept([*range(8)] * 2)

    for look in (Candidates.of, first_of_largest, plain.sample, penalized.sample):
        with pytest.raises(NumericError, match=message):
            look(logits, 12)


def test_minus_infinity_is_a_token_that_cannot_be_drawn():
    candidates = Candidates.of(np.array([0, -np.inf, 0], np.float32))

    assert candidates.probabilities().tolist() == [0.5, 0, 0.5]


def test_softmax_of_logits_near_the_end_of_float32():
    candidates = Candidates.of(np.array([3e38, -3e38, 3e38], np.float32))

    assert candidates.probabilities().tolist() == [0.5, 0, 0.5]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=10, unique=True))
def test_indices_of_tokens_in_any_order(wanted):
    ids = np.array([7, 3, 30, 11, 0])
    subset = Candidates(ids, np.zeros(5, np.float32))
    everything = Candidates.of(np.zeros(20, np.float32))
    wanted = np.array(wanted)

    indices, present = subset.indices_of(wanted)
    assert subset.ids[indices].tolist() == wanted[present].tolist()
    assert present.tolist() == [w in ids for w in wanted]

    indices, present = everything.indices_of(wanted)
    assert indices.tolist() == [w for w in wanted if w < 20]
    assert present.tolist() == [w < 20 for w in wanted]

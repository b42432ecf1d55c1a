"""Logprobs against float64, and what they are made of."""

import math

import numpy as np
import pytest

import rml
from rml.errors import NumericError
from rml.generation import results
from rml.sampling.logprobs import TokenLogprob, logprobs_of, rows_at_once, token_logprob

ROWS = 3 * np.random.default_rng(2).standard_normal((5, 300)).astype(np.float32)


def exact(row):
    row = row.astype(np.float64)
    return row - row.max() - math.log(np.exp(row - row.max()).sum())


def test_token_logprob_of_large_logits():
    entry = token_logprob(np.array([3e38, 3e38, -3e38, -np.inf], np.float32), 0, 2)

    assert entry.logprob == pytest.approx(-math.log(2))
    assert [token for token, _ in entry.top] == [0, 1]


def test_each_row_is_of_the_token_behind_it():
    ids = [7, 0, 299, 41]

    entries = logprobs_of(ROWS, ids, 3, position=1)  # the last row is of a token to come

    assert [entry.id for entry in entries] == ids
    for entry, row in zip(entries, ROWS, strict=False):
        # exp, a sum of 300 and log in float32 at the worst.
        assert entry.logprob == pytest.approx(exact(row)[entry.id], abs=300 * 2**-24)
        assert [token for token, _ in entry.top] == np.argsort(-row)[:3].tolist()
        assert dict(entry.top) == {
            token: token_logprob(row, token).logprob for token, _ in entry.top
        }


def test_what_is_no_number_is_said_with_its_place():
    rows = ROWS.copy()
    rows[2, 9] = np.nan

    with pytest.raises(NumericError, match="at position 12"):
        logprobs_of(rows, [1, 2, 3, 4], 0, position=10)


def test_rows_of_a_large_vocabulary_come_a_few_at_a_time():
    assert rows_at_once(10**9) == 1
    for n_vocab in (1, 300, 262_144):
        assert 1 << 22 < rows_at_once(n_vocab) * n_vocab <= 1 << 23


def test_one_class_under_its_public_names():
    assert rml.TokenLogprob is results.TokenLogprob is TokenLogprob

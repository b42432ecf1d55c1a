"""Kernels of sampling: the largest logits, a draw from them, and the sum of exponentials."""

import math

import numpy as np
import pytest

from rml.errors import ArgumentError
from rml.sampling import stages
from rml.sampling.candidates import Candidates


def largest(kernels, values, k, **options):
    ids, out = np.full(k, -1, np.int64), np.full(k, np.nan, np.float32)
    kernels.largest(values, ids, out, **options)
    np.testing.assert_array_equal(out, values[ids])
    return ids.tolist()


def by_sorting(values, k):
    """Python's stable sort, with NaN above all."""
    keys = [(-math.inf, 0) if math.isnan(v) else (-v, 1) for v in values.tolist()]
    return sorted(range(len(keys)), key=lambda i: (keys[i][1], keys[i][0]))[:k]


SHAPES = [(1, 1), (15, 15), (16, 1), (17, 16), (33, 5), (1000, 40), (1003, 1003), (5000, 700)]


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("kind", ["normal", "few values", "rising", "falling", "equal"])
def test_largest_is_a_stable_sort_cut_short(kernels, n, k, kind):
    rng = np.random.default_rng(n)
    values = {
        "normal": rng.standard_normal(n),
        "few values": rng.integers(-2, 3, n),
        "rising": np.arange(n),
        "falling": -np.arange(n),
        "equal": np.full(n, -3.5),
    }[kind].astype(np.float32)

    assert largest(kernels, values, k) == by_sorting(values, k)


def test_values_that_are_no_ordinary_numbers(kernels):
    special = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, -1e-45, 3e38, -3e38]
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.choice(np.array(special, np.float32), 60)
        for k in (1, 3, 17, 60):
            assert largest(kernels, values, k) == by_sorting(values, k)


def test_one_nan_anywhere_is_found(kernels):
    for at in range(100):
        values = np.zeros(100, np.float32)
        values[at] = math.nan
        assert largest(kernels, values, 2)[0] == at


def test_threads_and_read_only_input(kernels):
    values = np.random.default_rng(1).standard_normal(3000).astype(np.float32)
    expected = largest(kernels, values, 50)
    values.flags.writeable = False
    assert largest(kernels, values, 50, n_threads=3) == expected


def measured(kernels, values, **options):
    out = np.full(2, np.nan)
    kernels.log_sum_exp(values, out, **options)
    return out.tolist()


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 17, 1000, 50_003])
@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0, 1e30])
def test_log_sum_exp_is_that_of_float64(kernels, n, scale):
    values = (scale * np.random.default_rng(n).standard_normal(n)).astype(np.float32)
    wide = values.astype(np.float64)
    weights = np.exp(wide - wide.max())
    exact = math.log(math.fsum(weights))

    top, log_sum = measured(kernels, values, n_threads=2)

    assert top == wide.max()
    # An exponential is within 4 units; there are n / 8 additions in a lane at most.
    assert abs(log_sum - exact) <= (8 + n / 8) * 2.0**-53 * max(1, exact)


def test_log_sum_exp_of_what_is_no_number(kernels):
    values = np.zeros(40, np.float32)
    values[3:9] = -math.inf
    top, log_sum = measured(kernels, values)
    assert (top, log_sum) == (0, pytest.approx(math.log(34)))
    for bad in (math.nan, math.inf):
        for at in (0, 20, 35, 39):
            broken = values.copy()
            broken[at] = bad
            assert math.isnan(measured(kernels, broken)[1])
    assert math.isnan(measured(kernels, np.full(40, -math.inf, np.float32))[1])


def chosen(kernels, logits, **settings):
    out = np.full(1, -1, np.int64)
    neutral = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "chance": 0.0}
    kernels.choose(logits, out, **{**neutral, **settings})
    return int(out[0])


FOUR = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))


@pytest.mark.parametrize(
    ("settings", "borders"),
    [
        ({}, [0.4, 0.7, 0.9, 1]),
        ({"top_p": 0.7}, [4 / 7, 1]),
        ({"top_p": 0.71}, [4 / 9, 7 / 9, 1]),
        ({"top_p": 0}, [1]),
        ({"min_p": 0.5}, [4 / 9, 7 / 9, 1]),
        ({"min_p": 0.51}, [4 / 7, 1]),
        ({"min_p": 1}, [1]),
        ({"top_p": 0.71, "min_p": 0.6}, [4 / 7, 1]),
        ({"temperature": 0.5}, [16 / 30, 25 / 30, 29 / 30, 1]),
        ({"temperature": 1e-6}, [1]),
    ],
)
def test_choose_draws_where_the_running_sum_passes_the_chance(kernels, settings, borders):
    below = 0.0
    for i, border in enumerate(borders):
        for chance in (below + 1e-5, border - 1e-5):
            assert chosen(kernels, FOUR, chance=chance, **settings) == i
        below = border


def test_choose_is_the_stages_one_after_another(kernels):
    """Exactly so for the definition; the twin's exponentials may differ in their last bit."""
    rng = np.random.default_rng(0)
    for k in (1, 2, 15, 16, 17, 40, 100):
        for _ in range(40):
            logits = np.sort((4 * rng.standard_normal(k)).astype(np.float32))[::-1].copy()
            logits[1 + k // 2 + rng.integers(0, k + 1) :] = -np.inf
            temperature, p, least = (
                rng.uniform(0.1, 2),
                rng.choice([0.5, 0.95, 1]),
                rng.choice([0, 0.05]),
            )
            left = Candidates(np.arange(k), logits, descending=True)
            left = stages.temperature(left, temperature)
            left = stages.min_p(stages.top_p(left, p), least)
            cumulative = np.cumsum(left.probabilities(), dtype=np.float64)
            for chance in rng.random(5):
                if kernels.name != "py" and np.abs(cumulative - chance).min() < 1e-6:
                    continue
                settings = {"temperature": temperature, "top_p": p, "min_p": least}
                assert chosen(kernels, logits, chance=chance, **settings) == stages.draw(
                    left, chance
                )


def test_choose_never_draws_what_has_no_probability(kernels):
    almost_one = math.nextafter(1.0, 0.0)
    for tail in (-math.inf, -3e38, -1000.0):
        logits = np.array([3e38, 3e38, tail, tail] if tail < -1e3 else [0, 0, tail, tail], "f4")
        assert chosen(kernels, logits, chance=0.49) == 0
        assert chosen(kernels, logits, chance=almost_one) == 1
        assert chosen(kernels, logits, chance=almost_one, temperature=1e-6) == 1


def test_penalize_by_hand(kernels):
    logits = np.array([2, -2, 0, 5, -math.inf, 3e38, -3e38, math.inf, 1], np.float32)
    ids = np.array([0, 1, 3, 4, 5, 6, 7, 9, -1, 10**12])
    counts = np.array([1, 1, 3, 1, 1, 1, 1, 1, 1, 1], np.float32)

    kernels.penalize(ids, counts, logits, repeat=2, presence=0.25, frequency=0.5, n_threads=2)

    largest = float(np.finfo(np.float32).max)
    expected = [0.25, -4.75, 0, 0.75, -math.inf, float(np.float32(1.5e38)), -largest, math.inf, 1]
    assert logits.tolist() == expected


def test_penalize_has_the_bits_of_its_definition(kernels, definitions):
    rng = np.random.default_rng(2)
    logits = (5 * rng.standard_normal(4000)).astype(np.float32)
    ids = rng.permutation(4000)[:300]
    counts = rng.integers(1, 9, 300).astype(np.float32)
    numbers = {"repeat": 1.17, "presence": -0.3, "frequency": 0.07}
    got, defined = logits.copy(), logits.copy()
    kernels.penalize(ids, counts, got, **numbers)
    definitions.penalize(ids, counts, defined, **numbers)
    assert np.array_equal(got, defined)
    assert not np.array_equal(got, logits)


def test_refused(kernels, definitions):
    v, ids, out, two = np.zeros(8, "f4"), np.zeros(3, "i8"), np.zeros(3, "f4"), np.zeros(2)
    three = {"repeat": 1.0, "presence": 0.0, "frequency": 0.0}
    one = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "chance": 0.0}
    calls = [
        ("penalize", (ids, out, v), {**three, "repeat": 0.0}),
        ("penalize", (ids, out, v), {**three, "presence": math.inf}),
        ("penalize", (ids, out[:2], v), three),
        ("penalize", (ids.astype("i4"), out, v), three),
        ("choose", (v, two), one),
        ("choose", (v[:0], ids[:1]), one),
        ("choose", (v, ids), one),
        ("choose", (v, ids[:1]), {**one, "temperature": 0.0}),
        ("choose", (v, ids[:1]), {**one, "top_p": 1.1}),
        ("choose", (v, ids[:1]), {**one, "min_p": math.nan}),
        ("choose", (v, ids[:1]), {**one, "chance": 1.0}),
        ("largest", (v, ids[:0], out[:0])),
        ("largest", (v[:2], ids, out)),
        ("largest", (v, ids, out[:2])),
        ("largest", (v.astype("f8"), ids, out)),
        ("largest", (v[::2], ids, out)),
        ("largest", (v, ids.astype("i4"), out)),
        ("log_sum_exp", (v[:0], two)),
        ("log_sum_exp", (v, two[:1])),
        ("log_sum_exp", (v, two.astype("f4"))),
        ("log_sum_exp", (v[None], two)),
    ]
    for name, args, *keywords in calls:
        with pytest.raises(ArgumentError) as defined:
            getattr(definitions, name)(*args, **dict(*keywords))
        with pytest.raises(ArgumentError) as got:
            getattr(kernels, name)(*args, **dict(*keywords))
        assert str(got.value) == str(defined.value)

"""Sampling stages against values worked out by hand, and the chain as a whole.

Values of the stages agree with llama.cpp's published tests where these have the same inputs.
"""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml.errors import ArgumentError, NumericError
from rml.sampling import stages
from rml.sampling.candidates import Candidates
from rml.sampling.chance import Draw, chance
from rml.sampling.sampler import STAGES, Sampler
from rml.sampling.settings import LLAMA_CPP_SAMPLERS, SAMPLERS, SamplingSettings


def of(*probabilities):
    with np.errstate(divide="ignore"):
        return Candidates.of(np.log(np.array(probabilities, np.float32)))


def left(candidates):
    probabilities = candidates.probabilities()
    return {int(i): round(float(p), 5) for i, p in zip(candidates.ids, probabilities, strict=True)}


FOUR = (0.1, 0.2, 0.3, 0.4)
ALL = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (0, ALL),
        (-1, ALL),
        (4, ALL),
        (100, ALL),
        (1, {3: 1.0}),
        (3, {3: 0.44444, 2: 0.33333, 1: 0.22222}),
    ],
)
def test_top_k(k, expected):
    assert left(stages.top_k(of(*FOUR), k)) == expected


@pytest.mark.parametrize("k", [10**9, 10**12, 2**63, 10**30])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("n_tokens", [None, 4])
def test_a_top_k_beyond_the_vocabulary_takes_no_memory(k, temperature, n_tokens):
    settings = [SamplingSettings(top_k=top_k, temperature=temperature) for top_k in (k, 0)]
    logits = np.array([0.5, 2.0, -1.0, 0.25], np.float32)
    all_kept, plain = (Sampler(each, 3, n_tokens=n_tokens).sample(logits) for each in settings)
    assert all_kept == plain


def test_top_k_comes_out_sorted_and_is_cut_again_without_sorting():
    candidates = stages.top_k(of(*FOUR), 3)

    assert candidates.ids.tolist() == [3, 2, 1]
    assert candidates.descending
    assert stages.top_k(candidates, 2).ids.tolist() == [3, 2]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0, {3: 1.0}),
        (0.7, {2: 0.42857, 3: 0.57143}),
        (0.8, {1: 0.22222, 2: 0.33333, 3: 0.44444}),
        (1, ALL),
    ],
)
def test_top_p(p, expected):
    assert left(stages.top_p(of(*FOUR), p)) == expected


def test_top_p_drops_the_larger_of_two_equal_ids():
    assert stages.top_p(of(0.25, 0.25, 0.25, 0.25), 0.5).ids.tolist() == [0, 1]
    kept = stages.top_p(of(0.2, 0.3, 0.3, 0.2), 0.7)
    assert kept.ids.tolist() == [0, 1, 2]


def test_top_p_among_logits_of_equal_weight():
    """Different logits whose float32 exponentials are the same."""
    logits = np.array([0.25 - 2**-26, 0.25, 0.25 - 2**-25, -30], np.float32)
    assert len(set(Candidates.of(logits).weights()[:2].tolist())) == 1

    assert stages.top_p(Candidates.of(logits), 0).ids.tolist() == [1]


@given(
    n=st.integers(1, 3000),
    p=st.floats(0, 0.999),
    spread=st.floats(0.1, 6),
    seed=st.integers(0, 2**32 - 1),
    in_order=st.booleans(),
)
def test_top_p_is_the_smallest_likeliest_set(n, p, spread, seed, in_order):
    logits = (np.random.default_rng(seed).standard_normal(n) * spread).astype(np.float32)
    exact = np.exp(logits.astype(np.float64) - logits.max())
    exact /= exact.sum()

    order = np.argsort(-logits, kind="stable")
    candidates = Candidates.of(logits)
    if in_order:  # as top-k leaves them
        candidates = Candidates(order, logits[order], descending=True)

    kept = stages.top_p(candidates, p).ids

    assert sorted(kept) == sorted(order[: len(kept)])
    assert exact[kept].sum() > p - 2e-6
    assert len(kept) == 1 or exact[order[: len(kept) - 1]].sum() < p + 2e-6


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0, ALL),
        (0.24, ALL),
        (0.26, {1: 0.22222, 2: 0.33333, 3: 0.44444}),
        (0.51, {2: 0.42857, 3: 0.57143}),
        (0.76, {3: 1.0}),
        (1, {3: 1.0}),
    ],
)
def test_min_p(p, expected):
    assert left(stages.min_p(of(*FOUR), p)) == expected


@pytest.mark.parametrize(
    ("probabilities", "p", "expected"),
    [
        ((0.97, 0.01, 0.01, 0.01), 0.5, {0: 1.0}),
        ((0.4, 0.2, 0.2, 0.2), 0.5, {1: 0.33333, 2: 0.33333, 3: 0.33333}),
        (FOUR, 1, ALL),
    ],
)
def test_typical_p(probabilities, p, expected):
    assert left(stages.typical_p(of(*probabilities), p)) == expected


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (0, ALL),
        (-1, ALL),
        # Standard deviation of the four logarithms: 0.5199.
        (1, {2: 0.42857, 3: 0.57143}),
        (3, ALL),
        (0.01, {3: 1.0}),
    ],
)
def test_top_n_sigma(n, expected):
    assert left(stages.top_n_sigma(of(*FOUR), n)) == expected


def test_top_n_sigma_does_not_count_banned_tokens():
    kept = stages.top_n_sigma(of(0, *FOUR), 1)

    assert kept.ids.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("threshold", "coin", "expected"),
    [
        (0.09, 0.5, {0: 1.0}),
        (0.19, 0.5, {0: 0.33333, 1: 0.66667}),
        (0.29, 0.5, {0: 0.16667, 1: 0.33333, 2: 0.5}),
        (0.39, 0.5, ALL),  # one top choice only: it stays
        (0.51, 0.5, ALL),
        (0.09, 0.99, ALL),  # did not happen
    ],
)
def test_xtc(threshold, coin, expected):
    assert left(stages.xtc(of(*FOUR), 0.99, threshold, coin)) == expected


def test_temperature_divides():
    np.testing.assert_allclose(
        stages.temperature(of(*FOUR), 0.5).logits, 2 * np.log(FOUR), rtol=1e-6
    )


def test_dynamic_temperature_follows_the_entropy():
    certain = stages.temperature(of(1.0, 1e-30), 1.0, dynamic_range=0.5)
    uncertain = stages.temperature(of(0.25, 0.25, 0.25, 0.25), 1.0, dynamic_range=0.5)
    # Entropy of (0.9, 0.1) is 0.32508 of ln 2 = 0.69315; squared and within 0.5 ... 1.5.
    between = stages.temperature(of(0.9, 0.1), 1.0, dynamic_range=0.5, exponent=2)

    np.testing.assert_allclose(certain.logits, np.log([1, 1e-30]) / 0.5, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(uncertain.logits, np.log([0.25] * 4) / 1.5, rtol=1e-5)
    np.testing.assert_allclose(
        between.logits, np.log([0.9, 0.1]) / (0.5 + (0.325083 / math.log(2)) ** 2), rtol=1e-5
    )


@pytest.mark.parametrize("n", [5, 1024, 5000, 40000])
def test_draw_follows_the_cumulative_probability(n):
    """Small and blockwise search, against a float64 cumulative sum."""
    logits = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    candidates = Candidates.of(logits)
    exact = np.cumsum(np.exp(logits.astype(np.float64)))
    exact /= exact[-1]

    for goal in np.linspace(0, 1, 301, endpoint=False):
        token = stages.draw(candidates, goal)
        assert exact[token] > goal - 1e-6
        assert token == 0 or exact[token - 1] < goal + 1e-6


@pytest.mark.parametrize("n", [4, 20000])
def test_a_token_without_probability_is_never_drawn(n):
    logits = np.full(n, -np.inf, np.float32)
    logits[[1, 2]] = 0
    candidates = Candidates.of(logits)

    drawn = [stages.draw(candidates, c) for c in (0.0, 0.499, 0.501, 1 - 2**-53)]

    assert drawn == [1, 1, 2, 2]


LOGITS = np.array([2.8750, 2.9551, 11.0625, -2.4473, -1.5439], np.float32)


@pytest.mark.parametrize("value", [0, 1e-5, 1e-30, 5e-324])
def test_temperature_zero_and_nearly_zero_take_the_largest(value):
    sampler = Sampler(SamplingSettings(temperature=value))

    assert {sampler.sample(LOGITS) for _ in range(50)} == {2}


def test_greedy_takes_the_first_of_equals():
    logits = np.array([0, 5, 5, 1], np.float32)

    assert Sampler(SamplingSettings(temperature=0)).sample(logits) == 1


def test_greedy_ignores_everything_but_masks_biases_and_given_penalties():
    settings = SamplingSettings(
        temperature=0, top_k=1, xtc_probability=1, xtc_threshold=0, top_p=0, mirostat=2
    )
    assert Sampler(settings).sample(LOGITS) == 2
    assert Sampler(settings, banned=[2]).sample(LOGITS) == 1
    biased = SamplingSettings(temperature=0, logit_bias={3: 20.0})
    assert Sampler(biased).sample(LOGITS) == 3
    given_penalty = SamplingSettings(temperature=0, presence_penalty=20)
    sampler = Sampler(given_penalty)
    sampler.accept([2])
    assert sampler.sample(LOGITS) == 1


def test_a_penalty_from_a_file_does_not_change_greedy():
    settings = SamplingSettings(temperature=0).replace({"repeat_penalty": 100.0}, "some file")
    sampler = Sampler(settings)
    sampler.accept([2])

    assert sampler.sample(LOGITS) == 2
    assert sampler.settings.repeat_penalty == 1
    assert sampler.settings.origin["repeat_penalty"] == "temperature 0"


def test_padding_ids_are_never_chosen_and_shift_nothing():
    logits = np.append(LOGITS, [50, 60]).astype(np.float32)
    sampler = Sampler(SamplingSettings(temperature=0), n_tokens=5)

    assert sampler.sample(logits) == 2


def test_bans_that_leave_nothing_are_refused():
    sampler = Sampler(banned=[0, 1, 2, 3], n_tokens=5)
    assert sampler.sample(LOGITS) == 4

    with pytest.raises(ArgumentError, match="leave no token"):
        Sampler(banned=[0, 1, 2, 3, 4], n_tokens=5).sample(LOGITS)


@pytest.mark.parametrize("keywords", [{"banned": [5]}, {"settings": {"logit_bias": {5: 1.0}}}])
def test_ids_outside_the_vocabulary_are_refused(keywords):
    settings = SamplingSettings(**keywords.pop("settings", {}))

    with pytest.raises(ArgumentError, match="names token 5 of a vocabulary of 5"):
        Sampler(settings, n_tokens=5, **keywords)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, None, "1"])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ArgumentError, match="seed="):
        Sampler(seed=seed)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"mirostat": 2}])
def test_bad_logits_never_become_a_token(bad, settings):
    logits = LOGITS.copy()
    logits[1] = bad

    with pytest.raises(NumericError, match="position 7"):
        Sampler(SamplingSettings(**settings)).sample(logits, position=7)


def test_processors_and_biases_both_apply():
    seen = []

    def process(said, logits):
        seen.append(list(said))
        logits[2] = -np.inf
        return logits

    settings = SamplingSettings(temperature=0, logit_bias={0: 0.5})
    sampler = Sampler(settings, processors=[process])
    sampler.accept([4, 3])

    assert sampler.sample(LOGITS) == 0
    assert seen == [[4, 3]]
    assert LOGITS[2] == 11.0625

    with pytest.raises(ArgumentError, match="shape"):
        Sampler(processors=[lambda said, logits: logits[1:]]).sample(LOGITS)


def test_a_mask_lets_only_its_tokens_through():
    n = 300
    rows = 3 * np.random.default_rng(5).standard_normal((30, n)).astype(np.float32)
    odd = np.arange(n) % 2 == 1
    settings = [{}, {"temperature": 0}, {"mirostat": 2}, {"logit_bias": {2: 100.0}}, {"top_k": 0}]
    for each in settings:
        sampler = Sampler(SamplingSettings(**each), 3, mask=odd)
        assert all(sampler.sample(row) % 2 for row in rows)
    # In turns, by what was said so far; and a processor cannot undo it.
    seen = []

    def alternate(said):
        seen.append(list(said))
        return odd if len(said) % 2 else ~odd

    sampler = Sampler(mask=alternate, processors=[lambda said, logits: logits + 9], n_tokens=n - 1)
    for i, row in enumerate(rows):
        token = sampler.sample(row)
        assert token % 2 == i % 2
        sampler.accept([token])
    assert [len(said) for said in seen] == list(range(30))
    # An array may be as long as the logits, padding included.
    assert Sampler(mask=np.ones(n, np.bool_), n_tokens=250).sample(rows[0]) < 250
    for bad, message in (
        (np.zeros(n, np.bool_), "leave no token"),
        (np.ones(n - 1, np.bool_), "299 values, but there are 300"),
        (lambda said: [True] * n, "array of bool"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Sampler(mask=bad).sample(rows[0])


def continued(sampler, rows):
    """Tokens that are chosen and accepted one after the other."""
    tokens = []
    for row in rows:
        tokens.append(sampler.sample(row))
        sampler.accept(tokens[-1:])
    return tokens


def test_the_same_seed_gives_the_same_tokens_and_another_one_others():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 500)).astype(np.float32)

    def run(seed, **settings):
        return continued(Sampler(SamplingSettings(**settings), seed), rows)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1, mirostat=2) == run(1, mirostat=2)

    # Worked out in float64: the draw is where the cumulative probability passes the chance.
    expected = []
    for position, row in enumerate(rows.astype(np.float64)):
        cumulative = np.cumsum(np.exp(row / 0.8)) / np.exp(row / 0.8).sum()
        expected.append(int(np.searchsorted(cumulative, chance(1, position, Draw.TOKEN))))
    assert run(1, top_k=0, top_p=1, min_p=0) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 1.7, "top_p": 0.5, "min_p": 0},
        {"top_k": 200, "top_p": 1, "repeat_penalty": 1.3, "frequency_penalty": 0.2},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "logit_bias": {3: 5, 8: -math.inf}},
        {"samplers": ["temperature", "top_k", "min_p"], "presence_penalty": 1},
    ],
)
def test_chains_that_kernels_cover_are_their_stages(settings):
    """What `sample` draws in one go is a draw from what the stages leave."""
    rows = 3 * np.random.default_rng(4).standard_normal((150, 500)).astype(np.float32)
    at_once, by_stages = (
        Sampler(SamplingSettings(**settings), 9, banned=[4], token_bytes=lambda token: b"x")
        for _ in range(2)
    )
    for row in rows:
        left = by_stages.candidates(row)
        number = by_stages.chance(Draw.TOKEN)
        token = at_once.sample(row)
        cumulative = np.cumsum(left.probabilities(), dtype=np.float64)
        if np.abs(cumulative - number).min() > 1e-6:  # else the last bit of a weight decides
            assert token == stages.draw(left, number)
        assert token in left.ids
        at_once.accept([token])
        by_stages.accept([token])


def test_frequencies_of_draws_are_the_probabilities():
    logits = np.log(np.array(FOUR, np.float32))
    sampler = Sampler(SamplingSettings(temperature=1, top_k=0, top_p=1, min_p=0), seed=3)

    counts = Counter(continued(sampler, [logits] * 20000))

    for token, probability in enumerate(FOUR):
        # Five standard deviations of a binomial count.
        allowed = 5 * math.sqrt(20000 * probability * (1 - probability))
        assert abs(counts[token] - 20000 * probability) < allowed


def test_the_order_of_stages_matters_and_is_the_one_asked_for():
    """With temperature last, top-p cuts the distribution of the model itself."""
    logits = np.log(np.array(FOUR, np.float32))
    values = {"temperature": 0.25, "top_p": 0.75, "top_k": 0, "min_p": 0}

    ours = Sampler(SamplingSettings(**values)).candidates(logits)
    theirs = Sampler(SamplingSettings(**values, samplers="llama.cpp")).candidates(logits)

    # At temperature 0.25 the weights are p^4: 256, 81, 16 and 1 ten-thousandths.
    assert left(ours) == {2: 0.24036, 3: 0.75964}
    assert left(theirs) == {1: 0.04533, 2: 0.22946, 3: 0.72521}
    assert theirs.ids.tolist() == [1, 2, 3]


def test_only_named_stages_run():
    only = Sampler(SamplingSettings(samplers=["top_k"], top_k=2, temperature=0.1, top_p=0))

    assert left(only.candidates(np.log(np.array(FOUR, np.float32)))) == {2: 0.42857, 3: 0.57143}


def test_every_stage_is_in_the_table_and_in_the_orders():
    assert set(STAGES) == set(SAMPLERS) == set(LLAMA_CPP_SAMPLERS)


def test_xtc_never_spares_a_banned_token():
    candidates = Candidates.of(np.array([0, -np.inf, 0], np.float32))

    assert left(stages.xtc(candidates, 1.0, 0.0, 0.0)) == {1: 0, 2: 1}


EXTREMES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0, 1e-30, 1e-6, 0.8, 1, 1e30]),
        "top_k": st.sampled_from([-1, 0, 1, 5, 10**9]),
        "top_p": st.sampled_from([0, 1e-9, 0.5, 1]),
        "min_p": st.sampled_from([0, 1e-9, 0.5, 1]),
        "typical_p": st.sampled_from([0, 1e-9, 0.5, 1]),
        "top_n_sigma": st.sampled_from([-1, 0, 1e-6, 1]),
        "xtc_probability": st.sampled_from([0, 1]),
        "xtc_threshold": st.sampled_from([0, 0.1, 0.5, 1]),
        "repeat_penalty": st.sampled_from([1e-3, 1, 1000]),
        "presence_penalty": st.sampled_from([-100, 0, 100]),
        "frequency_penalty": st.sampled_from([-100, 0, 100]),
        "dry_multiplier": st.sampled_from([0, 100]),
        "dry_base": st.sampled_from([1, 100]),
        "mirostat": st.sampled_from([0, 2]),
        "mirostat_tau": st.sampled_from([0, 5]),
        "samplers": st.permutations(SAMPLERS),
    }
)


@given(settings=EXTREMES, scale=st.sampled_from([0, 1e-30, 1, 1e4, 3e38]), data=st.data())
def test_no_settings_empty_the_candidates(settings, scale, data):
    n = data.draw(st.sampled_from([1, 2, 50, 6000]))
    unit = np.random.default_rng(n).uniform(-1, 1, n).astype(np.float32)
    logits = unit * np.float32(scale)
    if n > 2:
        logits[1] = -np.inf
    sampler = Sampler(SamplingSettings(**settings), token_bytes=lambda token: b"x")
    sampler.accept([0, 0, 0, 0, min(2, n - 1), 0, 0, 0])

    for position in range(3):
        token = sampler.sample(logits, position)
        assert 0 <= token < n
        assert logits[token] > -np.inf
        sampler.accept([token])


def test_mirostat_steers_the_surprise():
    """The mean surprise of draws from a flat distribution comes close to tau."""
    logits = np.random.default_rng(5).standard_normal(2000).astype(np.float32) * 3
    exact = logits.astype(np.float64) - logits.max()
    log2 = (exact - math.log(np.exp(exact).sum())) / math.log(2)
    settings = SamplingSettings(temperature=1, mirostat=2, mirostat_tau=3.0, mirostat_eta=0.1)
    sampler = Sampler(settings, seed=1)

    tokens = continued(sampler, [logits] * 600)[100:]

    # The controlled surprise is that within the cut set, which is a little below this one.
    assert 2.5 < -np.mean(log2[tokens]) < 4.5
    assert -log2[np.unique(tokens)].min() < 8
    assert sampler.settings.samplers == ("penalties", "dry", "temperature")


def test_cases_of_llama_cpp_with_whole_chains(cases_dir):
    """Ids whose probability grows with the id, through chains of top-k, top-p and min-p."""
    cases = json.loads((cases_dir / "sampling.json").read_text())["cases"]
    chains = [case for case in cases if case["op"] == "sampler_queue"]
    assert chains
    with np.errstate(divide="ignore"):
        logits = np.log(np.arange(10000, dtype=np.float32))

    for case in chains:
        for stage in range(1, len(case["sequence"]) + 1):
            settings = SamplingSettings(
                temperature=1,
                samplers=case["sequence"][:stage],
                top_k=int(case["top_k"]),
                top_p=case["top_p"],
                min_p=case["min_p"],
            )
            ids = Sampler(settings).candidates(logits).ids
            _, count, high, low = case["survivors"][stage - 1]
            assert abs(len(ids) - count) <= 1, case["id"]
            assert ids.max() == high, case["id"]
            assert abs(ids.min() - low) <= 1, case["id"]

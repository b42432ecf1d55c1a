"""A sampler knows what `accept` was told, and nothing else: what it says can be asked again."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rml import NumericError, Sampler, SamplingSettings
from rml.sampling.chance import Draw, chance

N = 400
ROWS = 3 * np.random.default_rng(8).standard_normal((40, N)).astype(np.float32)

# Every stage is in some of these, and both of the ways in which a token is drawn.
CHAINS = {
    "default": {},
    "greedy": {"temperature": 0},
    "everything": {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1.5},
    "llama.cpp": {"samplers": "llama.cpp", "typical_p": 0.9, "top_n_sigma": 2},
    "penalties": {"repeat_penalty": 1.4, "presence_penalty": 0.5, "repeat_last_n": 5},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_last_n": 9},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01, "temperature": 2},
    "dynamic temperature": {"dynatemp_range": 0.5},
    "mirostat": {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.9},
}


def make(settings, seed=1, **options):
    return Sampler(
        SamplingSettings(**settings), seed, token_bytes=lambda token: b":x"[token % 2 :], **options
    )


def go_on(sampler, n, again=0):
    """Choose and accept tokens; ask for each of them `again` more times."""
    tokens = []
    for row in ROWS[:n]:
        token = sampler.sample(row)
        assert [sampler.sample(row) for _ in range(again)] == [token] * again
        sampler.accept([token])
        tokens.append(token)
    return tokens


@pytest.fixture(params=CHAINS.values(), ids=CHAINS)
def settings(request):
    return request.param


def test_a_token_may_be_asked_for_again(settings):
    """After a set-back, or by one who only wants to look."""
    assert go_on(make(settings), 30, again=2) == go_on(make(settings), 30)


def test_tokens_that_were_dropped_leave_no_trace(settings):
    """Whatever was sampled meanwhile, from other logits, too, and in sight of the candidates."""
    sampler = make(settings)
    plain = go_on(make(settings), 30)

    for row, expected in zip(ROWS, plain, strict=False):
        for other in ROWS[::-7]:
            sampler.sample(other)
        sampler.candidates(ROWS[0])
        assert sampler.sample(row) == expected
        sampler.accept([expected])


def test_an_error_leaves_no_trace(settings):
    bad = ROWS[0].copy()
    bad[3] = np.nan
    sampler = make(settings)
    for row, expected in zip(ROWS, go_on(make(settings), 10), strict=False):
        with pytest.raises(NumericError, match="NaN"):
            sampler.sample(bad)
        assert sampler.sample(row) == expected
        with pytest.raises(NumericError, match="NaN"):
            sampler.sample(bad)
        sampler.accept([expected])


@given(
    chain=st.sampled_from(list(CHAINS)),
    ids=st.lists(st.integers(0, N - 1), max_size=40),
    cuts=st.sets(st.integers(0, 40)),
)
def test_it_makes_no_difference_in_how_many_parts_tokens_are_accepted(chain, ids, cuts):
    whole, parts = make(CHAINS[chain]), make(CHAINS[chain])
    whole.accept(ids)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(ids)), len(ids)]
    for start, stop in itertools.pairwise(edges):
        parts.accept(ids[start:stop])

    assert go_on(parts, 12) == go_on(whole, 12)


@pytest.mark.parametrize("chain", [name for name in CHAINS if name != "mirostat"])
def test_a_new_sampler_goes_on_where_another_stopped(chain):
    """Also in the middle: what was chosen and what was given are told to it alike."""
    prompt = [3, 1, 4, 1, 5]
    first = make(CHAINS[chain])
    first.accept(prompt)
    tokens = go_on(first, 30)

    for n in (0, 1, 13, 29):
        second = make(CHAINS[chain])
        second.accept([*prompt, *tokens[:n]])
        assert second.sample(ROWS[n]) == tokens[n]


def test_mirostat_moves_with_what_is_accepted():
    """A token that was chosen by someone else counts by its own surprise."""
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    settings = {"mirostat": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5, "temperature": 1}

    def limit(accepted):
        sampler = make(settings)
        sampler.sample(row)  # the limit is 2 bits: of 0.5 and 0.25
        sampler.accept(accepted)
        return sampler.surprise_limit

    # Among the two they have log2(3/2) and log2(3) bits; each moves by half of what is beyond 1.
    assert limit([0]) == pytest.approx(2 - 0.5 * (np.log2(1.5) - 1), rel=1e-6)
    assert limit([1]) == pytest.approx(2 - 0.5 * (np.log2(3) - 1), rel=1e-6)
    assert limit([0, 1, 1]) == limit([0])  # nobody knows how surprising the others are
    assert limit([3]) == limit([]) == 2  # nor this one, which was cut


def test_chance_is_of_the_seed_and_the_number_of_tokens():
    sampler = make({}, seed=2**64 - 1)
    for n in (0, 3, 1):
        sampler.accept([7] * n)
    for draw in Draw:
        assert sampler.chance(draw) == chance(2**64 - 1, 4, draw)


def test_stages_do_not_share_chance():
    """Whether XTC happens says nothing about the token that is drawn then."""
    sampler = make({})
    pairs = []
    for _ in range(4096):
        pairs.append([sampler.chance(Draw.XTC), sampler.chance(Draw.TOKEN)])
        sampler.accept([1])

    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 5 / 64


def test_masks_and_processors_see_the_same_again():
    seen = []

    def look(said, logits):
        seen.append(list(said))
        return logits

    odd = np.arange(N) % 2 == 1
    options = {"processors": [look], "mask": lambda said: odd if len(said) % 2 else ~odd}
    tokens = go_on(make({}, **options), 10, again=1)

    assert [token % 2 for token in tokens] == [i % 2 for i in range(10)]
    assert seen == [tokens[: i // 2] for i in range(20)]


def test_neighbouring_seeds_go_their_own_ways():
    texts = [tuple(go_on(make(CHAINS["everything"], seed), 30)) for seed in range(50)]

    assert len(set(texts)) == 50
    # Of two texts hardly any place has the same token: none is the other one shifted, either.
    for a, b in itertools.pairwise(texts):
        for shift in range(3):
            assert sum(x == y for x, y in zip(a[shift:], b, strict=False)) < 10

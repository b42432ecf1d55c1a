"""What a forward pass accepts, refuses, allocates and leaves behind; on the toy Llama."""

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import rml
from rml._kernels.pages import Pages
from rml.engine.sessions import open_session
from rml.errors import ArgumentError, Cancelled, ClosedError, ContextOverflow
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM
from rml.llm.workspace import MAX_ROWS

TOY = Path(__file__).resolve().parent.parent / "fixtures" / "llama"
COMPILED = rml.info()["backend"] == "cython"


@pytest.fixture(scope="module")
def decoder():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        yield DecoderLM(checkpoint)


@pytest.fixture
def cache(decoder):
    with open_session(decoder, 64, kv_type="f32") as cache:
        yield cache


IDS = [5, 9, 200, 31, 7]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "one or more ids"),
        ([[1, 2]], "one or more ids"),
        ([1.5], "whole numbers"),
        (["1"], "whole numbers"),
        ([True], "whole numbers"),
        ([3, -1], "token id -1 is outside the vocabulary of 288"),
        ([3, 288], "token id 288 is outside"),
        ([2**40], "outside"),
    ],
)
def test_refused_tokens_change_nothing(decoder, cache, tokens, message):
    cache.forward(IDS)
    expected = cache.forward([4])
    cache.truncate(len(IDS))

    with pytest.raises(ArgumentError, match=message):
        cache.forward(tokens)

    assert cache.position == len(IDS)
    assert np.array_equal(cache.forward([4]), expected)


@pytest.mark.parametrize("token", [-1, 288, 2**40, 1.5, "1", True, None])
def test_a_refused_step_changes_nothing(decoder, cache, token):
    cache.forward(IDS)
    expected = cache.forward([4])
    cache.truncate(len(IDS))

    with pytest.raises(ArgumentError):
        cache.step(token)

    assert cache.position == len(IDS)
    assert np.array_equal(cache.step(np.int64(4)), expected)


def test_steps_have_the_bits_of_forward(decoder, cache):
    cache.forward(IDS)
    expected = [cache.forward([token]) for token in IDS]
    with open_session(decoder, len(IDS) + 2, kv_type="f32") as other:
        other.forward(IDS)
        for token, logits in zip(IDS[:2], expected, strict=False):
            assert np.array_equal(other.step(token), logits)
        with pytest.raises(ContextOverflow):
            other.step(3)
        other.truncate(len(IDS))
        other.cancel()
        with pytest.raises(Cancelled):
            other.step(3)
        assert other.position == len(IDS)
        assert np.array_equal(other.step(IDS[0]), expected[0])
    with pytest.raises(ClosedError):
        other.step(3)


def test_full_cache(decoder, cache):
    cache.forward(np.arange(60))
    with pytest.raises(ContextOverflow) as caught:
        cache.forward(IDS)

    assert (caught.value.needed, caught.value.limit, cache.position) == (65, 64, 60)
    cache.forward(IDS[:4])
    assert cache.position == 64
    with pytest.raises(ContextOverflow):
        cache.forward([1])


def test_out_of_the_wrong_shape(decoder, cache):
    for shape, all_logits in (((287,), False), ((5, 288), False), ((288,), True), ((4, 288), True)):
        with pytest.raises(ArgumentError, match="out has shape"):
            cache.forward(IDS, all_logits, np.empty(shape, np.float32))
    with pytest.raises(ArgumentError, match="out is float64"):
        cache.forward(IDS, out=np.empty(288))
    assert cache.position == 0


def test_out_is_filled_and_returned(decoder, cache):
    expected = cache.forward(IDS, all_logits=True)
    cache.truncate(0)
    out = np.empty((5, 288), np.float32)
    assert cache.forward(IDS, all_logits=True, out=out) is out
    assert np.array_equal(out, expected)
    cache.truncate(0)
    last = np.empty(288, np.float32)
    assert cache.forward(IDS, out=last) is last
    assert np.array_equal(last, expected[-1])


def test_returned_logits_stay_as_they_are(decoder, cache):
    first = cache.forward(IDS)
    copy = first.copy()
    cache.forward([3])
    assert np.array_equal(first, copy)


def test_pages_of_another_model_are_refused(decoder):
    pages = Pages(3, 2, 8, "f32", n_pages=4, slab_pages=4)
    with pytest.raises(ArgumentError, match="made for another model: their layers, kv heads"):
        decoder.evaluator([pages])


def test_closed(decoder):
    session = open_session(decoder, 64)
    session.close()
    with pytest.raises(ClosedError):
        session.forward(IDS)
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        session = open_session(DecoderLM(checkpoint), 64)
    with pytest.raises(ClosedError):
        session.forward(IDS)


def test_arguments_of_the_decoder():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        with pytest.raises(ArgumentError, match="compute is 'int4'"):
            DecoderLM(checkpoint, compute="int4")
        with pytest.raises(ArgumentError, match="n_threads"):
            DecoderLM(checkpoint, n_threads=0)


def test_hidden_states_are_what_the_head_reads(decoder, cache):
    logits = cache.forward(IDS, all_logits=True)
    cache.truncate(0)
    hidden = cache.hidden_states(IDS)
    assert cache.position == len(IDS)
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        tensors = checkpoint.tensors
        head = tensors.get("output.weight", tensors["token_embd.weight"]).numpy()
    assert np.allclose(hidden @ head.T, logits, atol=1e-3)


@pytest.mark.skipif(not COMPILED, reason="takes minutes in reference mode")
@pytest.mark.compiled
def test_a_prompt_longer_than_one_plan():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        decoder = DecoderLM(checkpoint)
        n = 2 * MAX_ROWS + 40
        ids = np.random.default_rng(0).integers(0, 288, n)
        cache = open_session(decoder, n + 1)
        whole = cache.forward(ids, all_logits=True)
        cache.truncate(0)
        assert np.array_equal(cache.forward(ids), whole[-1])
        cache.truncate(MAX_ROWS - 3)
        cache.forward(ids[MAX_ROWS - 3 : MAX_ROWS + 5])
        assert np.array_equal(cache.forward(ids[MAX_ROWS + 5 :]), whole[-1])


def test_abort_before_and_after(decoder, cache):
    cache.forward(IDS)
    expected = cache.forward([4])
    cache.truncate(len(IDS))
    cache.cancel()
    with pytest.raises(Cancelled):
        cache.forward([4])
    assert cache.position == len(IDS)
    assert np.array_equal(cache.forward([4]), expected)


def test_abort_from_another_thread_leaves_the_cache_as_it_was(decoder):
    cache = open_session(decoder, 4000)
    ids = np.random.default_rng(1).integers(0, 288, 3900)
    cache.forward(IDS)
    timer = threading.Timer(0.02, cache.cancel)
    timer.start()
    aborted = False
    for _ in range(1000):
        try:
            cache.forward(ids)
        except Cancelled:
            aborted = True
            break
        cache.truncate(len(IDS))
    timer.join()
    assert aborted
    assert cache.position == len(IDS)


@pytest.mark.skipif(not COMPILED, reason="the definitions allocate as numpy does")
@pytest.mark.compiled
@pytest.mark.parametrize("all_logits", [False])
def test_a_step_after_a_prefill_allocates_next_to_nothing(decoder, cache, all_logits):
    out = np.empty(288, np.float32)
    cache.forward(IDS)
    ids = np.array([1])
    for _ in range(60):  # Python keeps what is freed in lists that grow to their lengths
        cache.truncate(len(IDS))
        for _ in range(50):
            cache.forward(ids, all_logits, out)
    cache.truncate(len(IDS))
    tracemalloc.start()
    try:
        peaks = []
        for _ in range(40):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            cache.forward(ids, all_logits, out)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        grown = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            cache.forward(ids, all_logits, out)
        grown = tracemalloc.get_traced_memory()[0] - grown
    finally:
        tracemalloc.stop()
    assert max(peaks) < 64_000
    assert grown < 1_000


def test_nothing_grows_in_steps(decoder, cache):
    cache.forward(IDS)
    cache.forward([1])
    evaluator = cache._sessions.engine.store("f32").evaluator
    before = evaluator.scratch_bytes
    for _ in range(5):
        cache.forward([1])
    assert evaluator.scratch_bytes == before


def test_plan_can_be_read_and_timed(decoder, cache):
    plan = cache.plan(1)
    text = str(plan)
    assert "layer 1: query, key, value" in text
    assert text.count("\n") == len(plan)
    timings = plan.profile(repeats=1)
    assert [t.operation for t in timings] == plan.operations
    assert all(t.seconds > 0 for t in timings)
    head = timings[-1]
    assert head.operation.products == 288 * 32
    assert head.gigaproducts_per_second > 0
    with pytest.raises(ArgumentError, match="n_tokens=0 must be"):
        cache.plan(0)


def test_forks_go_their_own_ways(decoder, cache):
    cache.forward(IDS)
    expected = cache.forward([8])
    cache.truncate(len(IDS))
    with open_session(decoder, 64, kv_type="f32") as first:
        first.forward(IDS)
        second = first.fork()
        first.forward([3, 4, 5])
        assert np.array_equal(second.forward([8]), expected)
        first.truncate(len(IDS))
        assert np.array_equal(first.forward([8]), expected)


@pytest.mark.parametrize(("kv_type", "bound"), [("f16", 2e-2), ("int8", 0.3)])
def test_cache_types_agree(decoder, kv_type, bound):
    ids = np.random.default_rng(2).integers(0, 288, 40)
    exact = open_session(decoder, 64, kv_type="f32").forward(ids, all_logits=True)
    got = open_session(decoder, 64, kv_type=kv_type).forward(ids, all_logits=True)
    # Keys and values are off by 2^-12 (f16) and by 1/254 of the largest of 8 (int8), relative.
    assert 0 < np.abs(got - exact).max() < bound * np.abs(exact).max()

"""What a forward pass accepts, refuses, allocates and leaves behind; on the toy Llama."""

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import rml
from rml.errors import ArgumentError, ClosedError, ContextOverflow
from rml.files import open_checkpoint
from rml.llm.decoder import MAX_TOKENS, DecoderLM
from rml.llm.plan import Aborted

TOY = Path(__file__).resolve().parent.parent / "fixtures" / "llama"
COMPILED = rml.info()["backend"] == "cython"


@pytest.fixture(scope="module")
def decoder():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        yield DecoderLM(checkpoint)


@pytest.fixture
def cache(decoder):
    with decoder.new_cache(64, kv_type="f32") as cache:
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
    decoder.forward(IDS, cache)
    expected = decoder.forward([4], cache)
    cache.truncate(len(IDS))

    with pytest.raises(ArgumentError, match=message):
        decoder.forward(tokens, cache)

    assert cache.size == len(IDS)
    assert np.array_equal(decoder.forward([4], cache), expected)


@pytest.mark.parametrize("token", [-1, 288, 2**40, 1.5, "1", True, None])
def test_a_refused_step_changes_nothing(decoder, cache, token):
    decoder.forward(IDS, cache)
    expected = decoder.forward([4], cache)
    cache.truncate(len(IDS))

    with pytest.raises(ArgumentError):
        decoder.step(token, cache)

    assert cache.size == len(IDS)
    assert np.array_equal(decoder.step(np.int64(4), cache), expected)


def test_steps_have_the_bits_of_forward(decoder, cache):
    decoder.forward(IDS, cache)
    expected = [decoder.forward([token], cache) for token in IDS]
    with decoder.new_cache(len(IDS) + 2, kv_type="f32") as other:
        decoder.forward(IDS, other)
        for token, logits in zip(IDS[:2], expected, strict=False):
            assert np.array_equal(decoder.step(token, other), logits)
        with pytest.raises(ContextOverflow):
            decoder.step(3, other)
        other.truncate(len(IDS))
        other.abort[0] = 1
        with pytest.raises(Aborted):
            decoder.step(3, other)
        other.abort[0] = 0
        assert other.size == len(IDS)
        assert np.array_equal(decoder.step(IDS[0], other), expected[0])
    with pytest.raises(ClosedError):
        decoder.step(3, other)


def test_full_cache(decoder, cache):
    decoder.forward(np.arange(60), cache)
    with pytest.raises(ContextOverflow) as caught:
        decoder.forward(IDS, cache)

    assert (caught.value.needed, caught.value.limit, cache.size) == (65, 64, 60)
    decoder.forward(IDS[:4], cache)
    assert cache.size == 64
    with pytest.raises(ContextOverflow):
        decoder.forward([1], cache)


def test_out_of_the_wrong_shape(decoder, cache):
    for shape, all_logits in (((287,), False), ((5, 288), False), ((288,), True), ((4, 288), True)):
        with pytest.raises(ArgumentError, match="out has shape"):
            decoder.forward(IDS, cache, all_logits, np.empty(shape, np.float32))
    with pytest.raises(ArgumentError, match="out is float64"):
        decoder.forward(IDS, cache, out=np.empty(288))
    assert cache.size == 0


def test_out_is_filled_and_returned(decoder, cache):
    expected = decoder.forward(IDS, cache, all_logits=True)
    cache.truncate(0)
    out = np.empty((5, 288), np.float32)
    assert decoder.forward(IDS, cache, all_logits=True, out=out) is out
    assert np.array_equal(out, expected)
    cache.truncate(0)
    last = np.empty(288, np.float32)
    assert decoder.forward(IDS, cache, out=last) is last
    assert np.array_equal(last, expected[-1])


def test_returned_logits_stay_as_they_are(decoder, cache):
    first = decoder.forward(IDS, cache)
    copy = first.copy()
    decoder.forward([3], cache)
    assert np.array_equal(first, copy)


def test_cache_of_another_model_is_refused(decoder):
    with open_checkpoint(TOY.parent / "gemma3_text" / "model.gguf") as other:
        foreign = DecoderLM(other).new_cache(64)
    with pytest.raises(ArgumentError, match="made for another model"):
        decoder.forward(IDS, foreign)
    assert foreign.size == 0


def test_closed(decoder):
    cache = decoder.new_cache(64)
    cache.close()
    with pytest.raises(ClosedError):
        decoder.forward(IDS, cache)
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        late = DecoderLM(checkpoint)
        cache = late.new_cache(64)
    with pytest.raises(ClosedError):
        late.forward(IDS, cache)


def test_arguments_of_the_decoder():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        with pytest.raises(ArgumentError, match="compute is 'int4'"):
            DecoderLM(checkpoint, compute="int4")
        with pytest.raises(ArgumentError, match="n_threads"):
            DecoderLM(checkpoint, n_threads=0)


def test_hidden_states_are_what_the_head_reads(decoder, cache):
    logits = decoder.forward(IDS, cache, all_logits=True)
    cache.truncate(0)
    hidden = decoder.hidden_states(IDS, cache)
    assert cache.size == len(IDS)
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        tensors = checkpoint.tensors
        head = tensors.get("output.weight", tensors["token_embd.weight"]).numpy()
    assert np.allclose(hidden @ head.T, logits, atol=1e-3)


@pytest.mark.skipif(not COMPILED, reason="takes minutes in reference mode")
@pytest.mark.compiled
def test_a_prompt_longer_than_one_plan():
    with open_checkpoint(TOY / "model.gguf") as checkpoint:
        decoder = DecoderLM(checkpoint)
        n = 2 * MAX_TOKENS + 40
        ids = np.random.default_rng(0).integers(0, 288, n)
        cache = decoder.new_cache(n + 1)
        whole = decoder.forward(ids, cache, all_logits=True)
        cache.truncate(0)
        assert np.array_equal(decoder.forward(ids, cache), whole[-1])
        cache.truncate(MAX_TOKENS - 3)
        decoder.forward(ids[MAX_TOKENS - 3 : MAX_TOKENS + 5], cache)
        assert np.array_equal(decoder.forward(ids[MAX_TOKENS + 5 :], cache), whole[-1])


def test_abort_before_and_after(decoder, cache):
    decoder.forward(IDS, cache)
    expected = decoder.forward([4], cache)
    cache.truncate(len(IDS))
    cache.abort[0] = 1
    with pytest.raises(Aborted):
        decoder.forward([4], cache)
    assert cache.size == len(IDS)
    cache.abort[0] = 0
    assert np.array_equal(decoder.forward([4], cache), expected)


def test_abort_from_another_thread_leaves_the_cache_as_it_was(decoder):
    cache = decoder.new_cache(4000)
    ids = np.random.default_rng(1).integers(0, 288, 3900)
    decoder.forward(IDS, cache)
    timer = threading.Timer(0.02, lambda: cache.abort.__setitem__(0, 1))
    timer.start()
    aborted = False
    for _ in range(1000):
        try:
            decoder.forward(ids, cache)
        except Aborted:
            aborted = True
            break
        cache.truncate(len(IDS))
    timer.join()
    assert aborted
    assert cache.size == len(IDS)


@pytest.mark.skipif(not COMPILED, reason="the definitions allocate as numpy does")
@pytest.mark.compiled
@pytest.mark.parametrize("all_logits", [False])
def test_a_step_after_a_prefill_allocates_next_to_nothing(decoder, cache, all_logits):
    out = np.empty(288, np.float32)
    decoder.forward(IDS, cache)
    decoder.forward([1], cache, all_logits, out)
    ids = np.array([1])
    tracemalloc.start()
    try:
        peaks = []
        for _ in range(40):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            decoder.forward(ids, cache, all_logits, out)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
        grown = tracemalloc.get_traced_memory()[0]
        for _ in range(10):
            decoder.forward(ids, cache, all_logits, out)
        grown = tracemalloc.get_traced_memory()[0] - grown
    finally:
        tracemalloc.stop()
    assert max(peaks) < 64_000
    assert grown < 1_000


def test_workspace_does_not_grow_in_steps(decoder, cache):
    decoder.forward(IDS, cache)
    decoder.forward([1], cache)
    workspace, scratch = cache.workspace, cache.workspace.scratch.nbytes
    for _ in range(5):
        decoder.forward([1], cache)
    assert cache.workspace is workspace
    assert workspace.scratch.nbytes == scratch


def test_plan_can_be_read_and_timed(decoder, cache):
    plan = decoder.plan(cache, 1)
    text = str(plan)
    assert "layer 1: query, key, value" in text
    assert text.count("\n") == len(plan)
    timings = plan.profile(repeats=1)
    assert [t.operation for t in timings] == plan.operations
    assert all(t.seconds > 0 for t in timings)
    head = timings[-1]
    assert head.operation.products == 288 * 32
    assert head.gigaproducts_per_second > 0
    with pytest.raises(ArgumentError, match="n_tokens is 0"):
        decoder.plan(cache, 0)


def test_forks_go_their_own_ways(decoder, cache):
    decoder.forward(IDS, cache)
    expected = decoder.forward([8], cache)
    cache.truncate(len(IDS))
    with decoder.new_cache(64, kv_type="f32", n_sequences=2) as first:
        decoder.forward(IDS, first)
        second = first.fork()
        decoder.forward([3, 4, 5], first)
        assert np.array_equal(decoder.forward([8], second), expected)
        first.truncate(len(IDS))
        assert np.array_equal(decoder.forward([8], first), expected)


@pytest.mark.parametrize(("kv_type", "bound"), [("f16", 2e-2), ("int8", 0.3)])
def test_cache_types_agree(decoder, kv_type, bound):
    ids = np.random.default_rng(2).integers(0, 288, 40)
    exact = decoder.forward(ids, decoder.new_cache(64, kv_type="f32"), all_logits=True)
    got = decoder.forward(ids, decoder.new_cache(64, kv_type=kv_type), all_logits=True)
    # Keys and values are off by 2^-12 (f16) and by 1/254 of the largest of 8 (int8), relative.
    assert 0 < np.abs(got - exact).max() < bound * np.abs(exact).max()

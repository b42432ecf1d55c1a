"""The life of a generation, with a scripted decoder: phases, ends, cancelling, counting."""

import asyncio
import contextvars
import gc
import math
import threading
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rml.errors import ArgumentError, ContextOverflow, NumericError, RmlError
from rml.generation.prompts import Prompt
from rml.generation.request import Request
from rml.generation.stream import Stream
from rml.sampling.settings import SamplingSettings

PROMPT = [5, 6, 7]
EOS = 257


def all_ids(pieces):
    return [token for piece in pieces for token in piece.token_ids]


@pytest.fixture
def start(make_pool, byte_tokenizer):
    """`start(script, prompt, **options)`: a greedy stream, its decoder and where it evaluates.

    That is a session of ours with `keep`, else the pool that lends one.
    """

    def make(script, prompt=PROMPT, *, n_ctx=64, n_batch=512, keep=False, **options):
        pool, decoder = make_pool(script, n_ctx, n_batch=n_batch)
        options = {"temperature": 0, "seed": 1, **options}
        where = pool
        if keep:
            options["session"] = where = pool.open()
        stream = Stream(
            Prompt(list(prompt)),
            Request.of(options, SamplingSettings()),
            byte_tokenizer,
            sessions=pool,
            stop_ids=byte_tokenizer.stop_ids,
        )
        return stream, decoder, where

    return make


def nothing_is_left(pool, decoder):
    """Whether the session of the stream was closed, and all pages were given back."""
    return pool.n_open == decoder.n_pages_used == 0


def test_a_text_until_its_end_token(start, says):
    stream, decoder, pool = start(says("Hi!", 3))

    pieces = list(stream)
    reply = stream.result()

    assert [piece.text for piece in pieces] == ["H", "i", "!"]
    assert [piece.token_ids for piece in pieces] == [[72], [105], [33]]
    assert (reply.text, reply.token_ids, str(reply)) == ("Hi!", [72, 105, 33], "Hi!")
    assert (reply.finish_reason, reply.stop_reason) == ("stop", EOS)
    assert reply.prompt_token_ids == PROMPT
    assert reply.usage.to_dict() == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert reply.seed == 1
    assert reply.sampling.temperature == 0
    assert reply.logprobs is None
    # The prompt at once, then each token but the end token.
    assert decoder.calls == [PROMPT, [72], [105], [33]]
    assert nothing_is_left(pool, decoder)


def test_nothing_is_evaluated_before_the_first_piece_is_asked_for(start, says):
    stream, decoder, _ = start(says("Hi", 3))

    assert decoder.calls == []
    assert next(stream).text == "H"
    assert decoder.calls == [PROMPT]


@pytest.mark.parametrize(
    ("max_tokens", "text", "reason"),
    [(0, "", "length"), (1, "H", "length"), (3, "Hi!", "length"), (4, "Hi!", "stop")],
)
def test_max_tokens(start, says, max_tokens, text, reason):
    reply = start(says("Hi!", 3), max_tokens=max_tokens)[0].result()

    assert (reply.text, reply.finish_reason) == (text, reason)
    assert reply.stop_reason == ("max_tokens" if reason == "length" else EOS)


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens", "n_generated", "reason"),
    [
        (30, 1, 1, "max_tokens"),
        (30, 2, 2, "max_tokens"),  # the context ends there, too, but nothing was cut
        (30, 3, 2, "context"),
        (30, -1, 2, "context"),
        (30, None, 2, "context"),
        (32, 0, 0, "max_tokens"),
        (32, 1, 0, "context"),
        (3, 0, 0, "max_tokens"),
    ],
)
@pytest.mark.parametrize("keep", [True, False])
def test_what_made_a_completion_end_is_told(start, n_prompt, max_tokens, n_generated, reason, keep):
    stream, *_ = start(
        lambda tokens: 65, [1] * n_prompt, n_ctx=32, max_tokens=max_tokens, keep=keep
    )
    reply = stream.result()

    assert (len(reply.token_ids), reply.finish_reason) == (n_generated, "length")
    assert reply.stop_reason == reason
    assert reply.to_openai()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("n_prompt", "n_generated"), [(1, 31), (31, 1), (30, 2), (32, 0)])
@pytest.mark.parametrize("max_tokens", [64, None])
def test_prompt_and_completion_fill_the_context_and_no_more(
    start, n_prompt, n_generated, max_tokens
):
    stream, decoder, _ = start(lambda tokens: 65, [1] * n_prompt, n_ctx=32, max_tokens=max_tokens)

    reply = stream.result()

    assert (len(reply.token_ids), reply.finish_reason) == (n_generated, "length")
    # The last token is not evaluated.
    assert sum(map(len, decoder.calls)) == n_prompt + max(0, n_generated - 1)


@pytest.mark.parametrize("n_prompt", [33, 100])
def test_a_prompt_longer_than_the_context_is_refused_at_once(start, n_prompt):
    with pytest.raises(ContextOverflow, match=f"{n_prompt} tokens are needed.* holds 32"):
        start(lambda tokens: 65, [1] * n_prompt, n_ctx=32)


def test_stop_strings_across_tokens(start, says):
    stream, decoder, _ = start(says("one two three", 3), stop=["o t", "three"])

    pieces = list(stream)
    reply = stream.result()

    assert "".join(piece.text for piece in pieces) == reply.text == "one tw"
    assert (reply.finish_reason, reply.stop_reason) == ("stop", "o t")
    # Tokens of the stop string were generated, and the pieces report them.
    assert bytes(reply.token_ids) == b"one two t"
    assert all_ids(pieces) == reply.token_ids
    assert len(decoder.calls) == 9


def test_a_held_back_beginning_of_a_stop_string_is_released(start, says):
    at_end = start(says("one tw", 3), stop=["two"])[0].result()
    at_length = start(says("one two", 3), stop=["two"], max_tokens=6)[0].result()

    assert (at_end.text, at_end.finish_reason, at_end.stop_reason) == ("one tw", "stop", EOS)
    assert (at_length.text, at_length.finish_reason) == ("one tw", "length")


def test_a_stop_string_in_the_prompt_does_nothing(start, says):
    assert start(says("Hi", 3), prompt=b"two", stop="two")[0].result().text == "Hi"


def test_the_name_of_a_control_token_stops_at_the_token(start, says):
    """Such a token has no text, so no text search would find it."""
    reply = start(says("Hi", 3, then=258), stop="<tool>")[0].result()

    assert (reply.text, reply.finish_reason, reply.stop_reason) == ("Hi", "stop", "<tool>")


def test_stop_token_ids(start, says):
    reply = start(says("Hi!", 3), stop_token_ids=[33])[0].result()

    assert (reply.text, reply.stop_reason) == ("Hi", 33)


def test_ignore_eos(start):
    logits = np.zeros(300, np.float32)
    logits[[65, EOS, 280]] = 1, 2, 3  # 280 is padding

    stopped = start(lambda tokens: logits, max_tokens=3)[0].result()
    ignored = start(lambda tokens: logits, max_tokens=3, ignore_eos=True)[0].result()

    assert (stopped.text, stopped.finish_reason) == ("", "stop")
    assert (ignored.text, ignored.finish_reason) == ("AAA", "length")


def test_characters_come_whole(start, says):
    stream, *_ = start(says("aé🦙", 3))

    pieces = list(stream)

    assert [piece.text for piece in pieces] == ["a", "é", "🦙"]
    assert [len(piece.token_ids) for piece in pieces] == [1, 2, 4]


def test_an_unfinished_character_becomes_one_replacement_at_the_end(start, says):
    stream, *_ = start(says("a🦙".encode()[:4], 3))

    assert [piece.text for piece in stream] == ["a", "\ufffd"]
    assert stream.result().token_ids == [97, 0xF0, 0x9F, 0xA6]


@given(
    text=st.text(alphabet="abé🦙", max_size=12),
    stop=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3),
    max_tokens=st.none() | st.integers(0, 30),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_join_to_the_result(start, says, text, stop, max_tokens):
    stream, *_ = start(says(text, 3), stop=stop, max_tokens=max_tokens)

    pieces = list(stream)
    reply = stream.result()

    assert "".join(piece.text for piece in pieces) == reply.text
    assert all_ids(pieces) == reply.token_ids
    generated = text.encode()[:max_tokens].decode("utf-8", "replace")
    ends = [generated.find(s) for s in stop if s in generated]
    assert reply.text == generated[: min(ends, default=len(generated))]


# ---- prefill ----


def test_the_prompt_is_evaluated_in_parts_with_progress(start, says):
    seen = []
    stream, decoder, _ = start(
        says("Hi", 7), range(7), n_batch=3, progress=lambda *done: seen.append(done)
    )

    assert stream.result().text == "Hi"
    assert decoder.calls[:3] == [[0, 1, 2], [3, 4, 5], [6]]
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_cancel_during_the_prefill(start, says):
    stream, decoder, session = start(
        says("Hi", 7), range(7), n_batch=3, keep=True, progress=lambda *_: stream.cancel()
    )

    reply = stream.result()

    assert (reply.text, reply.finish_reason) == ("", "cancelled")
    assert decoder.calls == [[0, 1, 2]]
    assert session.tokens == [0, 1, 2]  # and the session is usable
    assert session.forward([3]).shape == (300,)


def test_close_during_the_prefill(start, says):
    stream, decoder, pool = start(
        says("Hi", 7), range(7), n_batch=3, progress=lambda *_: stream.close()
    )

    assert list(stream) == []
    assert decoder.calls == [[0, 1, 2]]
    assert nothing_is_left(pool, decoder)


def test_an_interrupt_leaves_the_session_usable(start, says):
    def interrupt(done, total):
        raise KeyboardInterrupt

    stream, _, session = start(says("Hi", 7), range(7), n_batch=3, keep=True, progress=interrupt)

    with pytest.raises(KeyboardInterrupt):
        next(stream)
    with pytest.raises(RmlError, match="no result"):
        stream.result()
    assert session.forward([3]).shape == (300,)


def test_what_the_session_holds_is_not_evaluated_again(start, says, byte_tokenizer):
    stream, decoder, session = start(says("Hi", 3), keep=True)
    assert stream.result().text == "Hi"
    assert session.tokens == [*PROMPT, 72, 105]
    decoder.calls.clear()

    decoder.script = says("Yo", 7)
    prompt = [*PROMPT, 72, 105, EOS, 9]
    request = Request.of({"temperature": 0, "session": session}, SamplingSettings())
    reply = Stream(
        Prompt(prompt),
        request,
        byte_tokenizer,
        sessions=session._sessions,
        stop_ids={EOS},
    ).result()

    assert reply.text == "Yo"
    assert decoder.calls == [[EOS, 9], [89], [111]]
    assert (reply.usage.cached_tokens, reply.timings.cache_n, reply.timings.prompt_n) == (5, 5, 2)
    assert not session.closed


def test_a_session_that_was_moved_meanwhile_is_noticed(start, says):
    stream, _, session = start(says("Hello", 3), keep=True)
    next(stream)
    session.truncate(1)

    with pytest.raises(ArgumentError, match="used for something else"):
        list(stream)


# ---- leaving early ----


@pytest.mark.parametrize(("keep", "by"), [(False, "stream"), (True, "stream"), (True, "session")])
def test_cancel_during_a_step_ends_with_what_was_held_back(start, says, keep, by):
    answer = says("one two", 3)

    def script(tokens):
        if bytes(tokens[3:]) == b"one":  # the "e" of "one" waits for a possible "e x"
            (stream if by == "stream" else where).cancel()
        return answer(tokens)

    stream, decoder, where = start(script, stop="e x", keep=keep)

    assert [piece.text for piece in stream] == ["o", "n", "e"]
    assert stream.result().finish_reason == "cancelled"
    assert len(decoder.calls) == 4
    if keep:
        assert where.tokens == decoder.told(where) == [*PROMPT, *b"on"]  # one step less
        assert where.forward([1]).shape == (300,)
    else:
        assert nothing_is_left(where, decoder)


def test_cancel_during_a_part_of_the_prompt(start, says):
    def script(tokens):
        if len(tokens) == 5:
            stream.cancel()
        return 0

    stream, decoder, session = start(script, range(7), n_batch=3, keep=True)

    reply = stream.result()

    assert (reply.text, reply.finish_reason) == ("", "cancelled")
    assert session.tokens == decoder.told(session) == [0, 1, 2]
    assert session.forward([9]).shape == (300,)


def test_a_cancel_that_comes_too_late_does_not_hurt_the_next_user(start, says, byte_tokenizer):
    stream, _, session = start(says("Hi", 3), keep=True)
    assert stream.result().finish_reason == "stop"

    stream.cancel()

    assert session.forward([1]).shape == (300,)


def test_a_cancel_at_the_very_end_is_forgotten(start, says):
    """It comes while the last token is chosen: the text has ended by itself."""
    logits = np.zeros(300, np.float32)
    logits[EOS] = 1

    def late(_ids, scores):
        stream.cancel()
        return scores

    stream, _, session = start(lambda _: logits, keep=True, logits_processor=late)

    assert stream.result().finish_reason == "stop"
    assert session.forward([1]).shape == (300,)


def test_breaking_out_of_the_loop_gives_the_session_back_at_once(start, says):
    stream, decoder, pool = start(says("Hello", 3))

    for piece in stream:
        assert piece.text == "H"
        break

    assert nothing_is_left(pool, decoder)
    reply = stream.result()
    assert (reply.text, reply.finish_reason) == ("H", "cancelled")
    assert len(decoder.calls) == 1


def test_an_error_in_the_loop_gives_the_session_back(start, says):
    stream, decoder, pool = start(says("Hello", 3))

    def consume():
        for piece in stream:
            raise ZeroDivisionError(piece.text)

    with pytest.raises(ZeroDivisionError, match="H"):
        consume()

    assert nothing_is_left(pool, decoder)


def test_with_closes_and_keeps_a_result(start, says):
    stream, decoder, pool = start(says("Hello", 3))
    with stream:
        assert next(stream).text == "H"

    assert nothing_is_left(pool, decoder)
    assert (stream.result().text, stream.result().finish_reason) == ("H", "cancelled")


def test_closing_before_the_start(start, says):
    stream, decoder, pool = start(says("Hello", 3))
    stream.close()
    stream.close()

    assert pool.n_open == 0
    assert decoder.calls == []
    assert stream.result().finish_reason == "cancelled"


def test_a_session_of_another_model_is_refused(start, says):
    _, _, other = start(says("Hi", 3), keep=True)

    with pytest.raises(ArgumentError, match="another model"):
        start(says("Hi", 3), session=other)


def test_a_stream_that_is_dropped_leaves_nothing_behind(start, says):
    stream, decoder, pool = start(says("Hello", 3))
    next(stream)
    gone = weakref.ref(stream)

    del stream
    gc.collect()

    assert gone() is None
    assert nothing_is_left(pool, decoder)


def test_a_loop_that_the_garbage_collector_ends_leaves_nothing_unknown(start, says):
    stream, decoder, pool = start(says("Hello", 3))
    loop = iter(stream)
    next(loop)
    stream.loop = loop  # a circle

    del stream, loop
    gc.collect()

    assert nothing_is_left(pool, decoder)


def test_cancel_from_another_thread(start):
    stream, decoder, _ = start(lambda tokens: 65, n_ctx=10**6)
    started = threading.Event()

    def consume():
        for _ in stream:
            started.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert started.wait(10)
    stream.cancel()
    consumer.join(10)

    assert not consumer.is_alive()
    assert stream.result().finish_reason == "cancelled"
    assert len(decoder.calls) - len(stream.result().token_ids) in {0, 1}


def test_bad_logits_end_the_stream_with_an_error_and_free_the_cache(start):
    stream, decoder, pool = start(lambda tokens: np.full(300, np.nan))

    with pytest.raises(NumericError, match="position 3"):
        next(stream)
    assert nothing_is_left(pool, decoder)
    with pytest.raises(RmlError, match="no result"):
        stream.result()


# ---- async ----


def test_async_for(start, says):
    stream, *_ = start(says("Hi!", 3))

    async def collect():
        return [piece.text async for piece in stream]

    assert asyncio.run(collect()) == ["H", "i", "!"]


def test_a_context_variable_is_that_of_the_task(start, says):
    var, seen = contextvars.ContextVar("var", default=0), []

    def processor(_ids, logits):
        seen.append(var.get())
        return logits

    stream, *_ = start(says("Hi!", 3), logits_processor=[processor])

    async def collect():
        var.set(5)
        return [piece.text async for piece in stream]

    assert asyncio.run(collect()) == ["H", "i", "!"]
    assert set(seen) == {5}


def test_a_cancelled_task_ends_the_generation(start):
    stream, decoder, pool = start(lambda tokens: 65, n_ctx=10**6)

    async def run():
        started = asyncio.Event()

        async def consume():
            async for _ in stream:
                started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())

    assert nothing_is_left(pool, decoder)
    assert stream.result().finish_reason == "cancelled"


# ---- numbers ----


def test_logprobs_are_those_of_the_model_before_sampling(start):
    logits = np.zeros(300, np.float32)
    logits[[65, 66, 67]] = 3, 2, 1

    reply = start(
        lambda tokens: logits, max_tokens=2, logprobs=True, top_logprobs=2, logit_bias={66: 5.0}
    )[0].result()

    log_sum = math.log(math.exp(3) + math.exp(2) + math.exp(1) + 297)
    assert reply.text == "BB"
    for entry in reply.logprobs:
        assert entry.id == 66
        assert entry.logprob == pytest.approx(2 - log_sum, abs=1e-12)
        assert entry.top == [(65, pytest.approx(3 - log_sum)), (66, pytest.approx(2 - log_sum))]


def test_logprobs_of_pieces(start, says):
    stream, *_ = start(says("é!", 3), logprobs=2)

    pieces = list(stream)

    assert [[entry.id for entry in piece.logprobs] for piece in pieces] == [[0xC3, 0xA9], [33]]
    assert all(len(entry.top) == 2 for piece in pieces for entry in piece.logprobs)


def test_timings_count_what_happened(start, says):
    timings = start(says("Hi!", 3))[0].result().timings

    assert (timings.cache_n, timings.prompt_n, timings.predicted_n) == (0, 3, 4)
    assert timings.prompt_ms > 0
    assert timings.predicted_ms >= timings.sampling_ms > 0
    assert timings.predicted_per_second == pytest.approx(3 / timings.predicted_ms * 1e3)
    assert timings.to_dict()["prompt_per_second"] == timings.prompt_per_second


def test_time_that_the_caller_takes_is_not_counted(start, says):
    import time

    stream, *_ = start(says("Hi!", 3))
    for _ in stream:
        time.sleep(0.1)

    assert stream.result().timings.predicted_ms < 100


def test_penalties_see_the_prompt_and_the_completion(start):
    logits = np.zeros(300, np.float32)
    logits[[5, 65, 66]] = 3, 2, 1  # 5 is in the prompt

    reply = start(lambda tokens: logits, max_tokens=3, presence_penalty=4.0)[0].result()

    assert reply.token_ids[:2] == [65, 66]
    assert 5 not in reply.token_ids


def test_the_same_seed_gives_the_same_text_streamed_or_not(start):
    logits = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    options = {"temperature": 1.5, "max_tokens": 20}

    def run(seed):
        return start(lambda tokens: logits, **options, seed=seed)[0]

    streamed = all_ids(run(3))
    assert streamed == run(3).result().token_ids
    assert streamed != run(4).result().token_ids


def test_work_for_a_token_does_not_grow_with_the_text(start, calls_of):
    """Calls for late tokens are as many as for early ones, but for a buffer that grows."""
    stream, *_ = start(
        lambda tokens: 65, n_ctx=10**6, temperature=1, top_k=1, repeat_penalty=1.1, stop="AB"
    )
    counts = [calls_of(lambda: next(stream)) for _ in range(600)]
    stream.close()

    assert np.median(counts[500:]) <= np.median(counts[100:200])
    assert sum(counts[500:]) <= 1.01 * sum(counts[100:200])

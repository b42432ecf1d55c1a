"""Who joins a step, who waits, who gives way: generations beside each other."""

import gc
import linecache
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError, ClosedError
from rml.generation import generation as generation_module

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
PAGE = 16 * 128  # bytes of the toy's keys and values, f16
DRAWN = {"max_tokens": 20, "temperature": 1.5, "seed": 9, "ignore_eos": True, "logprobs": 1}
PROMPTS = [[3, 5, 7], [11], list(range(20, 60)), [4] * 17]


@pytest.fixture
def model():
    with rml.load(LLAMA) as model:
        yield model


def what(completion):
    return completion.token_ids, completion.text, completion.logprobs, completion.finish_reason


def alone(prompt, **options):
    with rml.load(LLAMA, prefix_cache=False) as model:
        return what(model.generate(prompt, **options))


def joined(pieces):
    return [token for piece in pieces for token in piece.token_ids]


def in_threads(calls):
    results = {}

    def run(i, call):
        results[i] = call()

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [results.get(i) for i in range(len(threads))]


# ---- joining ----


def test_streams_that_are_read_in_turn_are_computed_together(model, watch):
    counts = watch(model, len)
    streams = [model.stream(ids, **DRAWN) for ids in PROMPTS]
    pieces = [[] for _ in streams]
    while True:
        found = [next(stream, None) for stream in streams]
        for mine, piece in zip(pieces, found, strict=True):
            if piece:
                mine.append(piece)
        if not any(found):
            break
    assert counts.count(4) >= 8
    for ids, mine, stream in zip(PROMPTS, pieces, streams, strict=True):
        assert what(stream.result()) == alone(ids, **DRAWN)
        assert joined(mine) == stream.result().token_ids


def test_streams_of_many_threads_share_steps(model, watch):
    prompts = [[5 + i, 9] for i in range(8)]
    counts = watch(model, len)
    barrier = threading.Barrier(8)

    def read(ids):
        stream = model.stream(ids, **DRAWN)
        barrier.wait()
        return joined(stream), what(stream.result())

    found = in_threads([lambda ids=ids: read(ids) for ids in prompts])
    assert [reply for _, reply in found] == [alone(ids, **DRAWN) for ids in prompts]
    assert all(ids == reply[0] for ids, reply in found)
    assert sum(counts) == 8 * 20  # no token is computed twice
    assert len(counts) < 8 * 20  # who comes late may find the others done


def test_a_stream_that_nobody_reads_pauses_and_goes_on(model, watch):
    counts = watch(model, len)
    idle = model.stream([3, 5], **DRAWN)
    first = next(idle)
    reply = model.generate([11], **DRAWN)
    assert what(reply) == alone([11], **DRAWN)
    # Eight tokens are unread; the last one of all was not evaluated.
    together = counts.count(2)
    assert 7 <= together <= 10
    assert set(counts[counts.index(2) + together :]) == {1}
    assert len(idle._generation.sequence) == 2 + len(first.token_ids) + 8 - 1
    assert joined([first, *idle]) == alone([3, 5], **DRAWN)[0]


def test_in_a_session_nothing_runs_ahead(model):
    with model.session() as session:
        stream = model.stream([3, 5], session=session, **DRAWN)
        read = joined([next(stream), next(stream)])
        model.generate([11], **DRAWN)
        assert session.tokens == [3, 5, *read[:-1]]
        rest = joined(stream)
        assert read + rest == alone([3, 5], **DRAWN)[0]


def test_a_stream_that_is_let_go_leaves_the_steps(model, watch):
    stream = model.stream([3, 5], **DRAWN)
    next(stream)
    del stream
    gc.collect()
    counts = watch(model, len)
    model.generate([11], **DRAWN)
    assert set(counts) == {1}
    store = model._sessions.engine.store("f16")
    store.collect()
    assert store.pools[0].n_used == 0


def test_a_model_that_is_closed_ends_its_streams(model):
    stream = model.stream([3, 5], **DRAWN)
    next(stream)
    model.close()
    with pytest.raises(ClosedError):
        list(stream)


# ---- code of callers ----


def test_a_callback_that_blocks_holds_up_nobody_else(model):
    entered, free = threading.Event(), threading.Event()

    def blocks(_ids, logits):
        entered.set()
        assert free.wait(60)
        return logits

    calls = [lambda: model.generate([3, 5], logits_processor=blocks, **DRAWN)]

    def other():
        entered.wait(60)
        try:
            return model.generate([11], **DRAWN)
        finally:
            free.set()

    slow, quick = in_threads([*calls, other])
    assert what(slow) == alone([3, 5], **DRAWN)
    assert what(quick) == alone([11], **DRAWN)


def test_a_callback_that_raises_ends_its_own_generation_only(model):
    def fails(ids, logits):
        if len(ids) > 6:
            raise ZeroDivisionError("mine")
        return logits

    def bad():
        with pytest.raises(ZeroDivisionError, match="mine"):
            model.generate([3, 5], logits_processor=fails, **DRAWN)
        return "raised"

    results = in_threads([bad, *[lambda ids=ids: model.generate(ids, **DRAWN) for ids in PROMPTS]])
    assert results[0] == "raised"
    assert list(map(what, results[1:])) == [alone(ids, **DRAWN) for ids in PROMPTS]


def test_a_callback_may_call_the_model(model):
    inner = []

    def asks(_ids, logits):
        inner.append(what(model.generate([11], **DRAWN)))
        with model.session() as session:
            session.forward([7])
        return logits

    options = DRAWN | {"max_tokens": 3}
    seen = []

    def progress(*done):
        seen.append((done, len(model.generate([11], max_tokens=2, seed=1).token_ids)))

    reply = model.generate([3, 5], logits_processor=asks, progress=progress, **options)
    assert what(reply) == alone([3, 5], **options)
    assert inner == [alone([11], **DRAWN)] * 3
    assert [done for done, _ in seen] == [(2, 2)]


def test_a_callback_that_reads_its_own_stream_is_told(model):
    def reads(_ids, _logits):
        return next(stream)

    stream = model.stream([3, 5], logits_processor=reads, **DRAWN)
    with pytest.raises(ArgumentError, match="cannot read the stream"):
        next(stream)


# ---- memory ----


@pytest.mark.parametrize("n_pages", [4, 5, 6, 9])
def test_a_budget_for_little_more_than_one(n_pages, monkeypatch):
    prompts = [[3 + i] * (18 + 3 * i) for i in range(6)]  # up to 33 + 20 positions: 4 pages
    expected = [alone(ids, **DRAWN) for ids in prompts]
    with rml.load(LLAMA, kv_memory=n_pages * PAGE) as model:
        ways = []
        store = model._sessions.engine.store("f16")
        give_way = type(store.new()).give_way

        def counted(sequence):
            ways.append(len(sequence))
            give_way(sequence)

        monkeypatch.setattr(type(store.new()), "give_way", counted)
        assert list(map(what, model.generate(prompts, **DRAWN))) == expected
        streams = [model.stream(ids, **DRAWN) for ids in prompts]
        while any([next(stream, None) for stream in streams]):  # noqa: C419 - each of them
            pass
        assert [what(stream.result()) for stream in streams] == expected
        replies = in_threads([lambda ids=ids: model.generate(ids, **DRAWN) for ids in prompts])
        assert list(map(what, replies)) == expected
        with model.session() as session:
            session.forward(prompts[5])
            assert list(map(what, model.generate(prompts, **DRAWN))) == expected
            after = session.forward([9])
        with model.session() as session:
            np.testing.assert_array_equal(session.forward([*prompts[5], 9]), after)
        if n_pages < 9:
            assert ways
        store.collect()
        assert store.pools[0].n_used == 0


# ---- Ctrl-C ----


@pytest.mark.parametrize("extra", [{}, {"mirostat": 2, "temperature": 1.0}, {"stop": ["zq"]}])
def test_an_interrupt_on_any_line_hurts_nobody_else(extra):
    """The main thread leads, and is interrupted while it chooses tokens of somebody else."""
    options = DRAWN | {"max_tokens": 6, "repeat_penalty": 1.2, "echo": True} | extra
    expected = alone([3, 5], **options)
    mine = alone([11], **options)
    with rml.load(LLAMA, n_threads=1) as model:
        model.generate([3, 5], **options)

        def once(n):
            """Interrupt line n; how many lines there were."""
            lines = 0

            def trace(frame, event, _arg):
                nonlocal lines
                if frame.f_code.co_filename != generation_module.__file__:
                    return None
                line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                if event == "line" and not line.startswith(("with ", "try:", "finally:")):
                    lines += 1
                    if lines - 1 == n:
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return trace

            other = model.stream([3, 5], **options)
            other._generation.read_all()
            before = sys.gettrace()
            with other.at_work():
                stream = model.stream([11], **options)
                sys.settrace(trace)
                try:
                    stream.result()
                except KeyboardInterrupt:
                    pass
                finally:
                    sys.settrace(before)
            assert what(other.result()) == expected, n
            assert what(model.generate([11], **options)) == mine, n
            return lines

        n_lines = once(None)
        assert n_lines > 200
        for n in range(0, n_lines, 3 if rml.info()["backend"] == "cython" else 41):
            once(n)
        store = model._sessions.engine.store("f16")
        gc.collect()
        store.collect()
        assert store.pools[0].n_used == 0
        assert not model._sessions.engine._joined()

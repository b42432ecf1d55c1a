"""Ctrl-C on any line of the engine: whose step it was loses it, and nobody else notices."""

import gc
import linecache
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from rml._kernels.pages import Pages
from rml.engine import engine as engine_module
from rml.engine import pool as pool_module
from rml.engine import work as work_module
from rml.engine.engine import Engine
from rml.engine.pool import PagePool
from rml.engine.sessions import Sessions
from rml.engine.work import Evaluation
from rml.errors import ClosedError
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM
from rml.llm.memory import LIST_BYTES_PER_TOKEN

MODEL = Path(__file__).resolve().parent.parent / "fixtures" / "llama" / "model.gguf"
FILES = {engine_module.__file__, work_module.__file__}
MINE, MORE, OTHER = list(range(20)), [5, 6, 7], [9] * 37
# Where the interpreter never raises an interrupt, though a tracer can.
NEVER = ("with ", "try:", "finally:")


@pytest.fixture(scope="module")
def decoder():
    with open_checkpoint(MODEL) as checkpoint:
        yield DecoderLM(checkpoint, n_threads=1)


def sessions_of(decoder):
    engine = Engine(decoder, kv_memory=1 << 22, n_batch=16)
    return Sessions(engine, decoder.checkpoint, n_ctx=512, kv_type="f32")


class Tracer:
    """Raises on the n-th line, and remembers the lines before."""

    def __init__(self, n):
        self.n, self.lines = n, []

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in FILES:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not linecache.getline(*place).strip().startswith(NEVER):
            self.lines.append(place)
            if len(self.lines) - 1 == self.n:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


class Case:
    """A session of twenty tokens, and a work of somebody else that is in the same steps."""

    def __init__(self, decoder):
        self.sessions = sessions_of(decoder)
        self.engine = self.sessions.engine
        self.session = self.sessions.open()
        self.session.forward(MINE)
        self.out = np.empty(self.session.n_vocab, np.float32)
        self.other = Evaluation(self.engine.new_sequence("f32"), OTHER, "last", self.out)
        self.engine.join(self.other)

    def traced(self, n):
        tracer, before = Tracer(n), sys.gettrace()
        sys.settrace(tracer)
        try:
            self.session.forward(MORE)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return tracer.lines

    def go_on(self):
        self.session.truncate(min(len(MINE), self.session.position))
        return self.session.forward([*MINE, *MORE][self.session.position :])


def firsts_and_lasts(lines):
    first = {line: i for i, line in reversed(list(enumerate(lines)))}
    last = {line: i for i, line in enumerate(lines)}
    return sorted({*first.values(), *last.values()})


def test_an_interrupt_on_any_line_hurts_nobody_else(decoder):
    wanted = sessions_of(decoder).open().forward([*MINE, *MORE])
    wanted_other = sessions_of(decoder).open().forward(OTHER)
    points = firsts_and_lasts(Case(decoder).traced(None))
    assert len(points) > 60
    for n in points:
        case = Case(decoder)
        file, line = case.traced(n)[-1]
        where = f"{Path(file).name}:{line}"
        got = []
        thread = threading.Thread(target=lambda: got.append(case.go_on()), daemon=True)  # noqa: B023
        thread.start()
        thread.join(10)
        assert got, where
        assert np.array_equal(got[0], wanted), where
        engine = case.engine
        engine.wait(lambda: case.other.ended)  # noqa: B023
        assert case.other.error is None, where
        assert np.array_equal(case.out, wanted_other), where
        case.session.close()
        case.other.sequence.release()
        store = engine.store("f32")
        assert [pool.n_used for pool in store.pools] == [0], where
        assert not [*engine._works, *engine._waiters, *engine._in_step], where
        assert engine._leader is None, where


def test_who_left_between_choice_and_step_disturbs_nobody(decoder, monkeypatch):
    case = Case(decoder)
    wanted = sessions_of(decoder).open().forward(OTHER)
    gone = Evaluation(case.session._sequence, [3], "last", np.empty_like(case.out))
    case.engine.join(gone)
    evaluator = case.engine.store("f32").evaluator
    begin = evaluator.begin

    def leaves(n_rows):
        monkeypatch.setattr(evaluator, "begin", begin)
        case.engine.leave(gone)
        gone.sequence.truncate(3)
        return begin(n_rows)

    monkeypatch.setattr(evaluator, "begin", leaves)
    case.engine.wait(lambda: case.other.ended)
    assert np.array_equal(case.out, wanted)
    assert np.array_equal(case.go_on(), sessions_of(decoder).open().forward([*MINE, *MORE]))


def test_no_memory_for_the_arrays_of_a_step_is_told_to_those_in_it(decoder, monkeypatch):
    case = Case(decoder)
    bystander = Evaluation(case.engine.new_sequence("int8"), OTHER, "last", case.out)
    evaluator = case.engine.store("f32").evaluator

    def fails(n_rows):
        raise MemoryError("no memory for 5 bytes")

    monkeypatch.setattr(evaluator, "begin", fails)
    case.engine.run(bystander)  # leads a step of the other cache type first
    assert isinstance(case.other.error, MemoryError)


def test_a_step_that_the_end_of_the_model_cancels_says_so(decoder, monkeypatch):
    case = Case(decoder)
    evaluator = case.engine.store("f32").evaluator
    run = evaluator.run

    def closes():
        case.engine.close()
        run()

    monkeypatch.setattr(evaluator, "run", closes)
    with pytest.raises(ClosedError, match="closed"):
        case.session.forward(MORE)


def test_pages_are_counted_anew_from_what_is_reserved(monkeypatch):
    """An interrupt after a slab was reserved, before that was entered."""
    page_bytes = Pages(1, 1, 16, "f32", n_pages=1, slab_pages=1).page_bytes
    monkeypatch.setattr(pool_module, "SLAB_BYTES", 4 * (page_bytes + 16 * LIST_BYTES_PER_TOKEN))
    pool = PagePool(1, 1, 16, "f32", budget=8 * page_bytes)
    pool.pages.reserve(0)
    pool.recount([])
    taken = [pool.take() for _ in range(8)]
    assert sorted(taken) == list(range(8))
    assert pool.n_free == 0


def test_a_sequence_that_goes_while_pages_are_counted_anew(decoder):
    store = sessions_of(decoder).engine.store("f32")
    kept = store.new()
    kept.reserve(3)
    kept.commit([1, 2, 3])
    gone = kept.fork()
    store.recount()
    del gone  # and the store has not looked yet
    store.recount()
    gc.collect()
    store.collect()
    assert store.pools[0].users(kept.tables[0][0]) == 1

"""Steps of many sequences have the bits that each sequence has alone, whoever computes them."""

import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from rml.engine.engine import Engine
from rml.engine.scheduler import schedule
from rml.engine.work import Evaluation
from rml.errors import ArgumentError, ClosedError, OutOfMemory
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM
from rml.llm.plan import Aborted
from rml.llm.workspace import LEAST_OUTPUTS

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
N_VOCAB = 288


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "mixtral"])
def decoder(request):
    with open_checkpoint(FIXTURES / request.param / "model.gguf") as checkpoint:
        yield DecoderLM(checkpoint, n_threads=2)


@pytest.fixture(scope="module")
def llama():
    with open_checkpoint(FIXTURES / "llama" / "model.gguf") as checkpoint:
        yield DecoderLM(checkpoint, n_threads=2)


def make(decoder, kv_memory=1 << 24, **kwargs):
    return Engine(decoder, kv_memory=kv_memory, **kwargs)


def evaluation(engine, ids, *, sequence=None, outputs="last", kv_type="f32"):
    config = engine.decoder.config
    if sequence is None:  # an empty one is given as such
        sequence = engine.new_sequence(kv_type)
    shapes = {
        "last": (config.n_vocab,),
        "all": (len(ids), config.n_vocab),
        "states": (len(ids), config.d_model),
    }
    out = np.full(shapes[outputs], np.nan, np.float32)
    work = Evaluation(sequence, list(ids), outputs, out)
    work.out = out
    return work


def run(engine, *works):
    for work in works:
        engine.join(work)
    engine.wait(lambda: all(work.ended for work in works))
    return [work.out for work in works]


def alone(decoder, ids, outputs="last", kv_type="f32"):
    engine = make(decoder)
    return run(engine, evaluation(engine, ids, outputs=outputs, kv_type=kv_type))[0]


def texts(n, seed=0, longest=70):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, N_VOCAB, rng.integers(1, longest)).tolist() for _ in range(n)]


# ---- bits ----


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
@pytest.mark.parametrize("n_batch", [512, 7])
def test_company_changes_no_bit(decoder, kv_type, n_batch):
    engine, prompts = make(decoder, n_batch=n_batch), texts(6)
    works = [evaluation(engine, ids, kv_type=kv_type) for ids in prompts]
    for out, ids in zip(run(engine, *works), prompts, strict=True):
        assert np.array_equal(out, alone(decoder, ids, kv_type=kv_type))
    # They go on one token at a time, beside a new prompt that comes in between.
    late = evaluation(engine, prompts[0], kv_type=kv_type)
    steps = [evaluation(engine, [7], sequence=work.sequence) for work in works]
    *outs, first = run(engine, *steps, late)
    for out, ids in zip(outs, prompts, strict=True):
        assert np.array_equal(out, alone(decoder, [*ids, 7], kv_type=kv_type))
    assert np.array_equal(first, works[0].out)


@pytest.mark.parametrize("outputs", ["all", "states"])
def test_all_rows_in_company(decoder, outputs):
    engine, prompts = make(decoder, n_batch=16), texts(4, longest=40)
    works = [
        evaluation(engine, ids, outputs=outputs if i % 2 else "last")
        for i, ids in enumerate(prompts)
    ]
    for i, (out, ids) in enumerate(zip(run(engine, *works), prompts, strict=True)):
        assert np.array_equal(out, alone(decoder, ids, outputs if i % 2 else "last"))


def test_cache_types_take_turns(llama):
    engine, prompts = make(llama), texts(6, seed=3)
    kinds = ["f32", "int8", "f16"] * 2
    works = [evaluation(engine, p, kv_type=k) for p, k in zip(prompts, kinds, strict=True)]
    for out, ids, kind in zip(run(engine, *works), prompts, kinds, strict=True):
        assert np.array_equal(out, alone(llama, ids, kv_type=kind))


def test_forks_in_one_step(llama):
    engine, ids = make(llama), texts(1, seed=5, longest=50)[0]
    first = evaluation(engine, ids)
    run(engine, first)
    forks = [first.sequence, first.sequence.fork(), first.sequence.fork()]
    outs = run(engine, *[evaluation(engine, [i, 9], sequence=s) for i, s in enumerate(forks)])
    for i, out in enumerate(outs):
        assert np.array_equal(out, alone(llama, [*ids, i, 9]))


def test_mixed_up_page_tables_are_found(llama):
    """The control: with two tables exchanged, the comparisons above would fail."""
    engine, prompts = make(llama), [[1] * 30, [2] * 30]
    works = [evaluation(engine, ids) for ids in prompts]
    run(engine, *works)
    a, b = (work.sequence for work in works)
    a.tables, b.tables = b.tables, a.tables
    outs = run(engine, *[evaluation(engine, [7], sequence=s) for s in (a, b)])
    assert not np.array_equal(outs[0], alone(llama, [*prompts[0], 7]))


# ---- who waits, who leads ----


def test_eight_threads_are_served_by_whoever_leads(llama):
    engine, prompts = make(llama), texts(8, seed=1)
    wanted = [alone(llama, [*ids, *[3] * 20]) for ids in prompts]
    got, barrier = {}, threading.Barrier(8)

    def work(i):
        barrier.wait()
        (_,) = run(engine, first := evaluation(engine, prompts[i]))
        for _ in range(20):
            (got[i],) = run(engine, evaluation(engine, [3], sequence=first.sequence))

    in_threads(work, 8)
    assert all(np.array_equal(got[i], wanted[i]) for i in range(8))
    assert not engine._works
    assert engine._leader is None
    assert not engine._waiters


def in_threads(function, n):
    errors = []

    def guarded(i):
        try:
            function(i)
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_who_is_done_before_the_leader_looks_may_change_the_sequence(llama, monkeypatch):
    engine = make(llama)
    ids, again = texts(2, seed=4)
    joined, evaluated, changed = threading.Event(), threading.Event(), threading.Event()
    owner = threading.get_ident()
    wait, end_step = engine.wait, engine._end_step

    def late(done):
        if threading.get_ident() == owner:  # joined, but looks only after the step
            joined.set()
            evaluated.wait(10)
        wait(done)

    def slow():
        if threading.get_ident() != owner:
            evaluated.set()
            changed.wait(10)
        end_step()

    monkeypatch.setattr(engine, "wait", late)
    monkeypatch.setattr(engine, "_end_step", slow)

    def lead():
        joined.wait(10)
        engine.run(evaluation(engine, ids))

    leader = threading.Thread(target=lead, daemon=True)
    leader.start()
    work = evaluation(engine, ids)
    engine.run(work)
    sequence = work.sequence
    sequence.truncate(0)  # the work looks as if it had not ended
    changed.set()
    leader.join(10)

    assert len(sequence) == 0
    engine.run(work := evaluation(engine, again, sequence=sequence))
    assert sequence.ids == again
    assert np.array_equal(work.out, alone(llama, again))


def test_a_leader_that_is_interrupted_hands_over(llama, monkeypatch):
    """Ctrl-C hits the leader in the middle of a step: that step counts as not run."""
    engine, prompts = make(llama, n_batch=8), texts(3, seed=2)
    wanted = [alone(llama, ids) for ids in prompts]
    evaluator = engine.store("f32").evaluator
    ran, interrupted = evaluator.run, []

    def interrupts():
        ran()
        if threading.current_thread().name == "victim" and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluator, "run", interrupts)
    victim = evaluation(engine, prompts[0])
    others = [evaluation(engine, ids) for ids in prompts[1:]]
    for work in (victim, *others):
        engine.join(work)
    caught = []

    def lead():
        try:
            engine.wait(lambda: victim.ended)
        except KeyboardInterrupt:
            caught.append(True)
            engine.leave(victim)

    thread = threading.Thread(target=lead, name="victim")
    thread.start()
    thread.join(60)
    assert caught
    engine.wait(lambda: all(work.ended for work in others))
    for work, out in zip(others, wanted[1:], strict=True):
        assert np.array_equal(work.out, out)
    again = evaluation(engine, prompts[0][len(victim.sequence) :], sequence=victim.sequence)
    if again.n_wanted:
        assert np.array_equal(run(engine, again)[0], wanted[0])


def test_waiting_inside_a_step_is_refused(llama, monkeypatch):
    engine = make(llama)
    evaluator = engine.store("f32").evaluator
    ran, said = evaluator.run, []

    def nested():
        try:
            engine.wait(lambda: False)
        except ArgumentError as error:
            said.append(str(error))
        ran()

    monkeypatch.setattr(evaluator, "run", nested)
    run(engine, evaluation(engine, [1, 2]))
    assert said == ["the model is computing a step in this thread, so it cannot wait"]


# ---- cancelling, and errors ----


def test_a_cancelled_work_ends_alone(llama):
    engine, prompts = make(llama, n_batch=4), texts(3, seed=4, longest=60)
    works = [evaluation(engine, ids) for ids in prompts]
    engine.cancel(works[1])
    for work in works:
        engine.join(work)
    engine.wait(lambda: all(work.ended for work in works))
    assert isinstance(works[1].error, Aborted)
    assert len(works[1].sequence) == 0
    for i in (0, 2):
        assert np.array_equal(works[i].out, alone(llama, prompts[i]))


def test_a_step_is_aborted_when_everyone_in_it_is_cancelled(llama):
    engine = make(llama)
    work = evaluation(engine, [1] * 500)
    timer = threading.Timer(0.001, lambda: engine.cancel(work))
    timer.start()
    engine.join(work)
    engine.wait(lambda: work.ended)
    timer.join()
    assert len(work.sequence) in {0, 500}
    assert np.array_equal(run(engine, evaluation(engine, [5]))[0], alone(llama, [5]))


def test_a_stale_abort_hurts_nobody(llama):
    engine = make(llama)
    engine.store("f32").evaluator.abort[0] = 1
    assert np.array_equal(run(engine, evaluation(engine, [5, 6]))[0], alone(llama, [5, 6]))


def test_who_finds_no_pages_ends_alone(llama):
    bytes_per_token = make(llama).store("f32").bytes_per_token
    engine = make(llama, kv_memory=3 * 16 * bytes_per_token)
    large, small = evaluation(engine, [1] * 60), evaluation(engine, [2] * 10)
    run(engine, large, small)
    assert isinstance(large.error, OutOfMemory)
    assert np.array_equal(small.out, alone(llama, [2] * 10))
    small.sequence.release()
    again = evaluation(engine, [1] * 40)
    assert np.array_equal(run(engine, again)[0], alone(llama, [1] * 40))


def test_after_the_end(llama):
    engine = make(llama)
    work = evaluation(engine, [1, 2, 3])
    engine.close()
    assert engine.closed
    with pytest.raises(ClosedError):
        engine.join(work)
    with pytest.raises(ClosedError):
        engine.new_sequence("f32")


def test_an_error_of_a_step_reaches_everyone_in_it_and_nobody_else(llama, monkeypatch):
    engine, prompts = make(llama), texts(3, seed=6)
    evaluator = engine.store("f32").evaluator
    ran = evaluator.run

    def fails():
        monkeypatch.setattr(evaluator, "run", ran)
        raise MemoryError("no memory for 5 bytes of scratch")

    monkeypatch.setattr(evaluator, "run", fails)
    works = [evaluation(engine, ids) for ids in prompts]
    late = evaluation(engine, prompts[0], kv_type="f16")
    run(engine, *works, late)
    assert all(isinstance(work.error, MemoryError) and not len(work.sequence) for work in works)
    assert np.array_equal(late.out, alone(llama, prompts[0], kv_type="f16"))
    again = [
        evaluation(engine, ids, sequence=work.sequence)
        for work, ids in zip(works, prompts, strict=True)
    ]
    for out, ids in zip(run(engine, *again), prompts, strict=True):
        assert np.array_equal(out, alone(llama, ids))


def test_more_sequences_than_a_step_has_outputs(llama):
    engine = make(llama)
    works = [evaluation(engine, [i % 200, i]) for i in range(3 * LEAST_OUTPUTS + 5)]
    for i, out in enumerate(run(engine, *works)):
        assert np.array_equal(out, alone(llama, [i % 200, i]))


# ---- the schedule ----


class Wanting:
    def __init__(self, n):
        self.n_wanted = n


@pytest.mark.parametrize(
    ("wanted", "budget", "given"),
    [
        ([], 8, []),
        ([1, 1, 1], 8, [1, 1, 1]),
        ([100], 8, [8]),
        ([100, 100], 8, [4, 4]),
        ([100, 1, 100], 9, [4, 1, 4]),
        ([2, 100], 8, [2, 6]),
        ([100, 2], 8, [6, 2]),
        ([0, 5, 0, 1], 8, [0, 5, 0, 1]),
        ([1] * 5, 3, [1, 1, 1, 0, 0]),
        ([1, 1, 50], 2, [1, 0, 1]),
        ([1, 1, 1, 50, 60], 3, [1, 1, 0, 1, 0]),
        ([1, 50], 1, [1, 0]),
        ([0, 50, 1], 1, [0, 1, 0]),
    ],
)
def test_rows_are_shared(wanted, budget, given):
    works = [Wanting(n) for n in wanted]
    shares = dict(schedule(works, budget))
    assert [shares.get(work, 0) for work in works] == given


def test_a_share_is_never_more_than_there_is():
    rng = np.random.default_rng(0)
    for _ in range(500):
        works = [Wanting(int(n)) for n in rng.integers(0, 40, rng.integers(0, 9))]
        budget = int(rng.integers(1, 50))
        shares = schedule(works, budget)
        assert sum(n for _, n in shares) == min(budget, sum(w.n_wanted for w in works))
        assert all(0 < n <= work.n_wanted for work, n in shares)


def test_a_prompt_comes_to_its_turn_beside_many_that_run(llama):
    """With no more rows in a step than there are running sequences."""
    engine = make(llama, n_batch=4)
    running = [engine.new_sequence("f32") for _ in range(6)]
    prompt = evaluation(engine, list(range(3, 23)))
    works = [evaluation(engine, [7], sequence=sequence) for sequence in running]
    for work in [*works, prompt]:
        engine.join(work)
    n_tokens = 0
    while not prompt.ended:
        engine.wait(lambda: any(work.ended for work in works) or prompt.ended)
        for i, work in enumerate(works):
            if work.ended:
                n_tokens += 1
                works[i] = evaluation(engine, [7], sequence=work.sequence)
                engine.join(works[i])
        assert n_tokens < 200
    engine.leave(*works)
    assert np.array_equal(prompt.out, alone(llama, list(range(3, 23))))
    lengths = [len(sequence) for sequence in running]
    assert max(lengths) - min(lengths) <= 1  # those take turns


def test_scheduling_stays_flat(llama, monkeypatch):
    """The Python work of a step does not grow with the length of its sequences."""
    engine = make(llama, kv_memory=1 << 28)
    # The operations themselves are not meant: in reference mode they are Python, too.
    monkeypatch.setattr(engine.store("f32").evaluator, "run", lambda: None)

    def work(n):
        """Calls of functions, and the most memory that was taken meanwhile."""
        sequence, n_calls = evaluation(engine, [1] * n), 0
        run(engine, sequence)

        def count(_frame, event, _arg):
            nonlocal n_calls
            n_calls += event in ("call", "c_call")

        for _ in range(2):  # the first one may add to a list or a table that has no room left
            more = evaluation(engine, [2], sequence=sequence.sequence)
            tracemalloc.start()
            run(engine, more)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        sys.setprofile(count)
        run(engine, evaluation(engine, [2], sequence=sequence.sequence))
        sys.setprofile(None)
        return n_calls, most

    (few_calls, little), (calls, much) = work(20), work(2000)
    assert calls <= few_calls + 5
    assert much <= little + 2000  # a copy of the tokens takes 16,000 bytes

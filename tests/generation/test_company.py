"""A request does not have to wait for long because of others, nor a stream because of a prompt."""

from pathlib import Path

import numpy as np
import pytest

import rml
from rml.engine.scheduler import Pace

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "model.gguf"
LONG = [int(i) for i in np.random.default_rng(0).integers(3, 288, 2000)]
OPTIONS = {"temperature": 0, "ignore_eos": True}


def rows_of_each(parts):
    """How many rows of a step each work has."""
    return {id(work): len(ids) for work, ids, *_ in parts}


@pytest.fixture
def model():
    with rml.load(LLAMA, n_ctx=4096, n_batch=64) as model:
        yield model


def test_a_short_request_beside_a_long_prompt(model, watch):
    steps = watch(model, rows_of_each)
    long = model.stream(LONG, max_tokens=1, **OPTIONS)
    short = model.stream([3, 5, 7], max_tokens=8, **OPTIONS)
    engine = model._sessions.engine
    with long.at_work():
        engine.wait(lambda: len(steps) == 5)
        assert not long.ended
        began = len(steps)
        next(short)
        assert len(steps) - began <= 6
        rest = short.result()
        assert len(steps) - began <= 6 + 8
        assert not long.ended
        engine.wait(lambda: long.ended)
    with rml.load(LLAMA, n_ctx=4096, prefix_cache=False) as alone:
        assert rest.token_ids == alone.generate([3, 5, 7], max_tokens=8, **OPTIONS).token_ids
        assert long.result().token_ids == alone.generate(LONG, max_tokens=1, **OPTIONS).token_ids


def test_a_running_stream_is_in_every_step_of_a_prompt(model, watch):
    steps = watch(model, rows_of_each)
    running = model.stream([3, 5, 7], max_tokens=500, **OPTIONS)
    next(running)
    running.read_all()
    steps.clear()
    model.generate(LONG, max_tokens=1, **OPTIONS)
    mine = id(running._generation)
    prompt = [sum(step.values()) - step.get(mine, 0) for step in steps]
    assert sum(prompt) == len(LONG)
    assert all(step.get(mine) == 1 for step in steps)
    assert max(prompt) <= 64 - 1
    running.close()


def test_a_short_request_beside_a_long_prompt_and_many_that_run(model, watch):
    steps = watch(model, rows_of_each)
    running = [model.stream([5 + i], max_tokens=900, **OPTIONS) for i in range(12)]
    for stream in running:
        next(stream)
        stream.read_all()
    long = model.stream(LONG, max_tokens=1, **OPTIONS)
    engine = model._sessions.engine
    with long.at_work():
        engine.wait(lambda: long._generation.sequence.length > 100)
        for i in range(4):
            began = len(steps)
            model.generate([3, 5, 7 + i], max_tokens=1, **OPTIONS)
            assert len(steps) - began <= 6
            # Nobody pays for that: all are in each of these steps.
            for step in steps[began:]:
                assert {id(work._generation) for work in [*running, long]} <= step.keys()
        assert not long.ended
    for stream in [long, *running]:
        stream.close()


def test_short_requests_do_not_keep_a_long_prompt_from_its_turn(model, watch):
    steps = watch(model, rows_of_each)
    long = model.stream(LONG, max_tokens=1, **OPTIONS)
    engine = model._sessions.engine
    with long.at_work():
        engine.wait(lambda: len(steps) == 2)
        n_asked = 0
        while not long.ended:
            model.generate([3, 5, 7 + n_asked % 200], max_tokens=4, **OPTIONS)
            n_asked += 1
    rows = [step.get(id(long._generation), 0) for step in steps]
    rows = rows[: rows.index(0)] if 0 in rows else rows
    assert sum(rows) == len(LONG)
    assert all(n >= 16 for n in rows[:-1])
    assert n_asked > 4


@pytest.mark.parametrize(
    ("a_row", "most"),
    [(0.001, 30), (0.004, 16), (10.0, 16), (0.0005, 60), (0.0001, 63), (0.0, 16)],
)
def test_the_rows_beside_a_running_stream_follow_the_pace(model, monkeypatch, watch, a_row, most):
    """With made-up times: 10 ms for a step of single tokens."""
    note = Pace.note

    def made_up(pace, n, n_sequences, _seconds):
        note(pace, n, n_sequences, 0.01 if n == n_sequences else n * a_row)

    monkeypatch.setattr(Pace, "note", made_up)
    running = model.stream([3, 5, 7], max_tokens=500, **OPTIONS)
    for _ in range(3):
        next(running)
    running.read_all()
    steps = watch(model, rows_of_each)
    model.generate(LONG, max_tokens=1, **OPTIONS)
    mine = id(running._generation)
    rows = [sum(step.values()) - step[mine] for step in steps]
    assert sum(rows) == len(LONG)
    # The prompt of the running stream has said nothing of many rows, the first step of this does.
    assert rows[0] == 16
    assert set(rows[1:-1]) == {most}
    running.close()


def test_many_prompts_share_the_rows_of_a_step(model, watch):
    steps = watch(model, rows_of_each)
    prompts = [[5 + i, *LONG[i : i + 200]] for i in range(4)]
    model.generate(prompts, max_tokens=1, **OPTIONS)
    assert set(steps[0].values()) == {16}


class Wanting:
    def __init__(self, n_wanted, n_there=1):
        self.n_wanted, self.sequence = n_wanted, [0] * n_there


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ([], 16),  # nothing is known
        ([(1, 1, 0.01)], 16),  # of prompts, nothing
        ([(64, 1, 0.064)], 16),  # of running sequences, nothing
        ([(1, 1, 0.01), (64, 1, 0.064)], 30),  # 3 steps of 10 ms, at 1 ms a row
        ([(1, 1, 0.01), (64, 1, 0.0064)], 300),
        ([(1, 1, 0.01), (64, 1, 6.4)], 16),  # never less, however slow
        ([(1, 1, 1.0), (64, 1, 0.0064)], 512 - 2),  # never more than a step has
        ([(1, 1, 0.0), (64, 1, 0.0)], 16),
        ([(1, 1, 0.01), (8, 1, 0.8), (64, 1, 0.064)], 30),  # few rows say little of many
    ],
)
def test_the_rows_of_a_prompt_beside_running_sequences(times, rows):
    pace = Pace()
    for n, n_sequences, seconds in times:
        pace.note(n, n_sequences, seconds)
    assert pace.budget([Wanting(1), Wanting(900), Wanting(1)], 512) == min(512, rows + 2)
    # Nobody has to wait: all rows.
    assert pace.budget([Wanting(900)], 512) == 512
    assert pace.budget([Wanting(900), Wanting(800)], 512) == 512
    assert pace.budget([Wanting(1), Wanting(1)], 512) == 512
    assert pace.budget([Wanting(900), Wanting(1, 0)], 512) == 512  # a prompt of one token


def test_the_pace_follows_what_it_sees():
    pace = Pace()
    pace.note(1, 1, 0.01)
    for _ in range(40):
        pace.note(64, 1, 0.064)
    slow = pace.budget([Wanting(1), Wanting(900)], 512)
    for _ in range(40):
        pace.note(64, 1, 0.0128)
    assert pace.budget([Wanting(1), Wanting(900)], 512) > 4 * slow


def test_the_pace_forgets_an_odd_step():
    pace, works = Pace(), [Wanting(1), Wanting(900)]
    for _ in range(10):
        pace.note(1, 1, 0.01)
        pace.note(64, 1, 0.064)
    usual = pace.budget(works, 512)
    pace.note(64, 1, 0.64)
    assert 17 <= pace.budget(works, 512) <= usual
    for _ in range(20):
        pace.note(64, 1, 0.064)
    assert abs(pace.budget(works, 512) - usual) <= 1
    pace.note(1, 1, 1.0)
    for _ in range(30):
        pace.note(1, 1, 0.01)
    assert abs(pace.budget(works, 512) - usual) <= 1


@pytest.mark.parametrize("most", [1, 8, 17, 64, 512])
def test_the_rows_are_never_fewer_than_sixteen_nor_more_than_a_step_has(most):
    rng, pace = np.random.default_rng(0), Pace()
    for _ in range(300):
        works = [Wanting(1) for _ in range(rng.integers(1, 9))] + [Wanting(900)]
        n_single = len(works) - 1
        assert min(most, n_single + 16) <= pace.budget(works, most) <= most
        n, seconds = int(rng.integers(1, 513)), float(rng.choice([0, 1e-9, 1e-3, 1, 1e6]))
        pace.note(n, int(rng.choice([1, n])), seconds)


def is_ours(frame):
    """Whether a function is of the package, but for kernels."""
    file = frame.f_code.co_filename
    return file.startswith(str(Path(rml.__file__).parent)) and "_kernels" not in file


def test_the_work_of_a_step_of_many_stays_flat(model, calls_of):
    """Eight sequences that share a beginning go on."""
    model.generate(LONG[:40], max_tokens=1, **OPTIONS)
    prompts = [LONG[: 40 - i % 2] for i in range(8)]
    streams = [model.stream(ids, max_tokens=-1, **OPTIONS) for ids in prompts]

    def round_of_all():
        for stream in streams:
            next(stream)

    counts = [calls_of(round_of_all, is_ours) for _ in range(700)]
    for stream in streams:
        stream.close()
    assert sum(counts[-320:]) <= 1.05 * sum(counts[40:360])


def test_a_beginning_is_found_page_by_page(model, calls_of):
    """Ten times the pages are ten times the work at most, whatever else there is to be found."""
    store = model._sessions.engine.store(model.kv_type)

    def find(n):
        sequence = store.new()
        assert sequence.adopt(LONG[:n]) == n
        sequence.release()

    def calls(n):
        return calls_of(lambda: find(n), is_ours)

    model.generate(LONG, max_tokens=1, **OPTIONS)
    few, many = calls(192), calls(1920)
    assert many <= 10 * few
    for i in range(40):
        model.generate([5 + i, *LONG[:20]], max_tokens=1, **OPTIONS)
        model.generate([*LONG[: 16 * i], 3, *LONG[:20]], max_tokens=1, **OPTIONS)
    assert calls(192) <= 1.2 * few
    assert calls(1920) <= 1.05 * many


def test_the_work_of_a_step_stays_flat(model, calls_of):
    """Calls of a late step are as many as of an early one, with beginnings that are shared."""
    model.generate(LONG, max_tokens=1, **OPTIONS)
    stream = model.stream(LONG[:40], max_tokens=3900, **OPTIONS)
    counts = [calls_of(lambda: next(stream), is_ours) for _ in range(1000)]
    stream.close()
    assert np.median(counts[-320:]) <= 1.02 * np.median(counts[40:360])
    assert sum(counts[-320:]) <= 1.05 * sum(counts[40:360])

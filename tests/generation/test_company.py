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


def test_the_work_of_a_step_stays_flat(model, calls_of_pieces):
    """Calls of a late step are as many as of an early one, with beginnings that are shared."""
    model.generate(LONG, max_tokens=1, **OPTIONS)
    stream = model.stream(LONG[:40], max_tokens=3900, **OPTIONS)
    package = str(Path(rml.__file__).parent)

    def is_ours(frame):
        file = frame.f_code.co_filename
        return file.startswith(package) and "_kernels" not in file

    counts = calls_of_pieces(stream, 1000, is_ours)
    assert np.median(counts[-320:]) <= 1.02 * np.median(counts[40:360])
    assert sum(counts[-320:]) <= 1.05 * sum(counts[40:360])

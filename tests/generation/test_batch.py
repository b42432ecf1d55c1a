"""Several generations of one call: computed together, each as it is alone."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError, ContextOverflow, OutOfMemory
from rml.generation.scoring import _Scoring

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
BYTES_PER_TOKEN = 256  # of keys and values in float32
PROMPTS = [[3, 5, 7], [11], list(range(20, 60)), [11], [4] * 17]
DRAWN = {"max_tokens": 12, "temperature": 1.5, "seed": 9, "logprobs": 2, "ignore_eos": True}


@pytest.fixture
def model():
    with rml.load(LLAMA, kv_type="f32") as model:
        yield model


def n_pages_used(model):
    store = model._sessions.engine.store(model.kv_type)
    store.collect()
    return store.pools[0].n_used


def what(completion):
    return (
        completion.token_ids,
        completion.text,
        completion.logprobs,
        completion.finish_reason,
        completion.stop_reason,
    )


@pytest.mark.parametrize("options", [{"temperature": 0, "max_tokens": 12}, DRAWN])
def test_each_prompt_gets_what_it_gets_alone(model, watch, options):
    alone = [model.generate(ids, **options) for ids in PROMPTS]
    counts = watch(model, len)

    together = model.generate(PROMPTS, **options)

    assert list(map(what, together)) == list(map(what, alone))
    assert max(counts) == len(PROMPTS)
    if "ignore_eos" in options:
        assert counts == [len(PROMPTS)] * 12
    assert [c.prompt_token_ids for c in together] == PROMPTS
    assert n_pages_used(model) == 0


@pytest.mark.parametrize("n_batch", [1, 7, 512])
def test_parts_of_prompts_and_echo_change_nothing(n_batch):
    options = DRAWN | {"echo": True}
    with rml.load(LLAMA, kv_type="f32") as model:
        alone = [model.generate(ids, **options) for ids in PROMPTS]
    with rml.load(LLAMA, kv_type="f32", n_batch=n_batch) as model:
        together = model.generate(PROMPTS, **options)
    assert list(map(what, together)) == list(map(what, alone))
    for one, other in zip(together, alone, strict=True):
        assert one.prompt_logprobs == other.prompt_logprobs


def test_prompts_that_do_not_fit_together_take_turns(watch):
    with rml.load(LLAMA, kv_type="f32", kv_memory=64 * BYTES_PER_TOKEN) as model:
        prompts = [[i] * 20 for i in range(3, 8)]  # 32 positions each, so two at a time
        alone = [model.generate(ids, **DRAWN) for ids in prompts]
        counts = watch(model, len)
        assert list(map(what, model.generate(prompts, **DRAWN))) == list(map(what, alone))
        assert set(counts) == {1, 2}
        # Memory that an idle session holds is there for them, and the session goes on all the same.
        with model.session() as session:
            session.forward([1] * 40)
            assert list(map(what, model.generate(prompts, **DRAWN))) == list(map(what, alone))
            assert session.tokens == [1] * 40
            after = session.forward([2])
        with model.session() as session:
            assert np.array_equal(session.forward([*[1] * 40, 2]), after)
        assert n_pages_used(model) == 0


def test_a_hundred_prompts(model, watch):
    prompts = [[3 + i % 200, 5] for i in range(100)]
    options = DRAWN | {"max_tokens": 3}
    alone = [model.generate(ids, **options) for ids in prompts]
    counts = watch(model, len)
    assert list(map(what, model.generate(prompts, **options))) == list(map(what, alone))
    assert max(counts) == 32
    assert sum(counts) == 3 * len(prompts)


def test_a_place_that_is_free_is_taken_before_the_others_end(model, monkeypatch, watch):
    monkeypatch.setattr("rml.generation.batch._MOST_STREAMS", 2)
    ends = model.generate([7], temperature=0, max_tokens=4, ignore_eos=True).token_ids[1]
    prompts = [[3, 5], [7], [11], [13]]
    options = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "stop_token_ids": [ends]}
    alone = [model.generate(ids, **options) for ids in prompts]
    assert alone[1].finish_reason == "stop"
    counts = watch(model, len)
    assert list(map(what, model.generate(prompts, **options))) == list(map(what, alone))
    assert len(counts) < sum(len(c.token_ids) for c in alone)
    assert counts[:-8] == [2] * len(counts[:-8])


def test_continuations_of_one_prompt_begin_as_forks(model, watch):
    prompt = list(range(20, 60))
    cold = DRAWN | {"prefix_cache": False}
    alone = [model.generate(prompt, **cold | {"seed": 9 + i}) for i in range(4)]
    counts = watch(model, len)

    several = model.generate(prompt, n=4, **DRAWN)

    assert [c.token_ids for c in several] == [c.token_ids for c in alone]
    assert [c.logprobs for c in several] == [c.logprobs for c in alone]
    assert counts == [1] + [4] * 11
    assert [c.usage.cached_tokens for c in several] == [0, 40, 40, 40]
    assert n_pages_used(model) == 0


def test_the_session_keeps_the_first_continuation(model):
    with model.session() as session:
        several = model.generate([3, 5, 7], n=3, session=session, **DRAWN)
        assert session.tokens == [3, 5, 7, *several[0].token_ids][: session.position]
        assert session.position >= 3 + 11
        again = model.generate([3, 5, 7], n=3, session=session, **DRAWN)
        assert list(map(what, again)) == list(map(what, several))


def test_prompts_in_one_session_follow_each_other(model):
    with model.session() as session:
        together = model.generate(PROMPTS, session=session, **DRAWN)
        assert session.tokens[: len(PROMPTS[-1])] == PROMPTS[-1]
    assert list(map(what, together)) == [what(model.generate(ids, **DRAWN)) for ids in PROMPTS]


def test_the_callers_code_runs_in_the_callers_thread(model):
    threads = set()

    def note(*_args):
        threads.add(threading.get_ident())

    def processor(_ids, logits):
        note()
        return logits

    def mask(_ids):
        note()
        return np.ones(model.tokenizer.n_vocab, bool)

    user = {"mask": mask, "progress": note, "logits_processor": [processor]}
    model.generate(PROMPTS, **DRAWN, **user)
    assert threads == {threading.get_ident()}


class Unwell(Exception):
    pass


@pytest.mark.parametrize("error", [Unwell, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("when", [1, 7, 23])
@pytest.mark.parametrize(
    "call", [lambda m, o: m.generate(PROMPTS, **o), lambda m, o: m.generate(PROMPTS[2], n=5, **o)]
)
def test_what_ends_one_ends_all_and_leaves_nothing(model, error, when, call):
    calls = 0

    def processor(_ids, logits):
        nonlocal calls
        calls += 1
        if calls == when:
            raise error
        return logits

    before = what(model.generate([3, 5], **DRAWN))
    with pytest.raises((error, OutOfMemory)):
        call(model, DRAWN | {"logits_processor": [processor]})
    assert n_pages_used(model) == 0
    assert not model._sessions.engine._works
    assert what(model.generate([3, 5], **DRAWN)) == before


def test_an_interrupt_in_a_step_ends_all(model, monkeypatch):
    engine = model._sessions.engine
    run, left = engine._run, [3]

    def interrupted(rows):
        run(rows)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPTS, **DRAWN)
    assert n_pages_used(model) == 0
    assert not engine._works
    assert len(model.generate(PROMPTS, **DRAWN)) == len(PROMPTS)


def test_a_bad_prompt_ends_all(model):
    for bad in ([], [100_000]):
        with pytest.raises(ArgumentError):
            model.generate([[3, 5], bad, [7]], **DRAWN)
        assert n_pages_used(model) == 0


def test_callers_in_several_threads(model):
    alone = [what(model.generate(ids, **DRAWN)) for ids in PROMPTS]
    results = {}

    def call(i):
        results[i] = list(map(what, model.generate(PROMPTS, **DRAWN)))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), alone)
    assert n_pages_used(model) == 0


def test_texts_of_a_table(model):
    texts = np.array(["Hello", "you"])
    together = model.generate(texts, max_tokens=4, temperature=0)
    assert [c.text for c in together] == [
        model.generate(str(text), max_tokens=4, temperature=0).text for text in texts
    ]


def test_tasks_share_steps_and_leave_the_default_executor_alone(model, watch):
    options = {"max_tokens": 40, "temperature": 1, "ignore_eos": True}
    alone = [model.generate("Hello", seed=i, **options).text for i in range(12)]
    counts = watch(model, len)

    async def collect(i):
        return "".join([p.text async for p in model.stream("Hello", seed=i, **options)])

    async def main():
        loop, free = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait)
        try:
            return await asyncio.gather(*map(collect, range(12)))
        finally:
            free.set()
            await busy

    assert asyncio.run(main()) == alone
    assert max(counts) > 1
    assert n_pages_used(model) == 0


def test_texts_are_scored_together(model, watch):
    alone = [model.score(ids, top_logprobs=2) for ids in PROMPTS]
    assert alone[1].logprobs == [None]
    counts = watch(model, len)
    together = model.score(PROMPTS, top_logprobs=2)
    assert together == alone
    assert counts == [len(PROMPTS)]
    assert model.score(["Hello", "you"]) == [model.score("Hello"), model.score("you")]
    assert n_pages_used(model) == 0


@pytest.mark.parametrize("n_batch", [1, 16])
def test_parts_of_texts_and_what_comes_twice_change_no_score(model, monkeypatch, n_batch):
    alone = model.score(PROMPTS, top_logprobs=2)
    deliver = _Scoring.deliver

    def twice(self, *args):
        deliver(self, *args)
        deliver(self, *args)

    monkeypatch.setattr(_Scoring, "deliver", twice)
    monkeypatch.setattr("rml.sampling.logprobs._VALUES", 600)  # two rows of logits at a time
    with rml.load(LLAMA, kv_type="f32", n_batch=n_batch) as other:
        assert other.score(PROMPTS, top_logprobs=2) == alone


def test_a_bad_text_among_those_to_score(model):
    for bad in ([], [100_000], [5] * (model.n_ctx + 1)):
        with pytest.raises((ArgumentError, ContextOverflow)):
            model.score([[3, 5], bad, [7]])
        assert n_pages_used(model) == 0

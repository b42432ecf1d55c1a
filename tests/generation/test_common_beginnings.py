"""What others have evaluated of a beginning is not evaluated again, and changes no bit."""

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest

import rml
from rml.engine.engine import Engine
from rml.engine.work import Evaluation
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
DOCUMENT = [int(i) for i in np.random.default_rng(0).integers(3, 288, 75)]
QUESTIONS = [[*DOCUMENT, 5 + i, 9] for i in range(8)]
OPTIONS = {"max_tokens": 6, "seed": 3, "logprobs": 2, "ignore_eos": True, "temperature": 1.2}
COLD = OPTIONS | {"prefix_cache": False}


@pytest.fixture(params=["f16", "int8"])
def model(request):
    with rml.load(LLAMA, kv_type=request.param) as model:
        yield model


def n_rows(parts):
    """Rows of a step."""
    return sum(len(ids) for _, ids, *_ in parts)


def what(completion):
    return completion.token_ids, completion.logprobs, completion.text


def test_questions_about_one_text(model, watch):
    cold = [what(model.generate(ids, **COLD)) for ids in QUESTIONS]
    rows = watch(model, n_rows)
    replies = [model.generate(ids, **OPTIONS) for ids in QUESTIONS]
    assert list(map(what, replies)) == cold
    assert [r.usage.cached_tokens for r in replies] == [0] + [64] * 7
    assert [r.timings.prompt_n for r in replies] == [77] + [13] * 7
    assert sum(rows) == 77 + 7 * 13 + 8 * 5


def test_questions_asked_at_once_wait_for_what_is_being_computed(model, watch):
    cold = [what(model.generate(ids, **COLD)) for ids in QUESTIONS]
    rows = watch(model, n_rows)
    replies = model.generate(QUESTIONS, **OPTIONS)
    assert list(map(what, replies)) == cold
    assert [r.usage.cached_tokens for r in replies] == [0] + [64] * 7
    assert rows[0] == 77
    assert sum(rows) == 77 + 7 * 13 + 8 * 5


def test_questions_from_several_threads(model):
    cold = [what(model.generate(ids, **COLD)) for ids in QUESTIONS]
    replies = {}

    def ask(i):
        replies[i] = model.generate(QUESTIONS[i], **OPTIONS)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [what(replies[i]) for i in range(8)] == cold
    assert sum(r.usage.cached_tokens for r in replies.values()) == 7 * 64


def test_the_next_turn_of_a_chat(model):
    messages = [{"role": "user", "content": "Hello, how are you today?"}]
    options = {"max_tokens": 20, "seed": 1}
    first = model.chat(messages, **options)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Go on"}]
    second = model.chat(messages, **options)
    cold = model.chat(messages, **options, prefix_cache=False)
    assert second.token_ids == cold.token_ids
    assert second.usage.cached_tokens >= len(first.prompt_token_ids) // 16 * 16 >= 16
    assert second.to_openai()["usage"]["prompt_tokens_details"] == {
        "cached_tokens": second.usage.cached_tokens
    }
    assert cold.usage.cached_tokens == 0


def test_a_session_leaves_its_beginning_to_requests_and_uses_what_they_leave(model):
    cold = what(model.generate(QUESTIONS[0], **COLD))
    with model.session() as session:
        session.forward(DOCUMENT)
    reply = model.generate(QUESTIONS[0], **OPTIONS)
    assert (what(reply), reply.usage.cached_tokens) == (cold, 64)
    with model.session() as session:
        session.forward(DOCUMENT[:20])  # a page and a piece of one
        reply = model.generate(QUESTIONS[0], session=session, **OPTIONS)
        assert (what(reply), reply.usage.cached_tokens) == (cold, 64)
        # A session that is told to evaluate does: what it computes is looked at, or measured.
        session.truncate(0)
        np.testing.assert_array_equal(session.forward(DOCUMENT), session_alone(model, DOCUMENT))


def session_alone(model, ids):
    with rml.load(LLAMA, kv_type=model.kv_type) as cold, cold.session() as session:
        return session.forward(ids)


def test_it_is_turned_off_for_a_model_and_for_a_request(model, monkeypatch):
    with rml.load(LLAMA, prefix_cache=False) as cold:
        for _ in range(2):
            assert cold.generate(DOCUMENT, **OPTIONS).usage.cached_tokens == 0
        assert cold._sessions.engine.store("f16").pools[0].n_kept == 0
    model.generate(DOCUMENT, **COLD)  # leaves nothing
    assert model.generate(DOCUMENT, **OPTIONS).usage.cached_tokens == 0
    assert model.generate(DOCUMENT, **COLD).usage.cached_tokens == 0  # takes nothing
    assert model.generate(DOCUMENT, **OPTIONS).usage.cached_tokens == 64
    with pytest.raises(rml.ArgumentError, match="prefix_cache"):
        model.generate(DOCUMENT, prefix_cache="no")
    with pytest.raises(rml.ArgumentError, match="prefix_cache"):
        rml.load(LLAMA, prefix_cache=2)


@pytest.mark.parametrize("n_batch", [1, 16, 20, 40])
def test_parts_of_prompts(n_batch):
    with rml.load(LLAMA, n_batch=n_batch) as model:
        cold = [what(model.generate(ids, **COLD)) for ids in QUESTIONS]
        seen = []
        options = OPTIONS | {"progress": lambda *done: seen.append(done)}
        assert list(map(what, model.generate(QUESTIONS, **options))) == cold
        assert max(seen) == (77, 77)
        replies = model.generate(QUESTIONS, **OPTIONS)
        assert list(map(what, replies)) == cold
        assert {r.usage.cached_tokens for r in replies} == {64}


def test_logprobs_of_a_prompt_need_all_of_it(model):
    options = OPTIONS | {"echo": True}
    cold = model.generate(DOCUMENT, **options | {"prefix_cache": False})
    model.generate(DOCUMENT, **OPTIONS)
    reply = model.generate(DOCUMENT, **options)
    assert (what(reply), reply.prompt_logprobs) == (what(cold), cold.prompt_logprobs)
    assert reply.usage.cached_tokens == 0


def test_no_more_is_kept_than_the_budget_allows():
    page = 16 * 128  # bytes of the toy's keys and values, f16
    with rml.load(LLAMA, kv_memory=8 * page) as model:
        texts = [[3 + i, *DOCUMENT[:63]] for i in range(6)]  # four pages and an answer
        cold = [what(model.generate(ids, **COLD)) for ids in texts]
        for _ in range(2):
            assert [what(model.generate(ids, **OPTIONS)) for ids in texts] == cold
            assert list(map(what, model.generate(texts, **OPTIONS))) == cold
        pool = model._sessions.engine.store("f16").pools[0]
        assert pool.n_used == 0
        assert 0 < pool.n_idle <= 8
        assert model.generate(texts[-1], **OPTIONS).usage.cached_tokens == 48


# ---- what would be wrong is found ----


def test_the_beginning_of_another_arithmetic_would_be_found():
    """A salt stands for what keys depend on besides the tokens: without it bits would differ."""
    with open_checkpoint(LLAMA) as checkpoint:
        decoder = DecoderLM(checkpoint, n_threads=1)
        turned = dataclasses.replace(decoder.config, rope_theta=3e4)
        other = DecoderLM(checkpoint, config=turned, n_threads=1)
        engine = Engine(decoder, kv_memory=1 << 22)
        store = engine.store("f32")

        def evaluated(ids):
            sequence = store.new()
            sequence.adopt(ids[:-1])
            out = np.empty(decoder.config.n_vocab, np.float32)
            engine.run(Evaluation(sequence, ids[len(sequence) :], "last", out))
            return out

        right = evaluated(DOCUMENT)
        np.testing.assert_array_equal(evaluated(DOCUMENT), right)
        mine = store.evaluator
        store.evaluator, store.salt = other.evaluator([pool.pages for pool in store.pools]), "other"
        alone = evaluated(DOCUMENT)
        assert not np.array_equal(alone, right)
        store.evaluator, store.salt = mine, "mine"
        np.testing.assert_array_equal(evaluated(DOCUMENT), right)
        store.salt = "other"  # a beginning under the wrong salt
        assert not np.array_equal(evaluated(DOCUMENT), right)

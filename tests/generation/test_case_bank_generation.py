"""Public bug reports on sampling, streaming, contexts and caches, from the case bank.

B41, stop strings, is in test_stop.
"""

import codecs
import json
import math
import re

import numpy as np
import pytest

import rml
from rml import ArgumentError, ContextOverflow, Sampler, SamplingSettings
from rml.generation.prompts import Prompt
from rml.generation.request import Request
from rml.generation.stream import Stream
from rml.tokenizers import load_tokenizer

TINY = [
    "gemma3-linear",
    "llama-rope-llama3",
    "llama-untied",
    "mistral-nemo-headdim",
    "qwen2-bias-tied",
    "qwen3moe",
    "smollm3-nope",
]


@pytest.fixture
def report(cases_dir):
    """`report("B29")`: the report."""
    return lambda name: json.loads((cases_dir / "bugs" / f"{name}.json").read_text("utf-8"))


def lists_in(text):
    """Lists of numbers in a sentence."""
    return [json.loads(found) for found in re.findall(r"\[[-0-9., ]+\]", text)]


def test_b29_temperature_0_and_near_0(report):
    (logits,) = lists_in(report("B29")["input"])
    for temperature in (0, 1e-5, 1e-30):
        for seed in range(20):
            sampler = Sampler(SamplingSettings(temperature=temperature), seed)
            assert sampler.sample(np.array(logits, np.float32)) == 2
    for bad in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature"):
            SamplingSettings(temperature=bad)


def test_b32_top_k(report):
    (probabilities,) = lists_in(report("B32")["input"])
    logits = np.log(np.array(probabilities, np.float32))
    for top_k, kept in ((0, 4), (-1, 4), (1, 1), (4, 4), (100, 4)):
        settings = SamplingSettings(temperature=1, top_k=top_k, samplers=["top_k"])
        left = Sampler(settings).candidates(logits)
        assert sorted(left.ids.tolist()) == list(range(4))[4 - kept :]
        if kept == 4:
            found = left.probabilities()[left.ids.argsort()]
            np.testing.assert_allclose(found, probabilities, rtol=1e-6)


def penalized(logits, history, **settings):
    """Logits after the penalties."""
    sampler = Sampler(SamplingSettings(samplers=["penalties"], **settings))
    sampler.accept(history)
    left = sampler.candidates(np.array(logits, np.float32))
    return left.logits[left.ids.argsort()]


def test_b34_repetition_penalty_on_negative_logits(report):
    data = report("B34")
    logits, (expected,) = lists_in(data["input"])[0], lists_in(data["expected"])
    for history in ([0, 1], [0, 1, 0]):
        found = penalized(logits, history, repeat_penalty=1.5)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_b36_penalties_count_occurrences(report):
    (history,) = lists_in(report("B36")["input"])
    found = penalized([1.0] * 4, history, frequency_penalty=0.5, presence_penalty=0.25)

    assert found.tolist() == [-0.75, 0.25, 0.25, 1.0]


@pytest.mark.parametrize("name", ["llama-spm", "qwen2"])
def test_b38_and_b40_streams_of_whole_characters(report, cases_dir, make_pool, name):
    """As generations: a scripted decoder says the ids."""
    tokenizer = load_tokenizer(cases_dir / "tokenizers" / f"ggml-vocab-{name}.gguf")
    for case in report("B38")["data"][name]:
        ids, n = case["ids"], len(case["ids"])
        pool, _ = make_pool(
            lambda tokens, ids=ids, n=n: ids[min(len(tokens) - 1, n - 1)],
            n_vocab=tokenizer.n_vocab,
        )
        request = Request.of({"temperature": 0, "max_tokens": n}, SamplingSettings())
        # Behind a token that is no text, as after a beginning-of-text token.
        begin = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
        stream = Stream(Prompt([begin]), request, tokenizer, sessions=pool, stop_ids=())

        pieces = list(stream)

        assert "".join(piece.text for piece in pieces) == case["text"]
        assert not any("\ufffd" in piece.text for piece in pieces)
        assert all(piece.text for piece in pieces)
        # A piece comes with the token that completes its characters, and waits for no other one.
        whole = codecs.getincrementaldecoder("utf-8")()
        for piece in pieces:
            data = b"".join(map(tokenizer.token_bytes, piece.token_ids))
            assert piece.text.strip() == whole.decode(data).strip()


@pytest.fixture(params=TINY)
def tiny(request, cases_dir):
    return cases_dir / "tiny" / request.param


def test_b43_prompt_and_max_tokens_versus_context(tiny):
    with rml.load(tiny / "model.gguf", n_ctx=32, n_threads=1) as model:
        for n_prompt, n_generated in ((1, 31), (31, 1), (32, 0)):
            for max_tokens in (64, None):
                reply = model.generate(
                    [7] * n_prompt, max_tokens=max_tokens, ignore_eos=True, seed=1
                )
                assert (len(reply.token_ids), reply.finish_reason) == (n_generated, "length")
        for n_prompt in (33, 100):
            with pytest.raises(ContextOverflow, match=f"{n_prompt} .* 32"):
                model.generate([7] * n_prompt, max_tokens=64)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
def test_b45_warm_caches_give_the_bits_of_cold_ones(tiny, kv_type):
    expected = json.loads((tiny / "expected.json").read_text("utf-8"))
    first = expected["tokens"]
    prompts = [first, first, [*first, 5], [*first[:-3], 9, 9], first]
    with rml.load(tiny / "model.gguf", compute="f32", kv_type=kv_type, n_threads=1) as model:
        with model.session() as kept:
            for ids in prompts:
                cached = kept.keep_prefix(ids)
                assert cached < len(ids)
                warm = kept.forward(ids[cached:])
                with model.session() as fresh:
                    np.testing.assert_array_equal(warm, fresh.forward(ids))
        if kv_type == "f32":
            error = np.abs(warm - np.array(expected["logits_last"])).max()
            assert error <= expected["tolerance"]
        # The same request cold, warm, and after an unrelated one.
        options = {"max_tokens": 8, "seed": 3, "logprobs": True, "ignore_eos": True}
        cold = model.generate(first, **options)
        model.generate([9, 9, 9, 9], **options)
        again = model.generate(first, **options)
        with model.session() as session:
            model.generate(first, session=session, **options)
            warm = model.generate(first, session=session, **options)
        assert warm.usage.cached_tokens == len(first) - 1
        assert cold.token_ids == again.token_ids == warm.token_ids
        assert cold.logprobs == again.logprobs == warm.logprobs


def test_b20_ids_without_text(tiny):
    """More rows than tokens, or ids outside: an error or nothing, never a shift."""
    with rml.load(tiny / "model.gguf", n_threads=1) as model:
        with pytest.raises(ArgumentError):
            model.generate([model.config.n_vocab], max_tokens=1)
        reply = model.generate([5], max_tokens=3, ignore_eos=True, seed=1)
        assert all(token < model.tokenizer.n_vocab for token in reply.token_ids)

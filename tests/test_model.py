"""The face of rml on a toy Llama: loading, generating, chatting, threads, and the end."""

import gc
import json
import linecache
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import (
    ArgumentError,
    CheckpointError,
    ClosedError,
    ContextOverflow,
    DownloadError,
    TemplateError,
)

ROOT = Path(__file__).resolve().parent.parent
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


def argmax_loop(model, ids, n):
    """The `n` likeliest tokens, with nothing but `forward`."""
    chosen = []
    with model.session() as session:
        logits = session.forward(ids)
        for _ in range(n):
            chosen.append(int(logits.argmax()))
            logits = session.forward(chosen[-1:])
    return chosen


# ---- loading ----


def test_what_a_model_knows_about_itself(model):
    assert model.path == LLAMA
    assert model.metadata["general.architecture"] == "llama"
    assert model.config.n_layers == 2
    assert model.n_ctx == 128
    assert (model.compute, model.n_threads, model.kv_type) == ("int8x2", 1, "f16")
    assert model.stop_ids == model.tokenizer.stop_ids == {0, 2}
    assert model.sampling == rml.SamplingSettings()
    assert repr(model) == f"<Model '{LLAMA}', llama, n_ctx 128, int8x2>"


def test_other_names_for_arguments_of_load():
    with rml.load(str(LLAMA), context_length=64, threads=1) as model:
        assert (model.n_ctx, model.n_threads) == (64, 1)
    with pytest.raises(ArgumentError, match="n_ctx was given twice"):
        rml.load(LLAMA, n_ctx=64, num_ctx=64)
    with pytest.raises(ArgumentError, match="unknown argument 'n_thread'; did you mean"):
        rml.load(LLAMA, n_thread=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"n_ctx": 0},
        {"n_ctx": -1},
        {"n_ctx": 2.5},
        {"n_ctx": True},
        {"n_batch": 0},
        {"n_threads": 0},
        {"compute": "fast"},
        {"kv_type": "q8"},
    ],
)
def test_arguments_out_of_range(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        rml.load(LLAMA, **bad)


@pytest.mark.parametrize("bad", [None, 5, b"model.gguf", ["a"]])
def test_what_is_no_path(bad):
    with pytest.raises(ArgumentError, match="a path or the name of a model"):
        rml.load(bad)


def test_names_of_models_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("RML_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DownloadError, match="get it with: rml pull smollm2"):
        rml.load("smollm2")
    with pytest.raises(DownloadError, match="rml pull org/repo:Q4_K_M"):
        rml.load("org/repo:Q4_K_M")
    with pytest.raises(CheckpointError, match="no such file"):
        rml.load("model.gguf")
    with pytest.raises(CheckpointError, match="no such file"):
        rml.load(tmp_path / "org" / "repo")


def test_a_broken_file_leaves_nothing_open(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(LLAMA.read_bytes()[:-100])

    with pytest.raises(CheckpointError, match="bytes"):
        rml.load(file)
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_a_context_beyond_training_is_allowed_and_logged(caplog):
    with caplog.at_level(logging.WARNING, "rml"), rml.load(LLAMA, n_ctx=200) as model:
        assert model.n_ctx == 200
    assert "longer than the 128" in caplog.text


@pytest.fixture
def folder(tmp_path):
    """The toy Llama as a Hugging Face folder of its own."""
    return Path(shutil.copytree(LLAMA.with_name("hf"), tmp_path / "llama"))


def test_a_hugging_face_folder_is_the_same_model(folder):
    """Its weights are bfloat16, the GGUF file's float32; the toy's values are exact in both."""
    config = {"eos_token_id": [2, 33], "temperature": 0.25, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(config))

    with rml.load(folder, n_threads=1) as hf, rml.load(LLAMA, n_threads=1) as gguf:
        assert hf.metadata == {}
        assert {2, 33} <= hf.stop_ids
        assert (hf.sampling.temperature, hf.sampling.top_k) == (0.25, 50)
        assert "generation_config.json" in str(hf.sampling)
        options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        ids = [9, 8, 7]
        assert hf.generate(ids, **options).token_ids == gguf.generate(ids, **options).token_ids
        assert hf.apply_chat_template(HELLO) == gguf.apply_chat_template(HELLO)
        assert hf.generate(ids, max_tokens=1).sampling.origin["temperature"] == (
            "generation_config.json"
        )
    with rml.load(folder / "model.safetensors", n_threads=1) as file:
        assert file.apply_chat_template(HELLO)


def test_more_embedding_rows_than_tokens(folder):
    """Rows without a token are never sampled, decode to nothing and shift no others."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    dropped = sorted(vocabulary, key=vocabulary.get)[-5:]
    for token in dropped:
        del vocabulary[token]
    tokenizer["model"]["merges"] = merges[:-5]
    file.write_text(json.dumps(tokenizer), encoding="utf-8")

    unchanged = LLAMA.with_name("hf")
    with rml.load(folder, n_threads=1) as model, rml.load(unchanged, n_threads=1) as whole:
        assert model.tokenizer.n_vocab == 283
        with model.session() as session, whole.session() as other:
            logits = session.forward([9, 8, 7])
            np.testing.assert_array_equal(logits, other.forward([9, 8, 7]))
        assert logits.shape == (288,)
        assert model.tokenizer.decode([285]) == ""
        ids = model.generate([9, 8, 7], max_tokens=100, temperature=5, top_k=0, seed=1).token_ids
        assert max(ids) < 283
        with pytest.raises(ArgumentError, match="token 285 of a vocabulary of 283"):
            model.generate([9], logit_bias={285: 1.0})


# ---- generating ----


def test_greedy_is_the_arg_max_of_the_logits(model):
    ids = [5, 6, 7]
    expected = argmax_loop(model, ids, 12)
    expected = expected[: next((i for i, t in enumerate(expected) if t in model.stop_ids), 12)]

    reply = model.generate(ids, temperature=0, max_tokens=12)

    assert reply.token_ids == expected
    assert reply.text == model.tokenizer.decode(expected)
    assert reply.prompt_token_ids == ids


def test_a_text_prompt_is_encoded_without_control_tokens(model):
    forged = "a<|im_end|>b"

    plain = model.generate(forged, max_tokens=0)
    parsed = model.generate(forged, max_tokens=0, parse_special=True)

    assert 2 not in plain.prompt_token_ids
    assert model.tokenizer.decode(plain.prompt_token_ids) == forged
    assert 2 in parsed.prompt_token_ids
    assert plain.finish_reason == "length"
    assert plain.token_ids == []


def test_prompts_as_a_list_give_a_list_in_order(model):
    together = model.generate(["Hello", "world"], max_tokens=4, seed=5)
    alone = [model(text, max_tokens=4, seed=5) for text in ("Hello", "world")]
    drawn = model.generate([[5, 6], [7]], max_tokens=4)

    assert [reply.token_ids for reply in together] == [reply.token_ids for reply in alone]
    assert drawn[0].seed == drawn[1].seed
    assert model.generate([[7]], max_tokens=4, seed=drawn[1].seed)[0].token_ids == (
        drawn[1].token_ids
    )


def test_n_continuations_share_the_prompt_and_count_the_seeds_up(model):
    three = model.generate("Hello", n=3, max_tokens=8, seed=4)
    alone = [model.generate("Hello", max_tokens=8, seed=seed) for seed in (4, 5, 6)]

    assert [reply.token_ids for reply in three] == [reply.token_ids for reply in alone]
    assert [reply.seed for reply in three] == [4, 5, 6]
    # The prompt is evaluated once, to its last token.
    n = len(alone[0].prompt_token_ids)
    assert [reply.timings.prompt_n for reply in three] == [n, 0, 0]
    assert [reply.usage.cached_tokens for reply in three] == [0, n, n]
    assert three[0].logprobs is None
    with model.session() as session:
        several = model.generate("Hello", n=2, max_tokens=8, seed=4, session=session, logprobs=2)
        assert [reply.token_ids for reply in several] == [reply.token_ids for reply in alone[:2]]
        assert (
            several[1].logprobs
            == model.generate("Hello", seed=5, max_tokens=8, logprobs=2).logprobs
        )
    assert len(model.generate([5, 6], n=1, max_tokens=1)) == 1
    with pytest.raises(ArgumentError, match="n=0"):
        model.generate("Hello", n=0)
    with pytest.raises(ArgumentError, match="n is for one prompt"):
        model.generate(["Hello", "you"], n=2)


@pytest.mark.parametrize("n_batch", [1, 3, 512])
def test_echo_puts_the_prompt_first_with_its_scores(n_batch):
    """As in the completions of llama.cpp's server and of the OpenAI API."""
    options = {"max_tokens": 5, "seed": 2, "ignore_eos": True, "logprobs": 3}
    with rml.load(LLAMA, n_threads=1, n_batch=n_batch) as model:
        plain = model.generate("Hello you", **options)
        done = []
        reply = model.generate(
            "Hello you", echo=True, progress=lambda *counts: done.append(counts), **options
        )

        assert reply.text == "Hello you" + plain.text
        assert (reply.token_ids, reply.logprobs) == (plain.token_ids, plain.logprobs)
        assert reply.prompt_logprobs == model.score("Hello you", top_logprobs=3).logprobs
        assert plain.prompt_logprobs is None
        assert done[-1] == (len(reply.prompt_token_ids), len(reply.prompt_token_ids))
        assert len(done) == -(-done[-1][1] // n_batch)
        pieces = list(model.stream("Hello you", echo=True, **options))
        assert "".join(piece.text for piece in pieces) == reply.text
        assert (pieces[0].text, pieces[0].token_ids) == ("Hello you", [])
        # Only scores; every token of the prompt is evaluated, although the session holds them.
        with model.session() as session:
            for _ in range(2):
                scored = model.generate(
                    "Hello you", session=session, echo=True, logprobs=True, max_tokens=0
                )
                assert scored.text == "Hello you"
                assert scored.usage.cached_tokens == 0
                assert [entry and entry.logprob for entry in scored.prompt_logprobs] == [
                    entry and entry.logprob for entry in reply.prompt_logprobs
                ]
        several = model.generate("Hello you", n=2, echo=True, **options)
        assert several[0].prompt_logprobs == several[1].prompt_logprobs == reply.prompt_logprobs
        ids = reply.prompt_token_ids
        assert model.generate(ids, echo=True, **options).text == reply.text
        assert model.generate(ids, echo=True, max_tokens=1).prompt_logprobs is None
        with pytest.raises(ArgumentError, match="echo is for prompts"):
            model.chat([{"role": "user", "content": "Hi"}], echo=True)


def test_a_mask_of_the_caller(model):
    allowed = np.zeros(model.config.n_vocab, np.bool_)
    allowed[[40, 41, 42]] = True

    reply = model.generate("Hello", mask=allowed, max_tokens=20, seed=1)

    assert set(reply.token_ids) <= {40, 41, 42}
    assert len(reply.token_ids) == 20
    seen = []
    model.generate([5, 6], mask=lambda ids: seen.append(list(ids)) or allowed, max_tokens=2)
    assert [ids[:2] for ids in seen] == [[5, 6], [5, 6]]
    with pytest.raises(ArgumentError, match="mask="):
        model.generate("Hello", mask=[True])


def test_ids_may_be_an_array(model):
    as_list = model.generate([5, 6], max_tokens=3, temperature=0)
    as_array = model.generate(np.array([5, 6]), max_tokens=3, temperature=0)

    assert as_array.token_ids == as_list.token_ids
    assert as_array.prompt_token_ids == [5, 6]


@pytest.mark.parametrize("bad", ["", [], [288], [-1], [1.5], 5, None, {"a": 1}, [[]], [""]])
def test_prompts_that_are_none(model, bad):
    with pytest.raises(ArgumentError):
        model.generate(bad, max_tokens=1)


def test_a_seed_gives_the_same_text_again_and_is_returned(model):
    first = model.generate("Hello", max_tokens=20)
    again = model.generate("Hello", max_tokens=20, seed=first.seed)
    streamed = list(model.stream("Hello", max_tokens=20, seed=first.seed))

    assert again.token_ids == first.token_ids
    assert [t for piece in streamed for t in piece.token_ids] == first.token_ids
    assert "".join(piece.text for piece in streamed) == first.text
    others = {tuple(model.generate("Hello", max_tokens=20, seed=s).token_ids) for s in range(5)}
    assert len(others) > 1


@pytest.mark.parametrize(("n_prompt", "n_generated"), [(1, 31), (31, 1), (32, 0)])
@pytest.mark.parametrize("max_tokens", [64, None])
def test_prompt_and_completion_fill_the_context(n_prompt, n_generated, max_tokens):
    with rml.load(LLAMA, n_ctx=32, n_threads=1) as model:
        reply = model.generate([7] * n_prompt, max_tokens=max_tokens, ignore_eos=True)

        assert (len(reply.token_ids), reply.finish_reason) == (n_generated, "length")


def test_a_length_that_is_not_given():
    """A text ends after 256 tokens, an answer with the context; -1 is endless for both."""
    options = {"ignore_eos": True, "seed": 1}
    with rml.load(LLAMA, n_ctx=400, n_threads=1) as model:
        n_chat = 400 - len(model.apply_chat_template(HELLO))
        texts = [
            model.generate([7] * 8, **options),
            model.generate([7] * 8, max_tokens=None, **options),
            model.stream([7] * 8, **options).result(),
            *model.generate([[7] * 8], **options),
            *model.generate([7] * 8, n=1, **options),
        ]
        assert [(len(reply.token_ids), reply.stop_reason) for reply in texts] == [
            (256, "max_tokens")
        ] * 5
        ends = [
            model.generate([7] * 8, max_tokens=-1, **options),
            model.chat(HELLO, **options),
            model.chat(HELLO, max_tokens=-1, **options),
            model.stream_chat(HELLO, max_tokens=None, **options).result(),
        ]
        assert [len(reply.token_ids) for reply in ends] == [392] + [n_chat] * 3
        assert {(reply.finish_reason, reply.stop_reason) for reply in ends} == {
            ("length", "context")
        }


def test_less_room_in_the_session_is_told(model):
    options = {"ignore_eos": True, "seed": 1}
    with model.session(n_ctx=12) as session:
        cut = model.generate([7] * 8, session=session, max_tokens=6, **options)
        several = model.generate([7] * 8, session=session, n=2, max_tokens=6, **options)
    whole = model.generate([7] * 8, max_tokens=6, **options)

    assert [(len(reply.token_ids), reply.stop_reason) for reply in (cut, *several, whole)] == [
        (4, "context"),
        (4, "context"),
        (4, "context"),
        (6, "max_tokens"),
    ]


def test_room_for_a_length_that_is_not_given():
    """`truncate` leaves room for what `generate` would write, or for a quarter of the context."""
    ids = list(range(3, 270)) * 8
    with rml.load(LLAMA, n_ctx=2000, n_threads=1) as model:
        plain = model.generate(ids, truncate="left", ignore_eos=True, seed=1)
        assert (plain.usage.prompt_tokens, len(plain.token_ids)) == (2000 - 256, 256)
        endless = model.stream(ids, truncate="left", max_tokens=-1)
        assert len(endless.prompt_token_ids) == 1500


@pytest.mark.parametrize("n_prompt", [33, 100])
def test_a_prompt_longer_than_the_context_is_refused(n_prompt):
    with (
        rml.load(LLAMA, n_ctx=32, n_threads=1) as model,
        pytest.raises(ContextOverflow, match=f"{n_prompt} tokens are needed.* holds 32") as caught,
    ):
        model.generate([7] * n_prompt)
    assert (caught.value.needed, caught.value.limit) == (n_prompt, 32)


def test_a_reused_session_gives_the_bits_of_a_fresh_one(model):
    first = [5, 6, 7, 8, 9, 10]
    prompts = [first, first, [*first, 5], [*first[:-3], 9, 9]]

    with model.session() as kept:
        for ids in prompts:
            cached = kept.keep_prefix(ids)
            assert cached < len(ids)
            reused = kept.forward(ids[cached:])
            with model.session() as fresh:
                np.testing.assert_array_equal(reused, fresh.forward(ids))


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
def test_a_prompt_in_parts_gives_the_same_tokens(kv_type):
    replies = []
    for n_batch in (1, 3, 512):
        with rml.load(LLAMA, n_batch=n_batch, kv_type=kv_type, n_threads=1) as model:
            replies.append(model.generate(list(range(3, 23)), max_tokens=10, seed=3).token_ids)

    assert replies[0] == replies[1] == replies[2]


def test_a_session_of_its_own_kind(model):
    with model.session(n_ctx=16, kv_type="f32") as session:
        assert session.forward([5] * 16, all_logits=True).shape == (16, 288)
        with pytest.raises(ContextOverflow):
            session.forward([5])
    with pytest.raises(ArgumentError, match="n_ctx=0"):
        model.session(n_ctx=0)
    with pytest.raises(ArgumentError, match="kv_type"):
        model.session(kv_type="q4")


def test_logprobs_are_those_of_a_full_forward(model):
    reply = model.generate([5, 6], max_tokens=6, seed=2, logprobs=True, ignore_eos=True)

    with model.session() as session:
        rows = session.forward([5, 6, *reply.token_ids], all_logits=True).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    for i, entry in enumerate(reply.logprobs):
        assert entry.id == reply.token_ids[i]
        assert entry.logprob == pytest.approx(rows[1 + i, entry.id], abs=1e-5)


@pytest.mark.parametrize("n_vocab_rows", [1 << 23, 600])
def test_score_is_the_log_softmax_of_a_full_forward(model, monkeypatch, n_vocab_rows):
    """In one piece, and two rows of logits at a time."""
    monkeypatch.setattr("rml.sampling.logprobs._VALUES", n_vocab_rows)
    ids = model.tokenizer.encode("Hello world")

    score = model.score("Hello world", top_logprobs=2)

    with model.session() as session:
        rows = session.forward(ids, all_logits=True).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    assert score.token_ids == ids
    assert score.logprobs[0] is None
    actual = [entry.logprob for entry in score.logprobs[1:]]
    np.testing.assert_allclose(actual, rows[np.arange(len(ids) - 1), ids[1:]], atol=1e-5)
    for entry, row in zip(score.logprobs[1:], rows, strict=False):
        assert [token for token, _ in entry.top] == np.argsort(-row)[:2].tolist()
    assert score.total == pytest.approx(sum(actual))
    assert score.perplexity == pytest.approx(np.exp(-np.mean(actual)))


def test_score_of_one_token_and_of_none(model):
    assert model.score([5]).logprobs == [None]
    assert model.score([5]).perplexity == 1
    with pytest.raises(ArgumentError):
        model.score("")
    with pytest.raises(ContextOverflow):
        model.score([5] * 129)
    with pytest.raises(ArgumentError, match="top_logprobs"):
        model.score("a", top_logprobs=-1)


def test_prompt_and_completion_scores_agree(model):
    reply = model.generate([5, 6], max_tokens=5, seed=1, logprobs=True, ignore_eos=True)
    score = model.score([5, 6, *reply.token_ids])

    assert [e.logprob for e in score.logprobs[2:]] == [e.logprob for e in reply.logprobs]


# ---- chat ----


def test_a_chat_prompt_is_what_the_template_writes(model):
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"

    assert model.render_chat(HELLO) == text
    assert model.apply_chat_template(HELLO) == model.tokenizer.encode(text, parse_special=True)
    assert model.render_chat(HELLO, add_generation_prompt=False).endswith("<|im_end|>\n")
    assert model.chat(HELLO, max_tokens=1).prompt_token_ids == model.apply_chat_template(HELLO)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_content_never_makes_a_control_token(model, role):
    ids = model.apply_chat_template([{"role": role, "content": "x<|im_end|>y<|im_start|>z"}])

    assert (ids.count(1), ids.count(2)) == (2, 1)  # the template's own
    assert "x<|im_end|>y<|im_start|>z" in model.tokenizer.decode(ids)


def test_turns_of_a_chat_reuse_the_session(model):
    messages = list(HELLO)
    with model.session() as session:
        first = model.chat(messages, session=session, max_tokens=8, seed=1)
        messages += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "More"},
        ]
        second = model.chat(messages, session=session, max_tokens=8, seed=1)

    fresh = model.chat(messages, max_tokens=8, seed=1, prefix_cache=False)
    assert second.usage.cached_tokens >= len(first.prompt_token_ids)
    assert second.timings.prompt_n == second.usage.prompt_tokens - second.usage.cached_tokens
    assert (fresh.token_ids, fresh.usage.cached_tokens) == (second.token_ids, 0)


def test_going_on_with_the_last_message(model):
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]

    reply = model.chat(messages, continue_final_message=True, max_tokens=1)

    assert reply.prompt_token_ids == model.tokenizer.encode(
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nWell", parse_special=True
    )


def test_a_system_message_is_merged_on_request():
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    messages = [{"role": "system", "content": "Be kind"}, *HELLO]
    with rml.load(LLAMA, chat_template=source) as strict:
        with pytest.raises(TemplateError, match="no system"):
            strict.chat(messages, max_tokens=1)
        reply = strict.chat(messages, max_tokens=1, merge_system=True)
        assert reply.prompt_token_ids == strict.tokenizer.encode("[user]Be kind\n\nHello")
        assert len(messages) == 2
        assert messages[1] == HELLO[0]
        plain = strict.chat(HELLO, max_tokens=1, merge_system=True)
        assert plain.prompt_token_ids == strict.tokenizer.encode("[user]Hello")
        for bad in (messages[:1], [messages[0], {"role": "user", "content": None}]):
            with pytest.raises(ArgumentError, match="merge_system needs"):
                strict.chat(bad, merge_system=True)


@pytest.mark.parametrize("bad", [{"continue_final_message": "yes"}, {"merge_system": 1}])
def test_options_of_chats_are_checked(model, bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        model.chat(HELLO, **bad)


def test_streamed_chat(model):
    stream = model.stream_chat(HELLO, max_tokens=8, seed=1)
    text = "".join(piece.text for piece in stream)

    assert text == stream.result().text == model.chat(HELLO, max_tokens=8, seed=1).text
    with pytest.raises(ArgumentError, match="parse_special"):
        model.chat(HELLO, parse_special=True)


def test_variables_of_the_template():
    source = "{{ bos_token }}{{ messages[0].content }}{{ mood }}{{ tools is none }}"
    with rml.load(LLAMA, chat_template=source) as model:
        assert model.chat_template.source == source
        assert model.render_chat(HELLO, mood="!") == "<|im_start|>Hello!True"
        reply = model.chat(HELLO, chat_template_kwargs={"mood": "?"}, max_tokens=0)
        # One beginning-of-text token, which the template wrote.
        assert reply.prompt_token_ids == [1, *model.tokenizer.encode("Hello?True")]


def test_a_model_without_a_template_says_so(model, monkeypatch):
    with rml.load(LLAMA) as bare:
        monkeypatch.setattr(bare.tokenizer, "chat_template", None)
        assert bare.chat_template is None
        with pytest.raises(TemplateError, match=r"no chat template.*chat_template="):
            bare.chat(HELLO)
    with (
        pytest.raises(TemplateError, match="compile"),
        rml.load(LLAMA, chat_template="{% if %}") as broken,
    ):
        broken.chat(HELLO)


# ---- threads, pickles, the end ----


def test_many_threads_get_the_answers_of_one(model):
    prompts = [f"Prompt {i}" for i in range(8)]
    serial = {p: model.generate(p, max_tokens=6, seed=1).token_ids for p in prompts}
    wrong = []

    def work(i):
        for turn in range(20):
            prompt = prompts[(i + turn) % 8]
            if model.generate(prompt, max_tokens=6, seed=1).token_ids != serial[prompt]:
                wrong.append(prompt)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_model_pickles_as_its_path_and_arguments():
    with rml.load(LLAMA, n_ctx=64, n_threads=1, kv_type="f32") as model:
        data = pickle.dumps(model)
        with pickle.loads(data) as copy:
            assert len(data) < 1000
            assert (copy.path, copy.n_ctx, copy.kv_type) == (LLAMA, 64, "f32")
            assert copy.generate("Hi", max_tokens=4, seed=1).token_ids == (
                model.generate("Hi", max_tokens=4, seed=1).token_ids
            )


def test_after_close_everything_says_so():
    model = rml.load(LLAMA, n_threads=1)
    session = model.session()
    stream = model.stream("Hello", max_tokens=10, ignore_eos=True)
    next(stream)
    model.close()
    model.close()

    assert model.closed
    assert session.closed
    for use in (
        lambda: model.generate("Hello"),
        lambda: model.chat(HELLO),
        model.session,
        lambda: session.forward([1]),
        lambda: next(stream),
        model.__enter__,
    ):
        with pytest.raises(ClosedError):
            use()
    assert model.tokenizer.encode("Hello")  # needs no file
    assert "closed" in repr(model)


def test_close_unmaps_the_file():
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc")
    copy = LLAMA.with_name("model-q8_0.gguf")
    with rml.load(copy, n_threads=1) as model:
        model.generate("Hello", max_tokens=4)
        assert str(copy) in maps.read_text()
    gc.collect()

    assert str(copy) not in maps.read_text()


def test_one_thread_may_close_while_another_generates():
    model = rml.load(LLAMA, n_threads=1)
    ended = []

    def work():
        try:
            while True:
                model.generate("Hello", max_tokens=20)
        except ClosedError as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    model.generate("Hello", max_tokens=20)
    model.close()
    for thread in threads:
        thread.join(30)

    assert len(ended) == 3


def test_an_interrupt_ends_a_generation_and_leaves_the_model_usable(model):
    expected = model.generate("Hello", max_tokens=5, seed=1).token_ids

    def interrupt(done, total):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.generate("Hello", max_tokens=100, progress=interrupt)

    assert model.generate("Hello", max_tokens=5, seed=1).token_ids == expected


def test_a_forked_child_gives_the_same_answers():
    """Threads of OpenMP do not survive a fork; a child that waited for them would hang."""
    code = (
        "import os, rml\n"
        f"model = rml.load({str(LLAMA)!r})\n"
        "before = model.generate('Hello', max_tokens=8, seed=1).token_ids\n"
        "child = os.fork()\n"
        "after = model.generate('Hello', max_tokens=8, seed=1).token_ids\n"
        "assert after == before\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    print('parent')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        check=False,
        timeout=60,
        env=os.environ,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"parent\n", b"")


def test_a_fork_while_another_thread_generates_does_not_hang():
    """The lock of the engine and half a step would otherwise be inherited for ever."""
    code = (
        "import os, threading, rml\n"
        f"model = rml.load({str(LLAMA)!r})\n"
        "expected = model.generate('Hello', max_tokens=8, seed=1).token_ids\n"
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set():\n"
        "        model.generate('Hello', max_tokens=50, ignore_eos=True)\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        same = model.generate('Hello', max_tokens=8, seed=1).token_ids == expected\n"
        "        model.close()\n"
        "        os._exit(0 if same else 1)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "stop.set()\n"
        "thread.join()\n"
        "print('parent')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        check=False,
        timeout=60,
        env=os.environ,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"parent\n", b"")


def test_an_interrupt_at_any_line_leaves_session_and_model_usable(model):
    """KeyboardInterrupt is raised at every 23rd line that a generation runs, one at a time.

    Not at the line of a ``with``: a tracer is called there once more, between the end of the block
    and the exit, where Python delivers no signal; a lock would stay taken.
    """
    stride = 23 if rml.info()["backend"] == "cython" else 211
    prompt, options = list(range(5, 25)), {"max_tokens": 4, "seed": 1, "ignore_eos": True}
    expected = model.generate(prompt, **options).token_ids
    package = Path(rml.__file__).parent
    rooms = tuple(str(package / room) for room in ("sampling", "generation", "llm"))
    remaining = 0

    def trace(frame, event, _arg):
        nonlocal remaining
        if not frame.f_code.co_filename.startswith(rooms):
            return None
        if event == "line" and not linecache.getline(
            frame.f_code.co_filename, frame.f_lineno
        ).lstrip().startswith("with "):
            remaining -= 1
            if remaining == 0:
                raise KeyboardInterrupt
        return trace

    interrupted = 0
    with model.session() as session:
        for at in range(1, 100_000, stride):
            remaining = at
            sys.settrace(trace)
            try:
                model.generate(prompt[: 5 + at % 7], session=session, **options)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            if remaining > 0:  # the call has fewer lines
                break
            again = model.generate(prompt, session=session, **options)
            assert again.token_ids == expected
    assert interrupted > 1000 // stride
    with ThreadPoolExecutor(1) as pool:  # another thread, which a lock left taken would stop
        again = pool.submit(model.generate, prompt, **options).result(timeout=60)
    assert again.token_ids == expected


def test_many_generations_leave_nothing_behind(model):
    """Live objects after 30 generations are as many as after 10."""

    def work(n):
        for i in range(n):
            model.generate("Hello", max_tokens=5, seed=i)
            for _ in model.stream_chat(HELLO, max_tokens=3):
                break
        gc.collect()
        return len(gc.get_objects())

    work(5)
    before = work(10)
    assert work(30) <= before + 20
    assert model._sessions.n_open == 0


def test_a_program_that_generates_writes_nothing_of_its_own():
    code = (
        "import rml\n"
        f"model = rml.load({str(LLAMA)!r})\n"
        "model.chat([{'role': 'user', 'content': 'Hello'}], max_tokens=4)\n"
        "print('done')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        check=False,
        timeout=120,
        env=os.environ,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b"")

"""Completions as the OpenAI API's objects."""

import json
from pathlib import Path

import pytest

import rml

LLAMA = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "model.gguf"


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


def test_a_text_completion(model):
    reply = model.generate("Hello", max_tokens=4, seed=1, ignore_eos=True)
    found = reply.to_openai(model="toy")

    json.dumps(found)
    assert found.pop("id").startswith("cmpl-")
    assert found.pop("created") > 1_700_000_000
    assert found == {
        "object": "text_completion",
        "model": "toy",
        "choices": [{"index": 0, "text": reply.text, "logprobs": None, "finish_reason": "length"}],
        "usage": reply.usage.to_dict(),
    }


def test_a_chat_completion(model):
    reply = model.chat([{"role": "user", "content": "Hi"}], max_tokens=4, seed=1)
    found = reply.to_openai()

    json.dumps(found)
    assert found["id"].startswith("chatcmpl-")
    assert found["id"] != reply.to_openai()["id"]
    assert (found["object"], found["model"]) == ("chat.completion", "rml")
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": reply.text}
    assert choice["finish_reason"] == reply.finish_reason
    messages = [{"role": "user", "content": "Hi"}] * 3
    assert model.chat(messages, max_tokens=1, truncate="left").is_chat


def test_logprobs_of_a_chat(model):
    reply = model.chat(
        [{"role": "user", "content": "Hi"}], max_tokens=3, seed=1, logprobs=True, top_logprobs=2
    )
    token_bytes = model.tokenizer.token_bytes
    content = reply.to_openai(token_bytes=token_bytes)["choices"][0]["logprobs"]["content"]

    assert len(content) == len(reply.token_ids)
    for found, entry in zip(content, reply.logprobs, strict=True):
        assert found["bytes"] == list(token_bytes(entry.id))
        assert found["token"] == token_bytes(entry.id).decode("utf-8", "replace")
        assert found["logprob"] == entry.logprob
        assert [top["logprob"] for top in found["top_logprobs"]] == [p for _, p in entry.top]
    plain = reply.to_openai()["choices"][0]["logprobs"]["content"][0]
    assert (plain["token"], plain["bytes"]) == (f"token_id:{reply.token_ids[0]}", None)


def test_logprobs_of_a_text(model):
    reply = model.generate("Hello", max_tokens=6, seed=1, logprobs=2, ignore_eos=True)
    found = reply.to_openai(token_bytes=model.tokenizer.token_bytes)["choices"][0]["logprobs"]

    assert found["token_logprobs"] == [entry.logprob for entry in reply.logprobs]
    data = [model.tokenizer.token_bytes(token) for token in reply.token_ids]
    assert found["tokens"] == [each.decode("utf-8", "replace") for each in data]
    assert all(1 <= len(top) <= 2 for top in found["top_logprobs"])
    assert found["text_offset"][0] == 0
    assert found["text_offset"] == sorted(found["text_offset"])
    assert reply.to_openai()["choices"][0]["logprobs"]["text_offset"] == []


def test_logprobs_of_an_echoed_prompt(model):
    """The first token has none, and the beginning-of-text token is no part of the text."""
    reply = model.generate("Hello you", max_tokens=3, seed=1, logprobs=1, echo=True)
    found = reply.to_openai(token_bytes=model.tokenizer.token_bytes)["choices"][0]["logprobs"]

    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    n = len(reply.prompt_token_ids)
    assert len(found["tokens"]) == n + len(reply.token_ids)
    assert found["token_logprobs"][n:] == [entry.logprob for entry in reply.logprobs]
    assert found["text_offset"][0] == 0
    assert found["text_offset"][n] == len("Hello you")
    assert reply.to_openai()["choices"][0]["text"] == reply.text


def test_offsets_of_a_prompt_skip_what_its_text_lacks():
    from rml.generation.openai import text_logprobs

    pieces = [b"<s>", b" Hello", b" you"]
    found = text_logprobs(range(3), [None] * 3, pieces.__getitem__, "Hello you")
    assert found["text_offset"] == [0, 0, 5]


def test_offsets_count_whole_characters():
    from rml.generation.openai import text_logprobs

    pieces = [b"a", "\u4e16".encode()[:2], "\u4e16".encode()[2:] + b"b", b"c"]
    entries = [rml.TokenLogprob(i, -1.0) for i in range(4)]

    assert text_logprobs(range(4), entries, pieces.__getitem__)["text_offset"] == [0, 1, 1, 3]


def test_a_cancelled_generation_has_no_reason(model):
    stream = model.stream("Hello", max_tokens=50, ignore_eos=True)
    next(stream)
    stream.close()

    assert stream.result().to_openai()["choices"][0]["finish_reason"] is None

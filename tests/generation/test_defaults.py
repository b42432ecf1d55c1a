"""What a model's own files say about generation, and the context that memory allows."""

import dataclasses
import json
import logging
import shutil
from functools import partial
from pathlib import Path

import pytest

from rml import memory_room
from rml.engine import context
from rml.errors import CheckpointError, OutOfMemory
from rml.files import open_checkpoint
from rml.generation.defaults import generation_defaults
from rml.llm.config import ModelConfig
from rml.llm.memory import MemoryBill
from rml.sampling.settings import SamplingSettings

LLAMA = Path(__file__).resolve().parent.parent / "fixtures" / "llama"


@pytest.fixture
def folder(tmp_path):
    """`folder(**generation_config)`: the toy Llama as a Hugging Face folder with that file."""

    def make(**config):
        shutil.copytree(LLAMA / "hf", tmp_path / "hf")
        if config:
            (tmp_path / "hf" / "generation_config.json").write_text(json.dumps(config))
        return tmp_path / "hf"

    return make


def defaults(path):
    with open_checkpoint(path) as checkpoint:
        return generation_defaults(checkpoint)


def test_a_folder_with_generation_config(folder):
    settings = defaults(folder(eos_token_id=[7, 9], temperature=0.3, do_sample=True))

    assert (settings.temperature, settings.top_k) == (0.3, 50)
    assert settings.origin["temperature"] == "generation_config.json"


def test_without_one_there_are_only_defaults(folder):
    assert defaults(folder()).origin == {}


def test_a_file_of_a_folder(folder):
    path = folder(eos_token_id=7, top_p=0.5)

    assert defaults(path / "model.safetensors").top_p == 0.5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"temperature": -1}, "temperature=-1.* must"),
        ({"suppress_tokens": ["x"]}, "suppress_tokens=.* must be token ids"),
        ({"suppress_tokens": [-1]}, "must be token ids"),
        ({"bad_words_ids": 5}, "bad_words_ids=5 must be lists of ids"),
        ({"bad_words_ids": [["x"]]}, "bad_words_ids=.* must be lists of ids"),
        ({"bad_words_ids": [[5], [True, -1]]}, "bad_words_ids=.* must be lists of ids"),
    ],
)
def test_a_broken_generation_config_names_the_key(folder, config, message):
    with pytest.raises(CheckpointError, match=f"generation_config.json: .*{message}"):
        defaults(folder(**config))


def test_a_gguf_file_has_its_own_keys():
    assert defaults(LLAMA / "model.gguf") == SamplingSettings()


# ---- context ----


@pytest.fixture
def config():
    with open_checkpoint(LLAMA / "model.gguf") as checkpoint:
        return ModelConfig.from_checkpoint(checkpoint)


def test_the_context_of_the_model_if_it_fits(config):
    assert context.default_context(config, weights=0, kv_type="f16", n_batch=512) == 128


def test_a_context_cut_to_the_memory_is_logged(config, monkeypatch, caplog):
    long = dataclasses.replace(config, n_ctx_train=10**6)
    # 2 layers x 2 heads x 8 values x 2 (keys and values) x 2 bytes = 128 bytes a position, and 96
    # in lists.
    monkeypatch.setattr(memory_room, "total", lambda: memory_room.Room(4 * 10**6, "the machine"))

    with caplog.at_level(logging.INFO, "rml"):
        n_ctx = context.default_context(long, weights=0, kv_type="f16", n_batch=1)

    bill = partial(MemoryBill.of, long, weights=0, kv_type="f16", n_batch=1)
    assert bill(n_ctx=n_ctx).total <= 3_000_000 < bill(n_ctx=n_ctx + 1).total
    assert 12_000 < n_ctx <= 3_000_000 / (128 + 96)
    assert f"the context is {n_ctx} tokens, since the 1000000 of the model" in caplog.text


def test_however_little_memory_there_is_a_session_has_a_context(config, monkeypatch):
    monkeypatch.setattr(memory_room, "total", lambda: memory_room.Room(1000, "the machine"))

    assert context.default_context(config, weights=0, kv_type="f16", n_batch=1) == 128


@pytest.mark.parametrize(("left", "expected"), [(40_000, 128), (11_900, 48), (3_500, 0)])
def test_limits_of_the_process_leave_a_share_however_small(config, monkeypatch, left, expected):
    """What is left for keys and values, beside what steps work with."""
    bill = partial(MemoryBill.of, config, weights=0, kv_type="f16", n_batch=1)
    n_bytes = (bill(n_ctx=1).scratch + left) * 5 // 2
    room = memory_room.Room(n_bytes, "ulimit -v")
    monkeypatch.setattr(memory_room, "reservable", lambda: room)

    if not expected:
        with pytest.raises(OutOfMemory, match=rf"a session: .* available: {n_bytes:,} \(ulimit -v"):
            context.default_context(config, weights=10**6, kv_type="f16", n_batch=1)
        return
    n_ctx = context.default_context(config, weights=10**6, kv_type="f16", n_batch=1)

    assert (
        n_ctx
        == expected
        == max(n for n in range(1, 129) if bill(n_ctx=n).total <= n_bytes * 2 // 5)
    )

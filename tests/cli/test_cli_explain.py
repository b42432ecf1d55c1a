"""rml explain: recipe and memory bill, from both formats."""

import json
import re
from pathlib import Path

import pytest

import rml
from rml import OutOfMemory, memory_room
from rml.engine.session import forward_together
from rml.llm.config import ModelConfig
from rml.llm.memory import scratch_bytes

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def test_the_bill_of_the_toy(rml_command):
    result = rml_command("explain", FIXTURES / "llama" / "model.gguf", "-c", "64", "-b", "16")

    assert result.exit_code == 0
    assert "llama, 37,024 parameters" in result.stdout
    # 64 tokens, 2 layers, keys and values of 2 heads of 8 channels, 2 bytes each.
    assert re.search(r"^f16 +\S+ kB +8\.2 kB ", result.stdout, re.MULTILINE)
    assert "the weights fit into it" in result.stdout


@pytest.mark.parametrize("family", ["gemma3_text", "smollm3", "qwen3_moe", "olmoe"])
def test_both_formats_of_a_family_have_one_recipe(rml_command, family):
    shown = [
        json.loads(rml_command("explain", FIXTURES / family / part, "-o", "json").stdout)
        for part in ("model.gguf", "hf")
    ]

    for facts in shown:
        facts["config"].pop("rope_pairing")  # the order of rows in the file
        facts["config"]["norm_eps"] = round(facts["config"]["norm_eps"], 9)
    assert shown[0]["config"] == shown[1]["config"]
    assert shown[0]["parameters"] == shown[1]["parameters"] > 0


def test_switches_are_named(rml_command):
    text = rml_command("explain", FIXTURES / "smollm3" / "hf").stdout

    assert re.search(r"^rope_layers +yes in 4 layers, no in 1 layers$", text, re.MULTILINE)


def test_a_machine_that_is_too_small(rml_command, monkeypatch):
    monkeypatch.setattr(memory_room, "total", lambda: memory_room.Room(50_000, "the machine"))
    text = rml_command("explain", FIXTURES / "llama" / "model.gguf").stdout

    assert "the machine: 50.0 kB; the weights do not fit into it" in text
    assert re.search(r"^f32 .* 0$", text, re.MULTILINE)


def test_a_copy_of_the_weights_is_in_the_bill(rml_command, monkeypatch):
    monkeypatch.setattr(memory_room, "total", lambda: memory_room.Room(10_000_000, "the machine"))
    path = FIXTURES / "llama" / "model.gguf"
    texts = [rml_command("explain", path, *flags).stdout for flags in ((), ("--no-mmap",))]
    mapped, copied = (
        json.loads(rml_command("explain", path, flag, "-o", "json").stdout)
        for flag in ("--mmap", "--no-mmap")
    )

    assert "the weights are mapped: pages of the file" in texts[0]
    assert "the weights are a copy in each process's own memory (--no-mmap)" in texts[1]
    assert (mapped["mmap"], copied["mmap"]) == (True, False)
    size = path.stat().st_size
    assert mapped["memory"]["f16"]["weights"] < copied["memory"]["f16"]["weights"] == size
    # What it takes is not there for keys and values.
    budgets = [facts["kv_memory"]["f16"]["kv_memory"] for facts in (mapped, copied)]
    assert budgets[1] == pytest.approx(budgets[0] * (10_000_000 - size) / 10_000_000, abs=2)


def test_limits_of_the_process_count_without_the_weights(rml_command, monkeypatch):
    monkeypatch.setattr(memory_room, "reservable", lambda: memory_room.Room(1_000_000, "ulimit -v"))
    shown = rml_command("explain", FIXTURES / "llama" / "model.gguf", "-b", "1")
    facts = rml_command("explain", FIXTURES / "llama" / "model.gguf", "-b", "1", "-o", "json")

    assert "left for cache and scratch: 1.0 MB (ulimit -v)" in shown.stdout
    assert json.loads(facts.stdout)["reservable_bytes"] == 1_000_000
    assert json.loads(facts.stdout)["largest_context"]["f16"] == 128  # all of it

    with rml.open_checkpoint(FIXTURES / "llama" / "model.gguf") as checkpoint:
        scratch = scratch_bytes(ModelConfig.from_checkpoint(checkpoint), n_batch=1, n_ctx=128)
    left = memory_room.Room(scratch + 10_000, "ulimit -v")
    monkeypatch.setattr(memory_room, "reservable", lambda: left)
    facts = rml_command("explain", FIXTURES / "llama" / "model.gguf", "-b", "1", "-o", "json")
    largest = json.loads(facts.stdout)["largest_context"]
    assert 0 < largest["f32"] < largest["f16"] < 128


def test_what_the_memory_of_all_sequences_holds(rml_command):
    # As above: a page of 16 tokens takes 2 kB in f16, 64 tokens four of them.
    flags = ("-c", "60", "--kv-memory", "22000")
    text = rml_command("explain", FIXTURES / "llama" / "model.gguf", *flags).stdout
    shown = rml_command("explain", FIXTURES / "llama" / "model.gguf", *flags, "-o", "json").stdout

    assert re.search(
        r"^MEMORY FOR KEYS AND VALUES +BYTES +TOKENS +SEQUENCES OF 60$", text, re.MULTILINE
    )
    assert re.search(r"^f16 +22\.0 kB +160 +2$", text, re.MULTILINE)
    fits = json.loads(shown)["kv_memory"]
    assert fits["f16"] == {"kv_memory": 22_000, "tokens": 160, "sequences": 2}
    assert fits["f32"] == {"kv_memory": 22_000, "tokens": 80, "sequences": 1}
    with rml.load(FIXTURES / "llama" / "model.gguf", n_ctx=60, kv_memory=22_000) as model:
        sessions = [model.session() for _ in range(3)]
        texts = [[i] * 60 for i in range(3)]
        forward_together(sessions[:2], texts[:2])
        for session in sessions:
            session.truncate(0)
        with pytest.raises(OutOfMemory):
            forward_together(sessions, texts)
        forward_together(sessions, [*texts[:2], [2] * 32])


def test_the_memory_that_a_load_takes_by_default_is_told(rml_command, monkeypatch):
    monkeypatch.setattr(memory_room, "reservable", lambda: memory_room.Room(10**6, "ulimit -v"))
    model = FIXTURES / "llama" / "model.gguf"
    fits = json.loads(rml_command("explain", model, "-o", "json").stdout)["kv_memory"]
    # A position takes 128 bytes of keys and values, and 96 in lists.
    assert fits["f16"]["kv_memory"] == 750_000 * 128 // (128 + 96)
    assert fits["f16"]["tokens"] == 209 * 16

"""Too large for the machine or for the process: refused with the figures, and nothing is lost."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import memory_room
from rml.engine import pool
from rml.llm.memory import LIST_BYTES_PER_TOKEN
from rml.memory_room import Room

FIXTURES = Path(__file__).resolve().parent / "fixtures"
LLAMA = FIXTURES / "llama" / "model.gguf"
A_TOKEN = 128  # bytes of keys and values of this toy, f16
# What compiled attention keeps, for 8 rows and for one, of each head and 256 keys: 48 floats.
KEPT = 9 * 4 * 48 * 4 // 256


@pytest.fixture
def leave(monkeypatch):
    """`leave(n_bytes)`: so much memory is there to be used, wherever it is asked for."""

    def set_room(n_bytes):
        room = Room(n_bytes, "a limit")
        monkeypatch.setattr(memory_room, "usable", lambda: room)

    return set_room


def answer(model):
    return model.generate("once upon a time", max_tokens=12, temperature=0).token_ids


def check(error, needed, available=None):
    """One line, with the figures in it."""
    text = str(error)
    assert "\n" not in text
    assert f"bytes needed: {needed:,}, available: " in text
    assert error.needed == needed
    if available is not None:
        assert error.available == available
        assert f"available: {available:,} (" in text
    assert f"the largest context that fits is {error.largest_context:,} tokens" in text
    assert isinstance(error, MemoryError)


# ---- where use is counted: the machine, a control group ----


@pytest.mark.parametrize("n_ctx", [10_000_000, 10**12, 2**62])
def test_a_context_that_does_not_fit_is_refused_at_load(leave, n_ctx):
    leave(1_000_000_000)
    with pytest.raises(rml.OutOfMemory, match=f"a context of {n_ctx:,} tokens of .*llama") as e:
        rml.load(LLAMA, n_ctx=n_ctx, n_threads=1)

    check(e.value, e.value.needed, 1_000_000_000)
    one = A_TOKEN + LIST_BYTES_PER_TOKEN
    assert n_ctx * one < e.value.needed < n_ctx * (one + KEPT) + 2_000_000
    with rml.load(LLAMA, n_ctx=e.value.largest_context, n_threads=1) as model:
        assert model.n_ctx == e.value.largest_context > 3_000_000
    with pytest.raises(rml.OutOfMemory):
        rml.load(LLAMA, n_ctx=e.value.largest_context + 16, n_threads=1)


def test_a_context_that_does_not_fit_is_refused_at_a_session(leave):
    with rml.load(LLAMA, n_threads=1) as model:
        before = answer(model)
        leave(100_000_000)
        with pytest.raises(rml.OutOfMemory, match="a context of 1,000,000 tokens") as e:
            model.session(n_ctx=1_000_000)
        check(e.value, e.value.needed, 100_000_000)
        with model.session(n_ctx=e.value.largest_context) as session:
            assert session.n_ctx == e.value.largest_context
        with pytest.raises(rml.OutOfMemory):
            model.session(n_ctx=e.value.largest_context, kv_type="f32")
        assert answer(model) == before


def test_a_context_that_nobody_asked_for_is_not_refused(leave):
    leave(1000)
    with rml.load(LLAMA, n_threads=1) as model, model.session() as session:
        assert session.n_ctx == model.n_ctx == 128


def test_a_session_that_outgrows_the_memory_keeps_its_tokens(leave, monkeypatch):
    monkeypatch.setattr(pool, "SLAB_BYTES", 16 * A_TOKEN)  # a page
    monkeypatch.setattr(pool, "MOST_SLABS", 1 << 30)
    with rml.load(LLAMA, n_threads=1, prefix_cache=False) as model, model.session() as session:
        expected = answer(model)
        ids = model.tokenizer.encode("once upon a time")
        session.forward(ids)
        leave(10)
        needed = 16 * (A_TOKEN + LIST_BYTES_PER_TOKEN)
        with pytest.raises(rml.OutOfMemory, match=f"values: bytes needed: {needed:,}") as e:
            session.forward([1] * 40)
        check(e.value, needed, 10)
        assert e.value.largest_context == 16  # the one page that it has
        assert session.tokens == ids

        pieces = []

        def listen():
            for piece in model.stream(
                "once upon a time", max_tokens=12, temperature=0, session=session
            ):
                pieces.extend(piece.token_ids)

        with pytest.raises(rml.OutOfMemory):
            listen()
        assert pieces == expected[: len(pieces)]
        # As far as the pages go that it had; the last token was chosen, not evaluated.
        assert session.tokens == [*ids, *pieces][:16]

        leave(10**9)
        again = model.generate("once upon a time", max_tokens=12, temperature=0, session=session)
        assert again.token_ids == expected


# ---- whatever the reason: arrays that numpy cannot make ----


@pytest.fixture
def numpy_refuses(monkeypatch):
    """Arrays of a million bytes and more cannot be made, while the block runs."""
    empty = np.empty

    def refuse(shape, dtype=float, **other):
        if np.prod(shape) * np.dtype(dtype).itemsize >= 1_000_000:
            error = MemoryError("Unable to allocate")
            error.shape = shape if isinstance(shape, tuple) else (shape,)
            error.dtype = np.dtype(dtype)
            raise error
        return empty(shape, dtype, **other)

    monkeypatch.setattr(np, "empty", refuse)


def test_logits_of_too_many_tokens_at_once(numpy_refuses):
    with rml.load(LLAMA, n_ctx=2000, n_threads=1) as model, model.session() as session:
        before = answer(model)
        session.forward([5, 6])
        with pytest.raises(rml.OutOfMemory, match="evaluate fewer tokens at a time") as e:
            session.forward([7] * 1000, all_logits=True)
        check(e.value, 1000 * 288 * 4)
        assert session.tokens == [5, 6]
        assert session.forward([7, 8], all_logits=True).shape == (2, 288)
        assert answer(model) == before


def test_a_tensor_too_large_to_expand(numpy_refuses, tmp_path):
    n = 300_000
    header = json.dumps({"w": {"dtype": "F16", "shape": [n], "data_offsets": [0, 2 * n]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(2 * n))
    with rml.open_checkpoint(file) as checkpoint:
        with pytest.raises(rml.OutOfMemory, match=r"tensor 'w' of .*model\.safetensors: ") as e:
            checkpoint.tensors["w"].numpy()
        assert e.value.needed == 4 * n
    with pytest.raises(rml.OutOfMemory, match="expanded weights"):
        rml.dequantize(bytes(2 * n), "F16")


@pytest.mark.parametrize(
    ("place", "use"),
    [
        ("rml.llm.plan.Plan.run", lambda model: model.generate("a", max_tokens=2)),
        ("rml.generation.generation.token_logprob", lambda model: model.generate("a", logprobs=1)),
        ("rml.model.score", lambda model: model.score("ab")),
        ("rml.model.embed", lambda model: model.embed("ab")),
        ("rml.engine.engine.Engine.wait", lambda model: model.generate("a", max_tokens=3)),
        ("rml.engine.engine.Engine.finish", lambda model: model.session().forward([5])),
        ("rml.engine.session.write_session", lambda model: model.session().save("x")),
        ("rml.engine.sequence.SequenceStore.new", lambda model: model.session()),
        ("rml.tokenizers.tokenizer.as_text", lambda model: model.tokenizer.encode("a")),
        ("rml.loading.generation_defaults", lambda _: rml.load(LLAMA)),
        ("rml.files.checkpoint.read_gguf", lambda _: rml.open_checkpoint(LLAMA)),
        ("rml.tokenizers.tokenizer.gguf_parts", lambda _: rml.load_tokenizer(LLAMA)),
        ("rml.engine.sessions.read_session", lambda model: model.load_session("x")),
    ],
)
def test_no_bare_memory_error_gets_out(monkeypatch, place, use):
    def refuse(*_, **__):
        raise MemoryError

    with rml.load(LLAMA, n_threads=1) as model:
        before = answer(model)
        with monkeypatch.context() as patched:
            patched.setattr(place, refuse)
            if place.endswith("read_gguf"):
                patched.setattr("rml.files.checkpoint._reader", lambda _: refuse)
            with pytest.raises(rml.OutOfMemory):
                use(model)
        assert answer(model) == before


# ---- where reservation is counted: limits of a process ----


def limited(megabytes, code, limit="RLIMIT_AS", **environment):
    """Run code in a process that may reserve so much more than rml has when it is imported."""
    start = f"""
import resource, sys
import numpy as np, rml, rml.loading
field = {{"RLIMIT_AS": 0, "RLIMIT_DATA": 5}}[{limit!r}]
used = int(open("/proc/self/statm").read().split()[field]) * resource.getpagesize()
resource.setrlimit(resource.{limit}, (used + {megabytes} * 1_000_000,) * 2)
path = {str(LLAMA)!r}
"""
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "RML_THREADS": "1", **environment},
    )


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps these limits")


@only_linux
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_a_process(limit):
    code = """
def refused(use):
    try:
        use()
    except rml.OutOfMemory as error:
        print(error.needed > error.available, error.largest_context, error)
        return error
    raise AssertionError("not refused")

refused(lambda: rml.load(path, n_ctx=20_000_000))
with rml.load(path) as model:
    answer = model.generate("once upon", max_tokens=8, temperature=0).token_ids
    error = refused(lambda: model.session(n_ctx=20_000_000))
    model.session(n_ctx=error.largest_context // 2).close()
    with model.session(n_ctx=400_000) as session:
        session.forward([1, 2, 3])
        refused(lambda: session.forward([1] * 390_000, all_logits=True))
        assert session.tokens == [1, 2, 3]
        session.forward([4])
    assert model.generate("once upon", max_tokens=8, temperature=0).token_ids == answer
"""
    done = limited(200, code, limit)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    name = {"RLIMIT_AS": "ulimit -v", "RLIMIT_DATA": "ulimit -d"}[limit]
    assert len(lines) == 3
    for line in lines:
        assert re.match(rf"True \d+ not enough memory for .*of this process, {name}\)", line)


@only_linux
def test_a_plain_load_takes_what_a_limit_leaves(tmp_path):
    # A model made for a very long context: 128 bytes a position, 134 MB in all.
    shutil.copytree(FIXTURES / "llama" / "hf", tmp_path / "hf")
    config = tmp_path / "hf" / "config.json"
    text = config.read_text(encoding="utf-8")
    longer = re.sub(r'("max_position_embeddings": )\d+', r"\g<1>1048576", text)
    assert longer != text
    config.write_text(longer, encoding="utf-8")
    code = f"""
with rml.load({str(tmp_path / "hf")!r}) as model:
    print(model.n_ctx)
    with model.session() as one:  # beside it, the one that `generate` opens
        one.forward([1, 2])
        print(len(model.generate("once upon", max_tokens=4, temperature=0).token_ids))
"""
    done = limited(100, code)

    assert done.returncode == 0, done.stderr
    n_ctx, n = map(int, done.stdout.split())
    assert 100_000 < n_ctx < 320_000
    assert n == 4


@only_linux
def test_a_file_that_a_process_may_not_map(tmp_path):
    file = tmp_path / "large.gguf"
    file.write_bytes(LLAMA.read_bytes())
    os.truncate(file, 1 << 30)
    done = limited(
        100,
        f"""
for use in rml.open_checkpoint, rml.load, rml.load_tokenizer:
    try:
        use({str(file)!r})
    except rml.OutOfMemory as error:
        print(error)
""",
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(f"{file}, mapped as a whole: bytes needed: 1,073,741,824" in line for line in lines)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_on_the_command_line_it_is_one_line(command):
    done = subprocess.run(
        [sys.executable, "-m", "rml", command, "-m", LLAMA, "-c", "1000000000000", "hello"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"Error: not enough memory for a context of 1,000,000,000,000 tokens .*\n", done.stderr
    )

"""Sessions in files and forks: the bits they would have had, and everything else refused."""

import dataclasses
import hashlib
import json
import os
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import (
    ArgumentError,
    CheckpointError,
    ClosedError,
    ContextOverflow,
    OutOfMemory,
    SaveError,
    _kernels,
)
from rml._kernels.pages import KV_TYPES, Pages, PageTable
from rml._kernels.step import Step
from rml.engine import session_file
from rml.llm.rope import RopeScaling

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LLAMA = FIXTURES / "llama" / "model.gguf"
IDS = list(range(5, 28))  # a page of 16 and a part of one


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


@pytest.fixture
def saved(model, tmp_path):
    """A file of `IDS`."""
    with model.session() as session:
        session.forward(IDS)
        session.save(tmp_path / "saved")
    return tmp_path / "saved"


def logits_of(session, ids):
    """Logits after each of `ids`."""
    return session.forward(ids, all_logits=True)


# ---- what is kept ----


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
@pytest.mark.parametrize("n", [1, 16, 23, 48])
def test_a_loaded_session_goes_on_with_the_same_bits(model, tmp_path, kv_type, n):
    ids = list(range(5, 5 + n))
    with model.session(kv_type=kv_type) as session:
        session.forward(ids)
        session.save(tmp_path / "file")
        expected = logits_of(session, [7, 8, 9])

    with model.load_session(tmp_path / "file", kv_type=kv_type) as loaded:
        assert (loaded.tokens, loaded.position, loaded.n_ctx) == (ids, n, 128)
        np.testing.assert_array_equal(logits_of(loaded, [7, 8, 9]), expected)
    with model.session(kv_type=kv_type) as fresh:
        fresh.forward(ids)
        np.testing.assert_array_equal(logits_of(fresh, [7, 8, 9]), expected)


def test_a_conversation_goes_on_in_another_process_of_the_model(saved):
    with rml.load(LLAMA, n_threads=1, n_ctx=64) as again, again.load_session(saved) as session:
        reply = again.generate([*IDS, 3], session=session, max_tokens=5, seed=1)
        fresh = again.generate([*IDS, 3], max_tokens=5, seed=1)
    assert reply.usage.cached_tokens == len(IDS)
    assert reply.token_ids == fresh.token_ids


def test_an_empty_session(model, tmp_path):
    with model.session() as session:
        session.save(tmp_path / "file")
    with model.load_session(tmp_path / "file") as loaded:
        assert loaded.tokens == []


def test_what_was_truncated_is_not_in_the_file(model, saved, tmp_path):
    with model.session() as session:
        session.forward([*IDS, 99, 98, 97])
        session.truncate(len(IDS))
        session.save(tmp_path / "other")

    assert (tmp_path / "other").read_bytes() == saved.read_bytes()


def test_a_loaded_session_may_be_saved_again_and_forked(model, saved, tmp_path):
    with model.load_session(saved) as session:
        session.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == saved.read_bytes()
        with session.fork() as fork:
            np.testing.assert_array_equal(fork.forward([9]), session.forward([9]))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("llama/model-q8_0.gguf", {}, "another model"),
        ("mistral/model.gguf", {}, "another model"),
        ("llama/model.gguf", {"compute": "int8"}, "compute='int8x2'.* compute='int8'"),
        ("llama/model.gguf", {"kv_type": "f32"}, "kv_type='f16'.* kv_type='f32'"),
    ],
)
def test_sessions_of_something_else(saved, file, options, message):
    with (
        rml.load(FIXTURES / file, n_threads=1, **options) as other,
        pytest.raises(CheckpointError, match=message),
    ):
        other.load_session(saved)
    assert other._sessions.n_open == 0


def test_a_context_that_is_too_short(model, saved):
    with pytest.raises(ContextOverflow) as caught:
        model.load_session(saved, n_ctx=22)
    assert (caught.value.needed, caught.value.limit) == (23, 22)
    with model.load_session(saved, n_ctx=23) as session:
        assert session.n_ctx == 23
    with pytest.raises(ArgumentError, match="n_ctx=0"):
        model.load_session(saved, n_ctx=0)


def test_every_cut_is_noticed(model, saved, tmp_path):
    content = saved.read_bytes()
    for n in (*range(1, 40), *range(40, len(content), 97), len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:n])
        with pytest.raises(CheckpointError):
            model.load_session(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="cut or damaged"):
        model.load_session(tmp_path / "cut")


def test_every_damaged_byte_is_noticed(model, saved, tmp_path):
    content = saved.read_bytes()
    for at in (*range(24), *range(24, len(content), 61), len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises((CheckpointError, ContextOverflow)):
            model.load_session(tmp_path / "damaged")


def forged(content, **changes):
    """The file with another header, and a digest that agrees."""
    start = struct.Struct("<8sII")
    magic, version, n = start.unpack_from(content)
    header = json.loads(content[start.size : start.size + n])
    for name, value in changes.items():
        if value is None:
            del header[name]
        else:
            header[name] = value
    text = json.dumps(header).encode()
    body = start.pack(magic, version, len(text)) + text + content[start.size + n : -32]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"tokens": [0] * 22 + [288]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [-1]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [True]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [1.0]}, "ids from 0 to 287"),
        ({"tokens": "0" * 23}, "ids from 0 to 287"),
        ({"tokens": [0] * 33}, "need"),
        ({"tokens": [0] * 16}, "need"),
        ({"tokens": None}, "header has"),
        ({"mood": 1}, "header has"),
        ({"model": 5}, "another model"),
        ({"kv_type": "int8"}, "kv_type"),
    ],
)
def test_forged_headers(model, saved, tmp_path, changes, message):
    (tmp_path / "forged").write_bytes(forged(saved.read_bytes(), **changes))

    if message is None:
        model.load_session(tmp_path / "forged").close()
    else:
        with pytest.raises(CheckpointError, match=message):
            model.load_session(tmp_path / "forged")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF" + bytes(100), "no session"),
        (b"RMLSESS\0", "no session"),
        (struct.pack("<8sII", b"RMLSESS\0", 2, 5) + bytes(50), "version 2"),
        (struct.pack("<8sII", b"RMLSESS\0", 1, 2**32 - 1) + bytes(50), "cut or damaged"),
        (struct.pack("<8sII", b"RMLSESS\0", 1, 4) + b"[1] " + bytes(50), "object"),
        (struct.pack("<8sII", b"RMLSESS\0", 1, 4) + b"\xff\xff\xff\xff" + bytes(50), "UTF-8"),
    ],
)
def test_what_is_no_session(model, tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)

    with pytest.raises(CheckpointError, match=message):
        model.load_session(tmp_path / "file")


def test_files_that_are_not_there(model, tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        model.load_session(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="not a regular file"):
        model.load_session(tmp_path)


def test_a_failed_save_leaves_the_file_that_was_there(model, saved, monkeypatch):
    before = saved.read_bytes()

    def full(_file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with model.session() as session:
        session.forward([1])
        with pytest.raises(SaveError, match=f"^{saved}: .*No space") as caught:
            session.save(saved)
        assert isinstance(caught.value, OSError)
        monkeypatch.undo()
        session.forward([2])
        session.save(saved.with_name("other"))

    assert saved.read_bytes() == before
    assert sorted(file.name for file in saved.parent.iterdir()) == ["other", "saved"]


def test_a_full_disk(model, saved, tmp_path):
    """A limit to the size of files stands for it; where it strikes, bytes were written already."""
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with model.session() as session:
        session.forward(IDS)
        for size in (0, 100, len(before) - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            try:
                for name in ("saved", "new"):
                    with pytest.raises(SaveError, match=f"^{tmp_path / name}: "):
                        session.save(tmp_path / name)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert saved.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["saved"]
        session.save(tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("missing/file", "No such file"),
        ("folder", "this is a folder"),
        ("folder/..", "this is a folder"),
        ("saved/file", "Not a directory"),
        ("/", "this is a folder"),
        ("/dev/full", "a device"),
        ("link-to-full", "a device"),
        ("x" * 300, "too long"),
    ],
)
def test_places_where_no_file_can_be(model, saved, tmp_path, place, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link-to-full").symlink_to("/dev/full")
    before = saved.read_bytes()
    path = tmp_path / place
    with model.session() as session:
        session.forward(IDS)
        with pytest.raises(SaveError, match=f"^{path}: .*{message}"):
            session.save(path)
        session.save(saved)  # it is usable, and nothing has changed
    assert saved.read_bytes() == before
    assert Path("/dev/full").is_char_device()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "link-to-full", "saved"]


@pytest.mark.parametrize("path", [None, 5, "", b"file", ["file"]])
def test_what_is_no_path(model, path):
    with model.session() as session:
        for use in (session.save, model.load_session):
            with pytest.raises(ArgumentError, match="a path is expected, not"):
                use(path)
        with pytest.raises(SaveError, match=r"^'a\\x00b' is not a file name"):
            session.save("a\0b")


def test_a_file_without_permission(model, saved, monkeypatch):
    """Whoever runs this may be allowed everything, so the system's answers are made up."""
    before = saved.read_bytes()
    with model.session() as session:
        session.forward([1])
        monkeypatch.setattr(os, "access", lambda _path, _mode: False)
        with pytest.raises(SaveError, match=f"^{saved}: .*may not be written"):
            session.save(saved)

        def refuse(_path, *_args, **_kwargs):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", refuse)
        with pytest.raises(SaveError, match="Permission denied"):
            session.save(saved.with_name("new"))
        monkeypatch.undo()
        assert saved.read_bytes() == before
        session.forward([2])


def test_what_a_saved_file_keeps_of_the_one_it_replaces(model, saved, tmp_path):
    """A link stays a link, and a conversation that only its owner may read stays so."""
    saved.chmod(0o600)
    (tmp_path / "link").symlink_to(saved)
    with model.session() as session:
        session.forward([1, 2])
        session.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert saved.stat().st_mode & 0o777 == 0o600
    with model.load_session(saved) as loaded:
        assert loaded.tokens == [1, 2]


def test_a_name_as_long_as_names_may_be(model, tmp_path):
    with model.session() as session:
        session.save(tmp_path / ("x" * 255))
        session.save(tmp_path / ("x" * 255))


def test_closed_sessions_are_not_saved(model, tmp_path):
    session = model.session()
    session.close()
    for use in (lambda: session.save(tmp_path / "file"), session.fork):
        with pytest.raises(ClosedError):
            use()


def test_the_fingerprint_depends_on_what_changes_a_result(model):
    checkpoint, config = model._checkpoint, model.config

    def of(n_ctx=64, **changes):
        return session_file.fingerprint(checkpoint, dataclasses.replace(config, **changes), n_ctx)

    assert of() == of(n_ctx=128)
    assert of() != of(norm_eps=1e-3)
    dynamic = RopeScaling(type="dynamic", factor=2.0, original_context=32)
    assert of(rope_scaling=dynamic) != of(rope_scaling=dynamic, n_ctx=128)


def test_the_version_belongs_to_the_layout_of_pages():
    """Where this fails, pages have changed, and `session_file.VERSION` must change, too."""
    rng = np.random.default_rng(0)
    k, v = rng.integers(-9, 9, (2, 5, 2, 8)).astype(np.float32)
    digest = hashlib.sha256()
    for kv_type in KV_TYPES:
        pages, step = Pages(1, 2, 8, kv_type, n_pages=1, slab_pages=1), Step(5)
        pages.reserve(0)
        step.add([0] * 5, 0, [PageTable([0])])
        _kernels.store_kv(k, v, pages, step, layer=0)
        for array in pages.page(0):
            digest.update(array.tobytes())

    assert (session_file.VERSION, digest.hexdigest()[:16]) == (1, "5a79e4c0afbe9ee4")


# ---- forks ----


def test_forks_go_their_own_ways(model):
    with model.session() as session, model.session() as fresh:
        session.forward(IDS)
        first, second = session.fork(), session.fork()
        session.forward([1, 2, 3])
        first.forward([4, 5])
        assert second.tokens == IDS
        assert first.tokens == [*IDS, 4, 5]
        session.close()
        fresh.forward(IDS)
        np.testing.assert_array_equal(logits_of(second, [6, 7]), logits_of(fresh, [6, 7]))
        fresh.truncate(len(IDS))
        fresh.forward([4, 5])
        np.testing.assert_array_equal(first.forward([8]), fresh.forward([8]))
        first.close()
        second.close()


def test_forks_share_memory_and_its_limit(caplog):
    page = 16 * 128  # bytes of the toy's keys and values, f16
    with rml.load(LLAMA, kv_memory=3 * page) as model, model.session() as session:
        assert model.n_ctx == 48  # what the budget holds
        session.forward([3] * 32)  # two of three pages
        with session.fork() as fork:
            fork.forward([4] * 16)
            with pytest.raises(OutOfMemory, match=r"fill their 6,144 bytes .*larger kv_memory"):
                session.forward([5])
            assert (session.position, fork.position) == (32, 48)
        session.forward([5] * 16)
        with pytest.raises(ArgumentError, match="n_sequences=0"):
            model.session(n_sequences=0)
        for _ in range(2):
            model.session(n_sequences=3).close()
    assert caplog.text.count("n_sequences has no effect") == 1
    with pytest.raises(ArgumentError, match=r"hold 48 tokens, but a context of 64 needs 8,192"):
        rml.load(LLAMA, kv_memory=3 * page, n_ctx=64)
    with pytest.raises(ArgumentError, match="kv_memory=0 must be an integer, at least 1"):
        rml.load(LLAMA, kv_memory=0)


def test_several_streams_of_one_prompt_side_by_side(model):
    alone = [model.generate(IDS, max_tokens=6, seed=s, ignore_eos=True).token_ids for s in range(3)]
    with model.session() as session:
        session.forward(IDS[:-1])
        forks = [session.fork() for _ in range(3)]
        options = {"max_tokens": 6, "ignore_eos": True}
        streams = [model.stream(IDS, session=f, seed=s, **options) for s, f in enumerate(forks)]
        while [piece for stream in streams if (piece := next(stream, None))]:
            pass
        results = [stream.result() for stream in streams]
    assert [reply.token_ids for reply in results] == alone
    assert [reply.usage.cached_tokens for reply in results] == [len(IDS) - 1] * 3
    for fork in forks:
        fork.close()


def test_forks_are_closed_with_the_model():
    with rml.load(LLAMA, n_threads=1) as model:
        session = model.session()
        session.forward(IDS)
        fork = session.fork()
        session.close()
    assert fork.closed
    with pytest.raises(ClosedError):
        fork.forward([1])


@pytest.mark.parametrize("path", [5, None, b"x", [], "", "/", "a\0"])
def test_what_is_no_name_of_a_file(model, path):
    with model.session() as session, pytest.raises((ArgumentError, SaveError)):
        session.save(path)
    with pytest.raises((ArgumentError, CheckpointError)):
        model.load_session(path)

"""Sessions in files and forks: the bits they would have had, and everything else refused."""

import dataclasses
import fcntl
import hashlib
import json
import os
import resource
import socket
import stat
import struct
import subprocess
import sys
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
from rml.engine.pool import PagePool
from rml.engine.sequence import Sequence, SequenceStore
from rml.engine.session import forward_together
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


def header_of(content):
    """The header of a file, and where its pages begin."""
    _, _, n = struct.unpack_from("<8sII", content)
    return json.loads(content[16 : 16 + n]), 16 + n


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


def about(model, kv_type, version=1):
    """What a file of an older version says of its model."""
    fingerprint = model._sessions.fingerprint(version)
    return {"model": fingerprint, "compute": model.compute, "kv_type": kv_type}


def version_1(sequence, path, **about):
    """Write a file as rml did before it knew groups of layers.

    The start, a header with the keys ``model``, ``compute``, ``kv_type`` and ``tokens``, the pages
    of 16 positions in order (keys, values and, for int8, the scales of both), and a SHA-256.
    Places that hold no token are zero.
    """
    text = json.dumps({**about, "tokens": sequence.ids}, separators=(",", ":")).encode()
    body = struct.pack("<8sII", b"RMLSESS\0", 1, len(text)) + text
    (pool,), (table,) = sequence.store.pools, sequence.tables
    for entry in range(len(table)):
        used = len(sequence) - 16 * entry
        for i, view in enumerate(pool.pages.page(table[entry])):
            part = view.copy()
            if i % 2:
                part[:, :, used:, :] = 0  # values and their scales: (layers, heads, 16, ...)
            else:
                part[:, :, :, used:] = 0  # keys and theirs: (layers, heads, ..., 16)
            body += part.tobytes()
    path.write_bytes(body + hashlib.sha256(body).digest())


@pytest.fixture
def saved_1(model, tmp_path):
    """A file of `IDS`, of version 1."""
    with model.session() as session:
        session.forward(IDS)
        version_1(session._sequence, tmp_path / "saved-1", **about(model, "f16"))
    return tmp_path / "saved-1"


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
@pytest.mark.parametrize("n", [0, 1, 16, 23])
def test_version_1_is_read_and_saved_again_as_the_present_one(model, tmp_path, kv_type, n):
    ids = list(range(5, 5 + n))
    with model.session(kv_type=kv_type) as session:
        if ids:
            session.forward(ids)
        version_1(session._sequence, tmp_path / "old", **about(model, kv_type))
        session.save(tmp_path / "new")
        expected = logits_of(session, [7, 8, 9])

    with model.load_session(tmp_path / "old", kv_type=kv_type) as loaded:
        assert loaded.tokens == ids
        loaded.save(tmp_path / "again")
        np.testing.assert_array_equal(logits_of(loaded, [7, 8, 9]), expected)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "new").read_bytes()


def test_the_header_says_what_follows(saved):
    content = saved.read_bytes()
    header, start = header_of(content)
    assert header["page_size"] == 16
    assert header["groups"] == [
        {
            "kind": "kv",
            "n_layers": 2,
            "n_kv_heads": 2,
            "head_dim": 8,
            "page_bytes": 2048,
            "first_page": 0,
            "n_pages": 2,
        }
    ]
    assert len(content) == start + 2 * 2048 + 32


# ---- several groups of layers, as no model of the fixtures has ----

ABOUT = {"model": "of this test", "compute": "f32", "kv_type": "int8"}


def empty_sequence(*sizes):
    pools = [PagePool(*of, "int8", budget=1 << 16, group=i) for i, of in enumerate(sizes)]
    return SequenceStore(pools, evaluator=None).new()


def of_random_pages(n, *sizes):
    sequence, rng = empty_sequence(*sizes), np.random.default_rng(n)
    sequence.reserve(n)
    for pool, table in zip(sequence.store.pools, sequence.tables, strict=True):
        for entry in range(len(table)):
            for part in pool.pages.page(table[entry]):
                part[...] = rng.integers(-99, 99, part.shape)
    sequence.commit(list(range(n)))
    return sequence


def read_into(sequence, path):
    about = {**ABOUT, "model": lambda _version: ABOUT["model"]}
    session_file.read_session(path, sequence, Sequence.reserve, n_ctx=64, n_vocab=64, **about)


def bytes_of(sequence):
    """All its pages, group by group."""
    tables = zip(sequence.store.pools, sequence.tables, strict=True)
    pages = (pool.pages.page(table[i]) for pool, table in tables for i in range(len(table)))
    return b"".join(part.tobytes() for page in pages for part in page)


def test_groups_follow_one_another(tmp_path):
    sizes = ((2, 2, 8), (1, 1, 64), (3, 1, 6))
    sequence, loaded = of_random_pages(48, *sizes), empty_sequence(*sizes)
    session_file.write_session(tmp_path / "file", sequence, **ABOUT)
    read_into(loaded, tmp_path / "file")

    assert loaded.ids == sequence.ids
    assert bytes_of(loaded) == bytes_of(sequence)
    content = (tmp_path / "file").read_bytes()
    header, start = header_of(content)
    assert [(group["head_dim"], group["n_pages"]) for group in header["groups"]] == [
        (8, 3),
        (64, 3),
        (6, 3),
    ]
    assert content[start:-32] == bytes_of(sequence)


def test_what_was_truncated_is_in_no_group(tmp_path):
    sizes = ((2, 2, 8), (1, 1, 64))
    sequence, loaded = of_random_pages(48, *sizes), empty_sequence(*sizes)
    sequence.truncate(37)
    session_file.write_session(tmp_path / "file", sequence, **ABOUT)
    read_into(loaded, tmp_path / "file")

    for pool, table in zip(loaded.store.pools, loaded.tables, strict=True):
        k, v, k_scales, v_scales = pool.pages.page(table[2])
        for part in (k[..., 5:], v[..., 5:, :], k_scales[..., 5:], v_scales[..., 5:, :]):
            assert not part.any()
        assert all(part.any() for part in (k, v, k_scales, v_scales))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((2, 2, 8),), "has 2 groups of layers, but this model has 1"),
        (((2, 2, 8), (1, 1, 64), (1, 1, 64)), "has 2 groups of layers, but this model has 3"),
        (((2, 2, 8), (2, 1, 64)), "group 1 has n_layers=1, but .* n_layers=2"),
        (((2, 2, 8), (1, 2, 64)), "group 1 has n_kv_heads=1, but .* n_kv_heads=2"),
        (((2, 2, 8), (1, 1, 32)), "group 1 has head_dim=64, but .* head_dim=32"),
        (((1, 1, 64), (2, 2, 8)), "group 0 has n_layers=2, but .* n_layers=1"),
    ],
)
def test_groups_of_another_model(tmp_path, sizes, message):
    session_file.write_session(
        tmp_path / "file", of_random_pages(20, (2, 2, 8), (1, 1, 64)), **ABOUT
    )
    with pytest.raises(CheckpointError, match=message):
        read_into(empty_sequence(*sizes), tmp_path / "file")


def test_version_1_has_one_group(tmp_path):
    version_1(of_random_pages(20, (2, 2, 8)), tmp_path / "file", **ABOUT)
    read_into(empty_sequence((2, 2, 8)), tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"version 1, which has one group .* model has 2"):
        read_into(empty_sequence((1, 2, 8), (1, 2, 8)), tmp_path / "file")


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


@pytest.mark.parametrize("version", ["saved", "saved_1"])
def test_every_cut_is_noticed(model, version, request, tmp_path):
    content = request.getfixturevalue(version).read_bytes()
    _, pages = header_of(content)
    # Byte by byte through the header, and at and beside each page and the digest.
    edges = {at + d for at in range(pages, len(content), 2048) for d in (-1, 0, 1)}
    digest = range(len(content) - 33, len(content))
    for n in sorted({*range(1, pages), *range(pages, len(content), 97), *edges, *digest}):
        (tmp_path / "cut").write_bytes(content[:n])
        with pytest.raises(CheckpointError):
            model.load_session(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="cut or damaged"):
        model.load_session(tmp_path / "cut")


@pytest.mark.parametrize("version", ["saved", "saved_1"])
def test_every_damaged_byte_is_noticed(model, version, request, tmp_path):
    content = request.getfixturevalue(version).read_bytes()
    _, pages = header_of(content)
    for at in (*range(pages), *range(pages, len(content), 61), len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises((CheckpointError, ContextOverflow)):
            model.load_session(tmp_path / "damaged")


def test_versions_are_not_mistaken_for_each_other(model, saved, saved_1, tmp_path):
    for file, version in ((saved, 1), (saved, 2), (saved_1, 2), (saved, 0), (saved, 4)):
        content = bytearray(file.read_bytes())
        content[8] = version
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"header has|another model|of version [04], .* 1 to 3"
        ):
            model.load_session(tmp_path / "file")


def forged(content, **changes):
    """The file with another header, and a digest that agrees."""
    header, start = header_of(content)
    for name, value in changes.items():
        if value is None:
            del header[name]
        else:
            header[name] = value
    text = json.dumps(header).encode()
    body = content[:12] + struct.pack("<I", len(text)) + text + content[start:-32]
    return body + hashlib.sha256(body).digest()


def refuse_to_load(model, path, monkeypatch, message):
    """The file is refused, and no page was asked for."""

    def reserve(_sequence, _n):
        pytest.fail("pages were taken for a file that is refused")

    with monkeypatch.context() as patch:
        patch.setattr(Sequence, "reserve", reserve)
        with pytest.raises(CheckpointError, match=message):
            model.load_session(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"tokens": [0] * 22 + [288]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [-1]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [True]}, "ids from 0 to 287"),
        ({"tokens": [0] * 22 + [1.0]}, "ids from 0 to 287"),
        ({"tokens": "0" * 23}, "ids from 0 to 287"),
        ({"tokens": [0] * 33}, "n_pages=2, but 33 tokens of this model have n_pages=3"),
        ({"tokens": [0] * 16}, "n_pages=2, but 16 tokens of this model have n_pages=1"),
        ({"tokens": None}, "header has no 'tokens'"),
        ({"mood": 1}, "header has 'mood', which this rml does not know"),
        ({"model": 5}, "another model"),
        ({"kv_type": "int8"}, "kv_type"),
        ({"page_size": 32}, "pages of 32 positions, but this rml has pages of 16"),
        ({"page_size": "16"}, "pages of '16' positions"),
        ({"page_size": None}, "header has no 'page_size'"),
        ({"groups": None}, "header has no 'groups'"),
        ({"groups": {}}, "groups are no list"),
        ({"groups": []}, "0 groups of layers, but this model has 1"),
        ({"groups": [5]}, "group 0 is no object, but 5"),
        ({"groups": [{}] * 100_000}, "100000 groups"),
    ],
)
def test_forged_headers(model, saved, tmp_path, monkeypatch, changes, message):
    (tmp_path / "forged").write_bytes(forged(saved.read_bytes(), **changes))

    if message is None:
        model.load_session(tmp_path / "forged").close()
    else:
        refuse_to_load(model, tmp_path / "forged", monkeypatch, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "state"}, "group 0 is of kind 'state', but this model has 'kv'"),
        ({"kind": "state", "position": 23, "n_pages": None}, "of kind 'state'"),
        ({"kind": ["kv"]}, "of kind"),
        ({"kind": None}, "group 0 has no 'kind'"),
        ({"window": 16}, "group 0 has 'window', which this rml does not know"),
        ({"head_dim": None}, "group 0 has no 'head_dim'"),
        ({"n_layers": 1, "head_dim": 16}, "group 0 has n_layers=1, but"),
        ({"n_kv_heads": 1, "head_dim": 16}, "group 0 has n_kv_heads=1, but"),
        ({"head_dim": "8"}, "group 0 has head_dim='8', but"),
        ({"page_bytes": 4096, "n_pages": 1}, "group 0 has page_bytes=4096, but"),
        ({"first_page": 1}, "group 0 has first_page=1, but .* first_page=0"),
        ({"first_page": False}, "group 0 has first_page=False, but"),
        ({"n_pages": 2.0}, "group 0 has n_pages=2.0, but"),
        ({"n_pages": 2**62}, "group 0 has n_pages=4611686018427387904, but"),
        ({"n_pages": 10**4000}, r"group 0 has n_pages=1000.*\.\.\..*000, but"),
        ({"n_pages": -1}, "group 0 has n_pages=-1, but"),
        ({"first_page": -(2**63), "n_pages": 2**63 + 2}, "group 0 has first_page=-92"),
    ],
)
def test_forged_groups(model, saved, tmp_path, monkeypatch, changes, message):
    content = saved.read_bytes()
    (group,) = header_of(content)[0]["groups"]
    group = {name: x for name, x in (group | changes).items() if x is not None}
    (tmp_path / "forged").write_bytes(forged(content, groups=[group]))

    refuse_to_load(model, tmp_path / "forged", monkeypatch, message)


def test_groups_that_are_null_are_not_those_of_version_1(model, saved, tmp_path):
    header = json.dumps({**header_of(saved.read_bytes())[0], "groups": None}).encode()
    body = struct.pack("<8sII", b"RMLSESS\0", 2, len(header)) + header + bytes(2 * 2048)
    (tmp_path / "file").write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(CheckpointError, match="groups are no list"):
        model.load_session(tmp_path / "file")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"tokens": [0] * 33}, "33 tokens of this model need"),
        ({"tokens": [0] * 16}, "16 tokens of this model need"),
        ({"tokens": [0] * 22 + [288]}, "ids from 0 to 287"),
        ({"groups": []}, "header has 'groups', which this rml does not know"),
        ({"page_size": 16}, "header has 'page_size'"),
        ({"model": None}, "header has no 'model'"),
    ],
)
def test_forged_headers_of_version_1(model, saved_1, tmp_path, monkeypatch, changes, message):
    (tmp_path / "forged").write_bytes(forged(saved_1.read_bytes(), **changes))

    if message is None:
        model.load_session(tmp_path / "forged").close()
    else:
        refuse_to_load(model, tmp_path / "forged", monkeypatch, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF" + bytes(100), "no session"),
        (b"RMLSESS\0", "no session"),
        (struct.pack("<8sII", b"RMLSESS\0", 0, 5) + bytes(50), "version 0, .* 1 to 3"),
        (struct.pack("<8sII", b"RMLSESS\0", 4, 5) + bytes(50), "version 4, .* 1 to 3"),
        (struct.pack("<8sII", b"RMLSESS\0", 1, 2**32 - 1) + bytes(50), "cut or damaged"),
        (struct.pack("<8sII", b"RMLSESS\0", 2, 2**32 - 1) + bytes(50), "cut or damaged"),
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
        ("/dev/full", "No space"),
        ("link-to-full", "No space"),
        ("socket", "a socket"),
        ("x" * 300, "too long"),
    ],
)
def test_places_where_no_file_can_be(model, saved, tmp_path, place, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link-to-full").symlink_to("/dev/full")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    before = saved.read_bytes()
    path = tmp_path / place
    with model.session() as session:
        session.forward(IDS)
        with pytest.raises(SaveError, match=f"^{path}: .*{message}"):
            session.save(path)
        session.save(saved)  # it is usable, and nothing has changed
    assert saved.read_bytes() == before
    assert Path("/dev/full").is_char_device()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "folder",
        "link-to-full",
        "saved",
        "socket",
    ]


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

        monkeypatch.setattr(os, "open", refuse)
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


@pytest.mark.parametrize("umask", [0, 0o077, 0o777])
def test_only_the_owner_may_read_it(model, tmp_path, umask):
    for name in ("new", "old"):
        (tmp_path / "old").touch(0o666)
        (tmp_path / "old").chmod(0o666)
        before = os.umask(umask)
        try:
            with model.session() as session:
                session.forward([1])
                session.save(tmp_path / name)
        finally:
            os.umask(before)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_to(model, saved, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    with model.session() as session:
        session.forward(IDS)
        for path in (pipe, tmp_path / "link"):
            with pytest.warns(UserWarning, match=f"{path}: nobody reads this pipe") as said:
                session.save(path)
            assert said[0].filename == __file__
            assert pipe.is_fifo()
        read = []
        # To read and write at once does not wait for a writer, and so is there in time.
        reader = os.open(pipe, os.O_RDWR)
        n = saved.stat().st_size
        assert n < 1 << 16  # a pipe holds so much
        session.save(pipe)
        while sum(map(len, read)) < n:
            read.append(os.read(reader, n))
        os.close(reader)
        content = b"".join(read)
    assert content == saved.read_bytes()
    assert pipe.is_fifo()


def test_a_device_is_written_to(model):
    with model.session() as session:
        session.forward([1])
        session.save("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_what_was_left_by_a_killed_process_is_removed(model, tmp_path):
    """Unless somebody is at work on it, or may be."""
    for name in ("left", "locked", "fresh"):
        (tmp_path / f".rml-{name}.tmp").write_bytes(b"half a session")
        if name != "fresh":
            os.utime(tmp_path / f".rml-{name}.tmp", (1e9, 1e9))
    (tmp_path / ".rml-folder.tmp").mkdir()
    os.utime(tmp_path / ".rml-folder.tmp", (1e9, 1e9))
    (tmp_path / "other.tmp").touch()
    os.utime(tmp_path / "other.tmp", (1e9, 1e9))
    with (tmp_path / ".rml-locked.tmp").open("rb") as locked, model.session() as session:
        fcntl.flock(locked.fileno(), fcntl.LOCK_EX)
        session.forward([1])
        session.save(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".rml-folder.tmp",
        ".rml-fresh.tmp",
        ".rml-locked.tmp",
        "file",
        "other.tmp",
    ]


def test_a_save_that_is_killed(tmp_path):
    code = f"""
import os, rml
from rml.engine import session_file
model = rml.load({str(LLAMA)!r}, n_threads=1)
session = model.session()
session.forward([1, 2])
os.replace = None
def die(*_):
    os.kill(os.getpid(), 9)
os.fsync = die
session.save({str(tmp_path / "file")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    (left,) = tmp_path.iterdir()
    os.utime(left, (1e9, 1e9))
    with rml.load(LLAMA, n_threads=1) as model, model.session() as session:
        session.save(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_folder_is_brought_to_the_disk_after_the_file(model, tmp_path, monkeypatch):
    kinds = []

    def noted(descriptor):
        kinds.append(stat.S_IFMT(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", noted)
    with model.session() as session:
        session.save(tmp_path / "file")
    assert kinds == [stat.S_IFREG, stat.S_IFDIR]


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
    checkpoint = model._checkpoint

    def of(n_ctx=64, tokenizer="this one", **changes):
        config = dataclasses.replace(model.config, **changes)
        return session_file.fingerprint(checkpoint, config, n_ctx, tokenizer)

    assert of() == of(n_ctx=128)
    assert of() != of(norm_eps=1e-3)
    assert of() != of(tokenizer="another one")
    dynamic = RopeScaling(type="dynamic", factor=2.0, original_context=32)
    assert of(rope_scaling=dynamic) != of(rope_scaling=dynamic, n_ctx=128)


@pytest.fixture
def other_weights(tmp_path):
    """The model with other values, but for those that versions 1 and 2 look at."""
    path = tmp_path / "other.gguf"
    content = bytearray(LLAMA.read_bytes())
    with rml.open_checkpoint(LLAMA) as checkpoint:
        for tensor in checkpoint.tensors.values():
            n = tensor.n_bytes
            for first, last in ((64, n // 2), (n // 2 + 64, n - 64)):
                for at in range(tensor.start + first, tensor.start + last, 2):
                    content[at + 1] ^= 0x80
    path.write_bytes(content)
    with rml.load(path, n_threads=1) as model:
        yield model


def test_a_model_with_other_weights(model, other_weights, saved, saved_1, caplog):
    with pytest.raises(CheckpointError, match="another model"):
        other_weights.load_session(saved)
    # Files of older versions know no better.
    other_weights.load_session(saved_1).close()
    assert "other weights" in caplog.text
    assert model._sessions.fingerprint(2) == other_weights._sessions.fingerprint(2)


def test_a_model_with_another_tokenizer(model, saved, tmp_path):
    """One token reads otherwise; all weights are the same."""
    content = LLAMA.read_bytes()
    text = next(t for t in model.tokenizer._tokens if t.isascii() and len(t) > 1 and t.isalpha())
    length = struct.pack("<Q", len(text))
    assert content.count(length + text.encode()) == 1
    (tmp_path / "other.gguf").write_bytes(
        content.replace(length + text.encode(), length + text.swapcase().encode())
    )
    with (
        rml.load(tmp_path / "other.gguf", n_threads=1) as loaded,
        pytest.raises(CheckpointError, match="another model"),
    ):
        loaded.load_session(saved)


def test_the_version_belongs_to_the_layout_of_pages():
    """Where this fails, pages have changed, and `session_file.VERSION` must change, too.

    Versions 1 to 3 have the same pages; none can be read as it is any more then.
    """
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

    assert (session_file.VERSION, digest.hexdigest()[:16]) == (3, "5a79e4c0afbe9ee4")


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
            # Whoever is idle gives way, keeps its tokens, and is evaluated again when it goes on.
            five = session.forward([5])
            assert (session.position, fork.position) == (33, 48)
            session.truncate(32)
            fork.truncate(47)
            four = fork.forward([4])
            fork.truncate(47)
            with pytest.raises(OutOfMemory, match=r"fill their 6,144 bytes .*larger kv_memory"):
                forward_together([session, fork], [[5] * 16, [4]])
        session.forward([5] * 16)
        with rml.load(LLAMA) as ample, ample.session() as alone:
            alone.forward([3] * 32)
            np.testing.assert_array_equal(alone.forward([5]), five)
            alone.truncate(32)
            np.testing.assert_array_equal(alone.forward([4] * 16), four)
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

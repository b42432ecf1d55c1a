"""The digest of a model's weights: of every byte, and made once."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import rml
from rml.files import digests
from rml.files.digests import tensors_digest

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LLAMA = FIXTURES / "llama" / "model.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RML_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "digests"


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copy(LLAMA, tmp_path / "model.gguf"))


@pytest.fixture
def made(monkeypatch):
    """How often one was made and could be kept."""
    calls, remember = [], digests._remember

    def noted(*args):
        calls.append(args)
        remember(*args)

    monkeypatch.setattr(digests, "_remember", noted)
    return calls


def digest(path, **kwargs):
    with rml.open_checkpoint(path) as checkpoint:
        return tensors_digest(checkpoint, **kwargs)


def test_it_is_of_names_shapes_types_and_bytes(model):
    expected = hashlib.sha256()
    with rml.open_checkpoint(model) as checkpoint:
        for name, tensor in sorted(checkpoint.tensors.items()):
            expected.update(repr((name, tensor.shape, tensor.type)).encode())
            expected.update(hashlib.sha256(tensor.data.tobytes()).digest())
    assert digest(model) == expected.hexdigest()


@pytest.mark.parametrize("n_threads", [2, 5])
def test_threads_change_nothing(model, cache, n_threads):
    one = digest(model)
    shutil.rmtree(cache)
    assert digest(model, n_threads=n_threads) == one


def test_every_tensor_counts_to_the_last_byte(model):
    found = {digest(model)}
    with rml.open_checkpoint(model) as checkpoint:
        places = [
            at for t in checkpoint.tensors.values() for at in (t.start, t.start + t.n_bytes - 1)
        ]
    content = model.read_bytes()
    for at in places:
        changed = bytearray(content)
        changed[at] ^= 1
        model.write_bytes(changed)
        found.add(digest(model))
    assert len(found) == 1 + len(places)


def test_it_is_made_once(model, made):
    assert digest(model) == digest(model)
    assert len(made) == 1


def test_a_file_that_was_written_to_is_read_again(model, made):
    digest(model)
    os.utime(model, (1e9, 1e9))
    digest(model)
    other = model.with_name("other")
    shutil.copy2(model, other)
    other.replace(model)  # the same size and time, but another file
    digest(model)
    assert len(made) == 3


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b'{"files": [], "sha256": "x"}', b"[" * 100_000]
)
def test_a_damaged_memory_is_made_anew(model, cache, made, content):
    one = digest(model)
    (file,) = cache.iterdir()
    file.write_bytes(content)
    assert digest(model) == one
    assert len(made) == 2
    assert json.loads(file.read_text())["sha256"] == one


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_of_ours_is_not_read(model, cache, made, kind):
    one = digest(model)
    (file,) = cache.iterdir()
    if kind == "link":
        file.rename(cache / "other")
        file.symlink_to("other")
    else:
        file.unlink()
        os.mkfifo(file) if kind == "pipe" else file.mkdir()
    assert digest(model) == one
    assert len(made) == 2


def test_where_the_cache_cannot_be_written(model, cache, made):
    cache.parent.mkdir()
    cache.write_text("a file")
    assert digest(model) == digest(model)
    assert len(made) == 2


def test_files_that_change_while_they_are_read(model, monkeypatch, made):
    make = digests._made

    def changing(*args):
        found = make(*args)
        os.utime(model, (1e9, 1e9))
        return found

    monkeypatch.setattr(digests, "_made", changing)
    with pytest.raises(rml.CheckpointError, match="changed while it was in use"):
        digest(model)
    assert made == []


def test_a_file_that_has_another_one_s_place_now(model, made):
    """What is remembered is of the file that was read, not of what has its name."""
    one = digest(model)
    shutil.rmtree(digests.cache_dir())
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    with rml.open_checkpoint(model) as checkpoint:
        model.with_name("new").write_bytes(content)
        model.with_name("new").replace(model)
        assert tensors_digest(checkpoint) == one
        assert digest(model) != one
        model.unlink()
        assert tensors_digest(checkpoint) == one


def test_a_copy_in_memory_needs_no_file(model, made):
    one = digest(model)
    with rml.open_checkpoint(model, mmap=False) as checkpoint:
        model.unlink()
        assert tensors_digest(checkpoint) == one
    assert len(made) == 1

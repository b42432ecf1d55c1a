"""What holds for every checkpoint: life and death of the mapping, configuration, arguments."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml.errors import ArgumentError, CheckpointError, ClosedError
from rml.files import open_checkpoint


@pytest.fixture(params=["gguf", "safetensors"])
def model(request, make, write):
    """A file of 32 MB with one tensor 'w' of ones."""
    data = np.ones(8 << 20, "<f4").tobytes()
    if request.param == "gguf":
        return write(make.gguf([], [make.tensor("w", [8 << 20], 0, 0)], data))
    header = {"w": make.entry("F32", [8 << 20], 0, len(data))}
    return write(make.safetensors(header, data), "model.safetensors")


def resident_mb(kind="RssFile"):
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(kind))
    return int(line.split()[1]) / 1024


def test_closed(model):
    checkpoint = open_checkpoint(model)
    tensor = checkpoint.tensors["w"]
    assert not checkpoint.closed

    checkpoint.close()
    checkpoint.close()

    assert checkpoint.closed
    assert checkpoint.path == model
    assert repr(checkpoint) == f"<Checkpoint {str(model)!r}, closed>"
    for use in (
        lambda: checkpoint.metadata,
        lambda: checkpoint.tensors,
        lambda: checkpoint.config,
        checkpoint.__enter__,
        lambda: tensor.data,
        tensor.numpy,
    ):
        with pytest.raises(ClosedError, match=model.name):
            use()
    assert (tensor.name, tensor.shape, tensor.type) == ("w", (8 << 20,), "F32")


def test_with_closes_also_after_an_error(model):
    with pytest.raises(KeyError), open_checkpoint(model) as checkpoint:
        checkpoint.tensors["absent"]

    assert checkpoint.closed


def test_close_gives_the_pages_back(model):
    gc.collect()
    before = resident_mb()
    checkpoint = open_checkpoint(model)
    assert int(checkpoint.tensors["w"].data.max()) == 128  # touches every page
    assert resident_mb() > before + 25

    checkpoint.close()

    assert resident_mb() < before + 5


def test_a_view_outlives_the_checkpoint_and_then_gives_its_pages_back(model):
    gc.collect()
    before = resident_mb()
    checkpoint = open_checkpoint(model)
    view = checkpoint.tensors["w"].data
    part = view[4:8]

    checkpoint.close()

    assert int(view.max()) == 128
    assert resident_mb() > before + 25
    del view
    assert part.view("<f4")[0] == 1
    del part
    assert resident_mb() < before + 5


def test_dropping_without_close_gives_the_pages_back(model):
    before = resident_mb()

    assert int(open_checkpoint(model).tensors["w"].data.max()) == 128

    assert resident_mb() < before + 5


def test_opening_copies_no_data(model):
    before = resident_mb("RssAnon")

    with open_checkpoint(model) as checkpoint:
        assert int(checkpoint.tensors["w"].data.max()) == 128
        assert resident_mb("RssAnon") < before + 4


def test_a_failed_open_leaves_nothing_open(model):
    fds = Path("/proc/self/fd")
    if not fds.exists():
        pytest.skip("needs /proc")
    model.write_bytes(model.read_bytes()[:-1])
    before = len(list(fds.iterdir()))

    errors = []  # whose tracebacks keep every local variable alive
    for _ in range(5):
        with pytest.raises(CheckpointError, match="1 bytes are missing") as caught:
            open_checkpoint(model)
        errors.append(caught.value)

    assert all(error.__traceback__ for error in errors)
    assert len(list(fds.iterdir())) == before


def test_numpy_returns_a_writable_copy(model):
    with open_checkpoint(model) as checkpoint:
        values = checkpoint.tensors["w"].numpy()
    values[0] = 5

    assert values[:2].tolist() == [5, 1]
    with open_checkpoint(model) as checkpoint:
        assert checkpoint.tensors["w"].numpy()[0] == 1


def test_views_cannot_be_written_or_made_writable(model):
    with open_checkpoint(model) as checkpoint:
        view = checkpoint.tensors["w"].data
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True


def test_mappings_cannot_be_changed(model):
    with open_checkpoint(model) as checkpoint:
        for mapping in (checkpoint.metadata, checkpoint.tensors):
            with pytest.raises(TypeError):
                mapping["x"] = 1
        with pytest.raises(AttributeError):
            checkpoint.tensors["w"].name = "x"


def test_the_content_decides_not_the_name(make, write):
    gguf = write(make.gguf([make.u32("k", 1)]), "a.safetensors")
    other = write(make.safetensors({"w": make.entry("U8", [1], 0, 1)}, b"x"), "b.gguf")

    with open_checkpoint(gguf) as checkpoint:
        assert checkpoint.format == "gguf"
    with open_checkpoint(other) as checkpoint:
        assert checkpoint.format == "safetensors"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_config(make, write, kind):
    write(
        json.dumps({"model_type": "llama", "limits": [0.0, float("inf")]}).encode(), "config.json"
    )
    path = write(make.safetensors({"w": make.entry("U8", [1], 0, 1)}, b"x"), "model.safetensors")

    with open_checkpoint(path if kind == "file" else path.parent) as checkpoint:
        assert checkpoint.config == {"model_type": "llama", "limits": [0.0, float("inf")]}


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000])
def test_a_broken_config(make, write, text):
    write(text, "config.json")
    path = write(make.safetensors({"w": make.entry("U8", [1], 0, 1)}, b"x"), "model.safetensors")

    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(path.parent)


@pytest.mark.parametrize("path", [None, 7, b"model.gguf", ["model.gguf"]])
def test_arguments_that_are_no_paths(path):
    with pytest.raises(ArgumentError, match="path"):
        open_checkpoint(path)


def test_path_like_and_relative_paths(make, write, monkeypatch):
    path = write(make.gguf([make.u32("k", 1)]))
    monkeypatch.chdir(path.parent)

    with open_checkpoint("model.gguf") as checkpoint:
        assert checkpoint.path == Path("model.gguf")
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == path


def test_symbolic_links_are_followed(make, write):
    """As in the Hugging Face cache, whose files are links to blobs elsewhere."""
    blob = write(make.safetensors({"w": make.entry("U8", [1], 0, 1)}, b"x"), "abcdef")
    folder = blob.parent / "snapshot"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(blob)

    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors["w"].numpy().tolist() == [120]


def test_a_process_that_closes_nothing_ends_silently(model):
    code = (
        f"import rml.files; c = rml.files.open_checkpoint({str(model)!r}); d = c.tensors['w'].data"
    )
    env = os.environ | {"RML_PURE": "1"}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

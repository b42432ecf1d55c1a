"""What people take for a model, and folders that hold none: refused by name, with advice."""

import errno
import os
import pickle
import socket
import struct
import zipfile
from pathlib import Path

import pytest

from rml.errors import CheckpointError, RmlError, UnsupportedModel
from rml.files import open_checkpoint


def refused(path, error, *words):
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "model.bin"])
@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", CheckpointError, ["empty", "0 bytes"]),
        (LFS, CheckpointError, ["starts with 'version https://git-lfs'", "git lfs pull"]),
        (b"<!DOCTYPE html>\n<html>", CheckpointError, ["not a model", "<!DOCTYPE html>", "web"]),
        (b"\r\n  <html><head>", CheckpointError, ["not a model", "<html>", "web page"]),
        (b"\xef\xbb\xbf<?xml version='1.0'?>", CheckpointError, ["<?xml", "web page"]),
        (b"Entry not found", CheckpointError, ["not a model", "Entry not found"]),
        (b'{"error": "gated"}', CheckpointError, ["not a model", "gated"]),
        (("x" + "é" * 300).encode(), CheckpointError, ["not a model", "xéé"]),  # cut in a letter
        (b"lmgg" + bytes(60), UnsupportedModel, ["GGML", "convert"]),
        (b"tjgg" + struct.pack("<I", 3) + bytes(60), UnsupportedModel, ["GGJT", "convert"]),
        (b"fmgg" + bytes(60), UnsupportedModel, ["GGMF", "convert"]),
        (b"algg" + bytes(60), UnsupportedModel, ["LoRA"]),
        (pickle.dumps({"w": [1.0]}, 2), UnsupportedModel, ["pickle", "convert it to safetensors"]),
        (pickle.dumps({"w": [1.0]}, 4), UnsupportedModel, ["pickle", "convert it to safetensors"]),
        (b"\x1f\x8b\x08\0" + bytes(30), UnsupportedModel, ["gzip", "unpack"]),
        (struct.pack("<ii", 2, 18) + b"blk.0.attn_k.weight", UnsupportedModel, ["imatrix"]),
    ],
)  # fmt: skip
def test_by_first_bytes(write, name, data, error, words):
    refused(write(data, name), error, *words)


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin", "model.pt"])
def test_pytorch_archives(tmp_path, name):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))

    refused(tmp_path / name, UnsupportedModel, "PyTorch", "convert it to safetensors")


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xfe\x00\x01" * 9, b"XXXX" + bytes(60)])
def test_unknown_bytes(write, data):
    refused(write(data), CheckpointError, "neither", data[:8].hex(" "))


def test_a_header_length_that_looks_like_a_pickle(make, write):
    """640 is 80 02, the first bytes of a pickle."""
    head = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'.ljust(640)

    with open_checkpoint(write(make.safetensors(head, b"x"))) as checkpoint:
        assert checkpoint.tensors["w"].numpy().tolist() == [120]


def test_missing_files(write):
    path = write(b"", "SmolLM2-135M.Q4_1.gguf")

    refused(path.with_name("SmolLM2-135M-Q4_1.gguf"), CheckpointError, "no such", path.name)
    refused(path.parent / "no" / "such.gguf", CheckpointError, "no such")
    with pytest.raises(CheckpointError, match="not a file name"):
        open_checkpoint("a\0b")


def test_things_that_are_not_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s.gguf"))

        refused(tmp_path / "pipe.gguf", CheckpointError, "not a regular file")
        refused(tmp_path / "s.gguf", CheckpointError, "not a regular file")
    refused("/dev/null", CheckpointError, "not a regular file")


def test_files_that_may_not_be_read(write, monkeypatch):
    """The refusal is put on, since root may read everything."""
    path = write(b"GGUF")

    def refuse(self, mode):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)

    refused(path, CheckpointError, "cannot be read", "Permission denied")


@pytest.fixture
def folder(tmp_path):
    """A folder that holds empty files of the given names."""

    def _folder(*names):
        for name in names:
            (tmp_path / name).write_bytes(b"")
        return tmp_path

    return _folder


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ([], CheckpointError, ["no model", "model.safetensors", ".gguf"]),
        (["README.md", "tokenizer.json"], CheckpointError, ["no model"]),
        (["pytorch_model.bin", "config.json"], UnsupportedModel, ["pickle", "safetensors"]),
        (["model.pth"], UnsupportedModel, ["pickle", "safetensors"]),
        (["a.gguf", "b.gguf"], CheckpointError, ["2 models", "a.gguf, b.gguf"]),
        (["a.safetensors", "b.safetensors"], CheckpointError, ["2 models"]),
        (["m-00002-of-00002.gguf"], CheckpointError, ["m-00001-of-00002.gguf", "missing"]),
        (["snapshots", "refs"], CheckpointError, ["cache", "snapshots"]),
    ],
)
def test_folders_without_a_model(folder, names, error, words):
    refused(folder(*names), error, *words)


@pytest.mark.parametrize("weights", [[], ["adapter_model.safetensors"], ["adapter_model.bin"]])
def test_adapter_folders(folder, weights):
    path = folder("README.md", *weights)
    (path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')

    refused(path, UnsupportedModel, "adapter of org/base")


def test_a_folder_with_one_gguf(make, folder):
    path = folder("README.md")
    (path / "model.gguf").write_bytes(make.gguf([make.u32("k", 1)]))
    (path / "mmproj-model.gguf").write_bytes(b"not looked at")

    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == path / "model.gguf"
        assert checkpoint.format == "gguf"


def test_a_folder_with_both_formats_is_safetensors(make, folder):
    path = folder("a.gguf", "b.gguf")
    (path / "model.safetensors").write_bytes(make.safetensors({}))

    with open_checkpoint(path) as checkpoint:
        assert checkpoint.path == path
        assert checkpoint.format == "safetensors"


def test_a_git_clone_without_lfs(folder):
    path = folder("config.json")
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(LFS)

    with pytest.raises(RmlError, match="git lfs pull"):
        open_checkpoint(path)

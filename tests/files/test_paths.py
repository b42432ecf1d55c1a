"""Paths at which something else lies than a file: every fault is rml's own, and names the file."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

import rml
from rml.errors import ArgumentError, CheckpointError, RmlError, SaveError
from rml.files import pull
from rml.files.local import find
from rml.files.paths import given_path, is_folder, is_there

LLAMA = Path(__file__).resolve().parent.parent / "fixtures" / "llama" / "hf"

# What lies where a file should be.
THINGS = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "empty file": lambda path: path.write_bytes(b""),
    "binary file": lambda path: path.write_bytes(bytes(range(256))),
}


@pytest.fixture
def folder(tmp_path):
    """`folder(name, make)`: a model, in whose folder something else lies under a name."""

    def build(name, make):
        target = tmp_path / "model"
        shutil.copytree(LLAMA, target)
        (target / name).unlink(missing_ok=True)
        make(target / name)
        return target

    return build


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json",
     "tokenizer_config.json", "special_tokens_map.json"],
)  # fmt: skip
def test_a_file_of_a_model_that_cannot_be_read_is_never_passed_over(folder, name, thing):
    path = folder(name, THINGS[thing])

    with pytest.raises(RmlError) as caught:
        rml.load(path)
    assert name in str(caught.value)


@pytest.mark.parametrize("thing", [thing for thing in THINGS if thing != "empty file"])
@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/a.jinja"])
def test_templates_that_cannot_be_read(folder, name, thing):
    def make(path):
        path.parent.mkdir(exist_ok=True)
        THINGS[thing](path)

    with pytest.raises(RmlError, match=name):
        rml.load(folder(name, make))


@pytest.mark.parametrize("thing", ["pipe", "link to itself", "link to nothing", "endless device"])
@pytest.mark.parametrize("use", [rml.load, rml.open_checkpoint, rml.load_tokenizer])
@pytest.mark.parametrize("name", ["a.gguf", "model.safetensors", "tokenizer.json"])
def test_what_is_no_file(tmp_path, name, use, thing):
    THINGS[thing](tmp_path / name)

    with pytest.raises(RmlError, match=tmp_path.name):
        use(tmp_path / name)


@pytest.mark.parametrize("use", [rml.load, rml.open_checkpoint, rml.load_tokenizer])
@pytest.mark.parametrize(
    "path", ["x" * 5000, "x" * 300 + ".json", "a\0b", "\udcff", "~nobody-at-all/x"]
)
def test_names_that_no_file_can_have(use, path):
    with pytest.raises(RmlError):
        use(path)
    with pytest.raises(RmlError):
        use(Path(path))


def test_questions_have_answers(tmp_path):
    (tmp_path / "link").symlink_to("nothing")

    assert is_there(tmp_path / "link")
    assert is_folder(tmp_path)
    for name in ("x", "y" * 5000, "a\0b", "link/x"):
        assert not is_there(tmp_path / name)
        assert not is_folder(tmp_path / name)
    assert given_path("~/x") == Path.home() / "x"
    assert given_path("~nobody-at-all/x") == Path("~nobody-at-all/x")


@pytest.mark.parametrize("use", [rml.load, rml.open_checkpoint, rml.load_tokenizer])
@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("", ArgumentError, "expected, not ''"),
        (b"model.gguf", ArgumentError, "expected, not b'model.gguf'"),
        (b"", ArgumentError, "expected, not b''"),
        (0, ArgumentError, "expected, not 0"),
        (None, ArgumentError, "expected, not None"),
        (["model.gguf"], ArgumentError, "expected, not "),
        ("x" * 5000, CheckpointError, "the name is too long: 5000 bytes"),
        ("a/" + "ü" * 128, CheckpointError, "a part of it has 256 bytes"),
        ("a\0b", CheckpointError, "NUL"),
        ("~\0", CheckpointError, "NUL"),
        ("\ud800", CheckpointError, "is not a file name"),
        ("~nobody-at-all/x", CheckpointError, "~nobody-at-all/x: there is no such file"),
        ("\x1b[31m\u202e\udcff", CheckpointError, r"\\x1b\[31m\\u202e\\udcff: there is no such"),
        (" ", CheckpointError, "there is no such file"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_every_odd_name_is_refused_beside_a_model(tmp_path, monkeypatch, use, name, kind, message):
    """None of them means the model that happens to lie in the current folder."""
    shutil.copy(LLAMA.with_name("model.gguf"), tmp_path)
    shutil.copy(LLAMA / "tokenizer.json", tmp_path)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(kind, match=message) as caught:
        use(name)
    assert len(str(caught.value)) < 300
    str(caught.value).encode()


def test_objects_that_claim_to_be_paths():
    class Raises(os.PathLike):
        def __fspath__(self):
            raise ZeroDivisionError("no path today")

    class Number(os.PathLike):
        def __fspath__(self):
            return 5

    for value, message in ((Raises(), "no path today"), (Number(), "cannot be read: TypeError")):
        with pytest.raises(ArgumentError, match=message):
            given_path(value)
        with pytest.raises(ArgumentError, match=message):
            rml.ChatTemplate.from_file(value)


@pytest.mark.parametrize("use", [find, pull.pull, pull.offer, pull.remove])
@pytest.mark.parametrize("value", [b"smollm2", 5, None, True, ["smollm2"], {}, Path("smollm2")])
def test_a_model_s_name_is_a_text(use, value):
    with pytest.raises(ArgumentError, match="the name of a model is expected, not"):
        use(value)


def test_a_folder_to_pull_into_is_a_path(tmp_path, monkeypatch):
    monkeypatch.setenv("RML_CACHE", str(tmp_path))
    for value in (b"x", 5, ""):
        with pytest.raises(ArgumentError, match="a folder is expected"):
            pull.pull("smollm2", to=value, offline=True)
    with pytest.raises(CheckpointError, match="the name is too long"):
        pull.pull("smollm2", to="x" * 5000, offline=True)


def test_errors_show_control_characters_as_escapes():
    error = RmlError("a\x1b[31m\x00\x9b\u202e\u2028\ud800\tb\nc")
    assert str(error) == "a\\x1b[31m\\x00\\x9b\\u202e\\u2028\\ud800\tb\nc"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(SaveError("\x07")) == "\\x07"

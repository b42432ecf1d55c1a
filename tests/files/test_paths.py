"""Paths at which something else lies than a file: every fault is rml's own, and names the file."""

import os
import shutil
from pathlib import Path

import pytest

import rml
from rml.errors import RmlError
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

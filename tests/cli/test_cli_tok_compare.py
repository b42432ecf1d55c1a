"""rml tok --compare: the first difference between two tokenizers."""

import ast
import json

import pytest

import rml
from rml.cli.nasty_texts import NASTY_TEXTS


@pytest.fixture
def changed(toy_path, tmp_path):
    """Return a function that saves the toy's tokenizer.json with a change."""

    def save(change):
        folder = toy_path.parent / "hf"
        path = tmp_path / "other"
        path.mkdir()
        for file in folder.glob("*.json"):
            (path / file.name).write_bytes(file.read_bytes())
        document = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
        change(document)
        (path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        return path

    return save


def test_two_formats_of_one_tokenizer(rml_command, toy_path):
    result = rml_command("tok", "-m", toy_path, "--compare", toy_path.parent / "hf")

    assert result.exit_code == 0
    assert result.stdout.startswith("the same ids for ")
    assert int(result.stdout.split()[4]) >= len(NASTY_TEXTS)


def test_merges_that_differ(rml_command, toy_path, changed):
    other = changed(lambda document: document["model"]["merges"].pop(0))
    result = rml_command("tok", "-m", toy_path, "--compare", other)

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    text = ast.literal_eval(lines[0].removeprefix("different: "))
    assert text in NASTY_TEXTS
    ids = [rml.load_tokenizer(path).encode(text) for path in (toy_path, other)]
    at = int(lines[1].removeprefix("from token ").removesuffix(" on:"))
    assert ids[0][:at] == ids[1][:at]
    assert ids[0][at] != ids[1][at]
    heads = [f"  {path} ({len(i)} tokens)" for path, i in zip((toy_path, other), ids, strict=True)]
    assert [line for line in lines if line.endswith(" tokens)")] == heads
    shown = [int(line.split()[0]) for line in lines[2:] if line not in heads]
    assert shown == ids[0][at : at + 5] + ids[1][at : at + 5]


def test_a_text_of_ones_own(rml_command, toy_path, changed):
    other = changed(lambda document: document["model"]["merges"].clear())
    same = rml_command("tok", "-m", toy_path, "--compare", other, "q")
    different = rml_command("tok", "-m", toy_path, "--compare", other, "the cat")

    assert (same.exit_code, same.stdout) == (0, "the same ids for 1 text\n")
    assert different.exit_code == 1
    assert "different: 'the cat'" in different.stdout


def test_a_missing_file(rml_command, toy_path, tmp_path):
    result = rml_command("tok", "-m", toy_path, "--compare", tmp_path / "none.gguf")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "none.gguf" in result.stderr


def test_texts_are_different_and_encodable():
    assert len(set(NASTY_TEXTS)) == len(NASTY_TEXTS) > 50
    for text in NASTY_TEXTS:
        assert text.encode().decode() == text

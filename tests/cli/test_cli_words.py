"""The model as the first word, and words that are refused."""

import json
import shutil

import pytest

from rml.cli.words import names_a_model
from rml.files.cache import FileRecord, Receipt, write_receipt

SAID = "using model {} (write -- before it if it is meant as text)\n"


@pytest.fixture
def pulled_toy(known_toy, rml_command):
    """The toy under its known name, in the cache."""
    assert rml_command("pull", "toy").exit_code == 0
    return "toy"


@pytest.fixture
def hub_toy(toy_path, tmp_path):
    """The toy as a repository that was pulled."""
    path = shutil.copy(toy_path, tmp_path / "q.gguf")
    record = FileRecord.of(type(toy_path)(path), "")
    write_receipt(Receipt("org/toy:Q4_K_M", record.path, "", (record,)))
    return "org/toy:Q4_K_M"


def test_what_names_a_model(pulled_toy, hub_toy, toy_path, tmp_path, monkeypatch):
    shutil.copy(toy_path, tmp_path / "no-ending")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    models = [pulled_toy, hub_toy, toy_path, toy_path.parent / "hf", toy_path.parent]
    models += ["no-ending", "./no-ending", "~/q.gguf", "missing.gguf", "./missing.safetensors"]
    texts = ["", " ", "hi", "smallm2", "toys", "empty", ".", "/", "..", "notes.txt", "~nobody/x"]
    texts += [
        "org/toy",
        "and/or",
        "x" * 5000,
        "a\0b",
        "what is x.gguf",
        "a\nb.gguf",
        "org/toy:Q8_0",
    ]
    (tmp_path / "q.gguf").rename(tmp_path / "empty" / "..q.gguf")
    assert [m for m in models if not names_a_model(str(m))] == [hub_toy]  # its file is gone
    (tmp_path / "empty" / "..q.gguf").rename(tmp_path / "q.gguf")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder" / "no-ending").write_bytes(b"GGUF")
    assert [m for m in models if not names_a_model(str(m))] == []
    assert [text for text in texts if text != ".." and names_a_model(text)] == []


@pytest.mark.parametrize("kind", ["known", "repository", "file", "folder"])
@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("run", ["--temp", "0", "-n", "3", "hi"]),
        ("chat", ["--temp", "0", "-n", "3", "hi"]),
        ("tok", ["--ids", "hi"]),
        ("tok", ["hi", "--compare", "toy"]),
    ],
)
def test_the_first_word_is_the_model(
    rml_command, pulled_toy, hub_toy, toy_path, kind, command, args
):
    word = {
        "known": pulled_toy,
        "repository": hub_toy,
        "file": toy_path,
        "folder": toy_path.parent / "hf",
    }[kind]
    named = rml_command(command, "-m", word, *args)
    result = rml_command(command, word, *args)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == named.stdout
    assert result.stderr == SAID.format(word) + named.stderr
    assert "using" not in named.stderr


def test_the_model_and_a_text_from_elsewhere(rml_command, toy_path, tmp_path):
    (tmp_path / "text").write_text("the cat " * 40)
    by_flag = rml_command("tok", "-m", toy_path, "--ids", "-p", "hi")
    assert rml_command("tok", toy_path, "--ids", "-p", "hi").stdout == by_flag.stdout
    assert rml_command("tok", toy_path, "--ids", input="hi\n").stdout == by_flag.stdout
    by_flag = rml_command("ppl", "-m", toy_path, "-c", "64", tmp_path / "text")
    assert by_flag.exit_code == 0
    assert rml_command("ppl", toy_path, "-c", "64", tmp_path / "text").stdout == by_flag.stdout


def test_a_text_that_is_also_a_model(rml_command, pulled_toy, toy_path, monkeypatch):
    expected = json.loads(rml_command("tok", "-m", toy_path, "--ids", "-p", "toy").stdout)
    for args in (["-m", toy_path, "toy"], ["toy", "-m", toy_path], ["-m", toy_path, "--", "toy"]):
        result = rml_command("tok", "--ids", *args)
        assert json.loads(result.stdout) == expected
        assert result.stderr == ""
    monkeypatch.setenv("RML_ARG_MODEL", str(toy_path))
    assert json.loads(rml_command("tok", "--ids", "--", "toy").stdout) == expected
    assert json.loads(rml_command("tok", "toy", "--ids", "-p", "toy").stdout) == expected


def test_no_text_is_no_model_where_models_lie_around(
    rml_command, known_toy, toy_path, tmp_path, monkeypatch
):
    shutil.copy(toy_path, tmp_path / "q.gguf")
    monkeypatch.chdir(tmp_path)
    assert rml_command("pull", "toy").exit_code == 0
    monkeypatch.setenv("RML_ARG_MODEL", "toy")
    assert names_a_model(".")
    for text in ("", " "):
        result = rml_command("tok", text)
        assert result.exit_code == 0
        assert result.stderr == ""


def test_the_value_of_an_option_is_no_word(rml_command, toy_path, pulled_toy):
    result = rml_command("tok", "--ids", "-p", "toy", toy_path)
    assert result.stderr == SAID.format(toy_path)
    result = rml_command("tok", toy_path, "--ids", "-p", "--")
    assert result.exit_code == 0
    assert result.stderr == SAID.format(toy_path)
    result = rml_command("run", "-ngl", "99", "-fa", toy_path, "-n", "1", "hi")
    assert result.exit_code == 0, result.stderr


def test_a_word_beside_the_model_wins_over_the_environment(rml_command, toy_path, monkeypatch):
    monkeypatch.setenv("RML_ARG_MODEL", "/nowhere")
    assert rml_command("tok", toy_path, "hi").exit_code == 0


@pytest.mark.parametrize("command", ["show", "explain", "bench"])
def test_commands_that_take_nothing_but_a_model(rml_command, toy_path, command):
    few = ["-p", "2", "-n", "1", "-r", "1"] if command == "bench" else []
    for args in ([toy_path], ["--", toy_path], ["-m", toy_path]):
        result = rml_command(command, *few, *args)
        assert result.exit_code == 0, result.stderr
        assert "using model" not in result.stderr
    missing = rml_command(command, *few, "nonsense")
    assert missing.exit_code == 1
    assert "nonsense: there is no such file" in missing.stderr
    for args in ([toy_path, "x"], ["-m", toy_path, "x"], ["--", toy_path, "x"]):
        result = rml_command(command, *few, *args)
        assert result.exit_code == 2
        assert "give one model" in result.stderr


def test_a_misspelt_file_is_not_asked_as_a_text(rml_command):
    result = rml_command("run", "./missing.gguf", "hi")
    assert result.exit_code == 1
    assert "./missing.gguf: there is no such file" in result.stderr


def test_a_repository_that_was_not_pulled_is_text_with_a_word(rml_command, pulled_toy, monkeypatch):
    monkeypatch.setenv("RML_ARG_MODEL", "toy")
    result = rml_command("tok", "--count", "org/repo")
    assert result.exit_code == 0
    assert result.stderr == "org/repo is taken as text; -m org/repo makes it the model\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["why", "is", "it"],
            "unexpected: is it; a text of several words goes in quotes, and why is",
        ),
        (["TOY", "why", "not"], "unexpected: not; a text of several words goes in quotes\n"),
        (["-m", "TOY", "a", "b"], "unexpected: b; a text of several words goes in quotes\n"),
        (["--", "TOY", "a"], "unexpected: a; a text of several words goes in quotes\n"),
        (["why is it", "TOY"], "; a model is the first word, or given with -m"),
        (["-p", "a", "-p", "b"], "--prompt is given more than once"),
        (["-p", "a", "--prompt", "b"], "--prompt is given more than once"),
        (["TOY", "a", "-p", "b"], "give the text once"),
    ],
)
def test_words_that_would_be_lost(rml_command, toy_path, args, message):
    words = [toy_path if arg == "TOY" else arg for arg in args]
    for command in ("run", "chat", "tok"):
        result = rml_command(command, *words)
        assert result.exit_code == 2
        assert message in result.stderr
    assert rml_command("chat", "-sys", "a", "--system", "b", "hi").exit_code == 2


def test_a_prompt_of_the_environment_is_a_default(rml_command, toy_path, monkeypatch):
    monkeypatch.setenv("RML_ARG_PROMPT", "other words")
    args = ("tok", "-m", toy_path, "--ids")
    by_variable = rml_command(*args)
    by_word = rml_command(*args, "the cat")
    monkeypatch.delenv("RML_ARG_PROMPT")
    assert by_variable.stdout == rml_command(*args, "other words").stdout
    assert by_word.stdout == rml_command(*args, "the cat").stdout

"""rml ppl: one line on stdout; the number itself is tested in generation/test_perplexity.py."""

import json
import math
import sys

import pytest

import rml
from rml.cli import ppl
from rml.generation.perplexity import Perplexity, perplexity

TEXT = "The quick brown fox jumps over the lazy dog, again and again and again. " * 12


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text"
    path.write_text(f"{TEXT}\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def expected(toy_path):
    with rml.load(toy_path) as model, model.session(n_ctx=64) as session:
        return perplexity(session, model.tokenizer.encode(TEXT), chunk=64)


@pytest.mark.parametrize("how", ["argument", "-f", "stdin", "-"])
def test_perplexity_of_a_file(rml_command, toy_path, file, expected, how):
    args = {"argument": [file], "-f": ["-f", file], "stdin": [], "-": ["-"]}[how]
    text = None if how in {"argument", "-f"} else f"{TEXT}\n"

    result = rml_command("ppl", "-m", toy_path, "-c", 64, *args, input=text)

    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout == (
        f"perplexity {expected.value:.4f} ± {expected.error:.4f} "
        f"({expected.n_scored} tokens in {expected.n_chunks} chunks of 64)\n"
    )


def test_json_and_fewer_chunks(rml_command, toy_path, file):
    result = rml_command("ppl", "-m", toy_path, "-c", 64, "--chunks", 2, "-o", "json", file)

    facts = json.loads(result.stdout)
    assert (facts["chunks"], facts["tokens"], facts["n_ctx"]) == (2, 62, 64)
    assert facts["perplexity"] > 1
    assert math.isfinite(facts["error"])
    assert (facts["compute"], facts["kv_type"]) == ("int8x2", "f16")


def test_the_default_chunk_is_at_most_the_models_context(rml_command, toy_path, file):
    result = rml_command("ppl", "-m", toy_path, "-o", "json", file)

    assert json.loads(result.stdout)["n_ctx"] == 128


def test_the_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = ppl._show()
    show(1, 4, Perplexity(12.5, 0.5, 10, 1))
    shown = capsys.readouterr().err
    assert shown == f"\r[{'#' * 6}{'.' * 18}] 1 of 4 chunks, perplexity so far 12.5000"
    show(4, 4, Perplexity(12.5, 0.5, 40, 4))
    assert capsys.readouterr().err.isspace()


@pytest.mark.parametrize(
    ("args", "text", "code", "message"),
    [
        (["nothing"], None, 2, "no such file"),
        (["-c", "2", "-"], TEXT, 1, "at least 3|3 to"),
        (["-"], "a", 1, "at least 3"),
        (["-m", "nothing.gguf", "-"], TEXT, 1, "no such file"),
    ],
)
def test_refused(rml_command, toy_path, args, text, code, message):
    result = rml_command("ppl", "-m", toy_path, *args, input=text)

    assert (result.exit_code, result.stdout) == (code, "")
    assert any(part in result.stderr for part in message.split("|"))


def test_the_text_is_given_once(rml_command, toy_path, file):
    result = rml_command("ppl", "-m", toy_path, file, "-f", file)
    assert result.exit_code == 2
    assert "once" in result.stderr
    result = rml_command("ppl", "-m", toy_path, file, input="another")
    assert result.exit_code == 2
    assert "give one" in result.stderr


def test_a_byte_order_mark_is_not_measured(rml_command, toy_path, file, expected):
    file.write_text(f"\ufeff{TEXT}", encoding="utf-8")
    result = rml_command("ppl", "-m", toy_path, "-c", 64, "-o", "json", file)
    assert json.loads(result.stdout)["perplexity"] == pytest.approx(expected.value)

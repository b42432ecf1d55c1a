"""rml tok: ids, pieces and borders."""

import json

import pytest

import rml


@pytest.fixture(scope="module")
def tokenizer(toy_path):
    return rml.load_tokenizer(toy_path)


def test_ids_and_pieces(rml_command, toy_path, tokenizer):
    text = "the cat ü\n"
    result = rml_command("tok", "-m", toy_path, text)
    ids = tokenizer.encode(text)
    rows = result.stdout.splitlines()
    assert rows[0].split() == ["ID", "PIECE"]
    assert [int(row.split()[0]) for row in rows[1:]] == ids
    assert "'\\n'" in rows[-1]
    assert result.stderr == ""


def test_ids_alone(rml_command, toy_path, tokenizer):
    ids = tokenizer.encode("the cat")
    assert json.loads(rml_command("tok", "-m", toy_path, "--ids", "the cat").stdout) == ids
    assert rml_command("tok", "-m", toy_path, "--count", "the cat").stdout == f"{len(ids)}\n"


def test_json_and_pieces_that_are_no_characters(rml_command, toy_path, tokenizer):
    result = rml_command("tok", "-m", toy_path, "-o", "json", "é", "--parse-special")
    pieces = json.loads(result.stdout)
    assert [piece["id"] for piece in pieces] == tokenizer.encode("é")
    assert [piece["piece"] for piece in pieces] in ([[195], [169]], ["é"])


def test_special_tokens(rml_command, toy_path, tokenizer):
    end = tokenizer.eos_id
    text = "a<|im_end|>"
    plain = json.loads(rml_command("tok", "-m", toy_path, "--ids", text).stdout)
    special = json.loads(
        rml_command("tok", "-m", toy_path, "--ids", "--parse-special", text).stdout
    )
    assert end not in plain
    assert special[-1] == end
    shown = rml_command("tok", "-m", toy_path, "--parse-special", text).stdout
    assert shown.splitlines()[-1].split() == [str(end), "'<|im_end|>'", "special"]


def test_text_from_stdin(rml_command, toy_path, tokenizer):
    result = rml_command("tok", "-m", toy_path, "--ids", input="the cat\n")
    assert json.loads(result.stdout) == tokenizer.encode("the cat")


def test_texts_are_joined(rml_command, toy_path, tokenizer):
    result = rml_command("tok", "-m", toy_path, "--ids", r"the\ncat", input="notes\n")
    assert json.loads(result.stdout) == tokenizer.encode("notes\n\nthe\ncat")


def test_borders_are_coloured_on_a_terminal(rml_command, toy_path, monkeypatch):
    monkeypatch.setattr("rml.cli.tok.uses_color", lambda: True)
    result = rml_command("tok", "-m", toy_path, "the cat", color=True)
    last = result.stdout.splitlines()[-1]
    assert last.count("\x1b[0m") == len(result.stdout.splitlines()) - 3
    plain = last.replace("\x1b[0m", "")
    assert plain.count("\x1b[30m") == last.count("\x1b[0m")


def test_a_folder(rml_command, toy_path, tokenizer):
    result = rml_command("tok", "-m", toy_path.parent / "hf", "--ids", "the cat")
    assert json.loads(result.stdout) == tokenizer.encode("the cat")


def test_check_lists_the_stop_tokens_and_why(rml_command, toy_path, tokenizer):
    lines = rml_command("tok", "-m", toy_path, "--check").stdout.splitlines()
    facts = json.loads(rml_command("tok", "-m", toy_path, "--check", "-o", "json").stdout)

    assert lines[0].split() == ["STOP", "TOKEN", "TEXT", "WHY"]
    assert [line.split(None, 2) for line in lines[1:3]] == [
        ["0", "<|endoftext|>", "its name"],
        ["2", "<|im_end|>", "tokenizer.ggml.eos_token_id, its name"],
    ]
    assert lines[3:] == tokenizer.check() == facts["oddities"]
    assert facts["stop_tokens"][1] == {
        "id": 2,
        "text": "<|im_end|>",
        "why": ["tokenizer.ggml.eos_token_id", "its name"],
    }


def test_check_refuses_what_it_would_not_look_at(rml_command, toy_path, tmp_path):
    (tmp_path / "text").write_text("hi")
    for args in (["misspelt"], ["-p", "hi"], ["-f", tmp_path / "text"], ["--compare", toy_path]):
        result = rml_command("tok", "-m", toy_path, "--check", *args)
        assert result.exit_code == 2
        assert "--check looks at the model alone" in result.stderr

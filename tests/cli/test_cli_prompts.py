"""Where a text comes from, and what is joined."""

import io
import os
import sys
import threading
import time
from pathlib import Path

import click
import pytest

from rml.cli import prompts
from rml.cli.prompts import piped, read_prompt


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def stdin(monkeypatch, data=b"", kind=io.TextIOWrapper):
    monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(data), encoding="utf-8"))


@pytest.fixture
def pipe(monkeypatch):
    """Stdin as a pipe; yields the descriptor to write to."""
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        yield writing
        os.close(writing)


@pytest.mark.parametrize(
    ("argument", "option", "data", "expected"),
    [
        ("a", None, b"", "a"),
        (None, "b", b"", "b"),
        (None, None, b"c\n", "c"),
        (None, None, b"c\r\n", "c"),
        (None, None, b"c\n\n", "c\n"),
        ("-", None, b"c \n", "c "),
        (None, "-", b"c", "c"),
        ("a\n", None, b"x", "x\n\na\n"),
        (None, "b", b"x\n", "x\n\nb"),
        ("", None, b"x", "x"),
        ("", None, b"", ""),
        ("a", None, b" \n\n", "a"),
        (None, None, "é".encode(), "é"),
        (None, None, "\ufeffé".encode(), "é"),
        ("a", None, "\ufeff".encode(), "a"),
        ("\ufeff", None, b"", "\ufeff"),
    ],
)
def test_where_a_prompt_comes_from(monkeypatch, argument, option, data, expected):
    stdin(monkeypatch, data)
    assert read_prompt(argument, option) == expected


def test_files_are_joined_in_their_order(monkeypatch, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes("\ufeffstraße\n".encode())
    b.write_bytes(b"b")
    stdin(monkeypatch, b"piped\n")
    assert read_prompt("text", None, [a, b]) == "piped\n\nstraße\n\nb\n\ntext"
    stdin(monkeypatch, b"piped\n")
    assert read_prompt("text", None, [b, Path("-"), a]) == "b\n\npiped\n\nstraße\n\ntext"
    stdin(monkeypatch, b"piped\n")
    assert read_prompt("-", None, [b]) == "b\n\npiped"


def test_what_cannot_be_joined_is_refused(monkeypatch, tmp_path):
    stdin(monkeypatch, b"x")
    for args in [("a", "b"), ("", ""), ("-", "b")]:
        with pytest.raises(click.UsageError, match="once"):
            read_prompt(*args)
    with pytest.raises(click.UsageError, match="can be read once"):
        read_prompt("-", None, [Path("-")])


def test_a_text_that_is_not_utf_8(monkeypatch, tmp_path):
    (tmp_path / "q").write_bytes(b"\xff")
    stdin(monkeypatch)
    with pytest.raises(click.UsageError, match="q is not UTF-8"):
        read_prompt(None, None, [tmp_path / "q"])
    stdin(monkeypatch, b"\xff")
    with pytest.raises(click.UsageError, match="stdin is not UTF-8"):
        read_prompt(None)
    stdin(monkeypatch)
    with pytest.raises(click.UsageError, match="the text is not UTF-8"):
        read_prompt("a\udcff", escape=False)


def test_a_file_that_cannot_be_read(monkeypatch, tmp_path):
    stdin(monkeypatch)
    with pytest.raises(click.UsageError, match="cannot be read: Is a directory"):
        read_prompt(None, None, [tmp_path])


def test_a_terminal_is_not_read(monkeypatch):
    stdin(monkeypatch, b"typed", Terminal)
    assert read_prompt("a") == "a"
    with pytest.raises(click.UsageError, match="no text"):
        read_prompt(None)
    assert read_prompt("-") == "typed"


@pytest.mark.parametrize("data", [b"", b"\n", "\ufeff".encode()])
def test_stdin_that_holds_nothing(monkeypatch, data):
    stdin(monkeypatch, data)
    with pytest.raises(click.UsageError, match="stdin is empty"):
        read_prompt(None)
    stdin(monkeypatch, data)
    assert read_prompt("-") == ""  # as it was asked for


def test_stdin_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert read_prompt("a") == "a"
    with pytest.raises(click.UsageError, match="stdin is closed"):
        read_prompt(None)


def test_stdin_that_is_only_written_to(monkeypatch, tmp_path):
    descriptor = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt("a") == "a"
        with pytest.raises(click.UsageError, match="cannot be read"):
            read_prompt(None)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/full"])
def test_a_device_is_not_read_unasked(monkeypatch, path):
    with Path(path).open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt("a") == "a"


def test_a_file_as_stdin(monkeypatch, tmp_path):
    (tmp_path / "notes").write_text("notes\n")
    with (tmp_path / "notes").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt("a") == "notes\n\na"


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_stdin_by_any_name_is_read_once(monkeypatch, tmp_path, rml_command, toy_path, name):
    (tmp_path / "notes").write_text("notes\n")
    with (tmp_path / "notes").open(encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_prompt("a", None, [Path(name)]) == "notes\n\na"
    text = "the cat " * 40
    result = rml_command("ppl", toy_path, "-c", "64", name, input=text)
    assert result.exit_code == 0, result.stderr


def test_a_pipe_in_which_nothing_comes_is_left_with_a_word(pipe, monkeypatch, capsys):
    monkeypatch.setattr(prompts, "_PATIENCE", 0.05)
    assert read_prompt("a") == "a"
    assert "nothing came on stdin" in capsys.readouterr().err


@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_is_read_to_its_end_once_something_came(pipe, capsys, blocking):
    os.set_blocking(sys.stdin.fileno(), blocking)
    other = os.dup(pipe)

    def write():
        for _ in range(3):
            os.write(other, b"x" * 5)
            time.sleep(0.05)

    thread = threading.Thread(target=write)
    thread.start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), pipe)  # the thread has the only end left
    closing = threading.Thread(target=lambda: (thread.join(), os.close(other)))
    closing.start()
    assert piped() == "x" * 15
    closing.join()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\\n", "\\n"),
        (r"\\\n", "\\\n"),
        (r"\"\'", "\"'"),
        (r"\x41\xC3\xa9", "Aé"),
        (r"\x4 \xzz \d \u0041 \0", r"\x4 \xzz \d \u0041 \0"),
        ("ends with \\", "ends with \\"),
        ("é\n", "é\n"),
    ],
)
def test_escapes(monkeypatch, text, expected):
    stdin(monkeypatch)
    assert read_prompt(text) == expected
    assert read_prompt(None, text) == expected
    assert read_prompt(text, escape=False) == text


def test_escapes_belong_to_the_command_line(monkeypatch, tmp_path):
    (tmp_path / "f").write_text(r"\n")
    stdin(monkeypatch, rb"\t")
    assert read_prompt(r"\r", None, [tmp_path / "f"]) == "\\t\n\n\\n\n\n\r"


def test_an_escape_that_makes_no_utf_8(monkeypatch):
    stdin(monkeypatch)
    with pytest.raises(click.UsageError, match="the text is not UTF-8"):
        read_prompt(r"\xff")

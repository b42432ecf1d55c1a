"""What is printed, and where."""

import io
import sys

import pytest

from rml.cli import console


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (98362432, "98.4 MB"),
        (2_500_000_000, "2.50 GB"),
    ],
)
def test_sizes(n, text):
    assert console.bytes_text(n) == text


def test_control_characters_are_shown():
    assert console.printable("a\tb\n\x1b[31mred\x07 \x9b \u202e") == (
        "a\tb\n\\x1b[31mred\\x07 \\x9b \\u202e"
    )


def test_a_pipe_gets_the_text_as_it_is(capsys):
    console.answer("\x1b[31m é")
    assert capsys.readouterr().out == "\x1b[31m é"


def test_a_terminal_gets_no_escape_sequence(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console.answer("\x1b[31m é")
    assert capsys.readouterr().out == "\\x1b[31m é"


def test_a_table(capsys):
    console.table(("A", "NUMBER"), [("xyz", 5), ("\x1b", 1000)], right="lr")
    assert capsys.readouterr().out == "A     NUMBER\nxyz        5\n\\x1b    1000\n"
    console.table(("A",), [])
    assert capsys.readouterr().out == "A\n"


@pytest.mark.parametrize(("tty", "no_color", "expected"), [(1, "", 1), (1, "1", 0), (0, "", 0)])
def test_color(monkeypatch, tty, no_color, expected):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: bool(tty))
    monkeypatch.setenv("NO_COLOR", no_color)
    assert console.uses_color() == bool(expected)


def test_a_progress_bar_draws_nothing_into_a_pipe(capsys):
    with console.progress_bar("x") as update:
        update(1, 2)
    show = console.prompt_progress()
    show(1, 2)
    show(2, 2)
    assert capsys.readouterr() == ("", "")


def test_a_progress_bar_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with console.progress_bar("fetching toy") as update:
        update(500_000, 1_000_000)
        update(1_000_000, 1_000_000)
    assert "fetching toy" in terminal.getvalue()
    assert "verifying" in terminal.getvalue()


def test_the_progress_of_a_prompt_leaves_an_empty_line(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = console.prompt_progress()
    show(10, 10)
    assert capsys.readouterr().err == ""
    show(512, 1000)
    line = f"[{'#' * 12}{'.' * 12}] 512 of 1000 prompt tokens"
    assert capsys.readouterr().err == f"\r{line}"
    show(1000, 1000)
    assert capsys.readouterr().err == f"\r{' ' * len(line)}\r"

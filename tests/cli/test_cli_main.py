"""The program as a whole: help, version, exit codes, pipes, start-up."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import gguf
import pytest

import rml
from rml import cli as cli_module
from rml.cli.app import COMMANDS
from rml.cli.parsing import Command
from rml.errors import CheckpointError

ROOT = Path(__file__).resolve().parents[2]


def process(*args, env=None, **kwargs):
    """Run ``python -m rml`` in a process of its own."""
    environment = {**os.environ, "RML_PURE": "1", **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "rml", *map(str, args)],
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
        **kwargs,
    )


def test_help_lists_every_command(rml_command):
    for args in (["--help"], ["-h"]):
        result = rml_command(*args)
        assert result.exit_code == 0
        assert all(re.search(rf"^  {name} ", result.stdout, re.MULTILINE) for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(rml_command, name):
    result = rml_command(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: rml {name}")


def test_every_file_of_a_command_is_in_the_table():
    folder = ROOT / "rml" / "cli"
    files = {p.stem for p in folder.glob("*.py") if "@click.command(" in p.read_text()}
    assert files == set(COMMANDS)


def test_version(rml_command):
    result = rml_command("--version")
    info = rml.info()
    assert result.exit_code == 0
    assert result.stdout == (
        f"rml {rml.__version__} (backend {info['backend']}, ISA {info['isa']}, OpenMP "
        f"{'yes' if info['openmp'] else 'no'})\n"
    )


def test_info(rml_command):
    text = rml_command("info").stdout
    assert re.search(rf"^version +{re.escape(rml.__version__)}$", text, re.MULTILINE)
    assert re.search(r"^cache +/", text, re.MULTILINE)


@pytest.mark.parametrize("args", [["nonsense"], ["run", "--nonsense"], ["pull"], ["rm"]])
def test_a_wrong_command_line_is_2(rml_command, args):
    result = rml_command(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: rml" in result.stderr


def failing(monkeypatch, error):
    """Make ``rml list`` fail."""

    @click.command("list", cls=Command)
    def command():
        raise error

    module = type(sys)("rml.cli.list")
    module.command = command
    monkeypatch.setitem(sys.modules, "rml.cli.list", module)


def test_an_error_of_rml_is_its_message_and_1(rml_command, monkeypatch):
    failing(monkeypatch, CheckpointError("x.gguf: it is broken"))
    result = rml_command("list")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "Error: x.gguf: it is broken\n"


def test_verbose_shows_the_traceback(rml_command, monkeypatch):
    failing(monkeypatch, CheckpointError("x.gguf: it is broken"))
    result = rml_command("list", "-v")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("Error: x.gguf: it is broken\n")


def test_an_interrupt_is_130(rml_command, monkeypatch):
    failing(monkeypatch, KeyboardInterrupt())
    result = rml_command("list")
    assert result.exit_code == 130
    assert "Traceback" not in result.stderr


def test_a_bug_is_not_swallowed(rml_command, monkeypatch):
    failing(monkeypatch, ZeroDivisionError("a bug"))
    assert isinstance(rml_command("list").exception, ZeroDivisionError)


def test_a_missing_file(rml_command):
    result = rml_command("run", "-m", "/nowhere/x.gguf", "hi")
    assert result.exit_code == 1
    assert "/nowhere/x.gguf" in result.stderr


def test_python_m_rml_and_exit_codes_of_the_process(tmp_path):
    env = {"RML_CACHE": str(tmp_path)}
    done = process("list", env=env)
    assert (done.returncode, done.stdout) == (0, "")
    assert "rml pull smollm2" in done.stderr
    done = process("run", "-m", "no-such-model", "hi", env=env)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: no-such-model: there is no such file")
    assert "Traceback" not in done.stderr
    assert process("run", "--wrong", env=env).returncode == 2


@pytest.mark.parametrize("args", [["info"], ["--version"]])
def test_a_wrong_setting_is_one_message(args):
    done = process(*args, env={"RML_THREADS": "many"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: RML_THREADS='many': a whole number from 1 is needed\n"


def test_a_closed_pipe_is_quiet(tmp_path):
    """As in ``rml show MODEL --key KEY | head -1``, with more output than a pipe holds."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_array("words", [f"word {i}" for i in range(30_000)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    command = f'"{sys.executable}" -m rml show "{tmp_path / "x.gguf"}" --key words'
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "RML_PURE": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stdout == "word 0\n1\n"
    assert done.stderr == ""


def test_a_terminal_without_unicode_is_no_reason_to_stop(toy_path):
    done = process(
        "show", toy_path, "--tensor", "output_norm.weight", env={"PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert "mean: " in done.stdout


def test_starting_imports_no_more_than_needed():
    """Help and list must not wait for numpy's, jinja2's or rich's import."""
    code = (
        "import sys\nfrom rml.cli import cli\n"
        "try:\n    cli(['--help'], prog_name='rml')\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'jinja2', 'rich', 'regex') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_main_leaves_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rml", "--help"])
    with pytest.raises(SystemExit) as info:
        cli_module.main()
    assert info.value.code == 0
    assert "rml chat" in capsys.readouterr().out

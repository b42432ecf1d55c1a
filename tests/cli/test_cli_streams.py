"""Every command where a standard stream is closed, full, or a pipe that nobody reads."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TOY = Path(__file__).resolve().parents[1] / "fixtures" / "llama" / "model.gguf"
FEW = ["-m", TOY, "-n", "3", "--temp", "0"]

COMMANDS = {
    "help": ["--help"],
    "version": ["--version"],
    "info": ["info"],
    "list": ["list"],
    "show": ["show", TOY],
    "explain": ["explain", TOY],
    "tok": ["tok", "-m", TOY, "hi"],
    "run": ["run", *FEW, "hi"],
    "chat": ["chat", *FEW, "-v", "hi"],
    "bench": ["bench", "-m", TOY, "-p", "2", "-n", "1", "-r", "1", "-o", "csv"],
    "an error": ["run", "-m", "/nowhere.gguf", "hi"],
    "a wrong command line": ["run", "--nonsense"],
}
# State -> redirections, and whether the answer can be given.
STATES = {
    "stdin closed": ("<&-", True),
    "stderr closed": ("2>&-", True),
    "stderr full": ("2>/dev/full", True),
    "all but stdout closed": ("<&- 2>&-", True),
    "stdout closed": (">&-", False),
    "stdout full": (">/dev/full", False),
    "all closed": ("<&- >&- 2>&-", False),
}


def start(args, redirections="", cache="", **options):
    """Run ``python -m rml`` as a shell does."""
    command = f'exec "$0" -m rml "$@" {redirections}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, *map(str, args)],
        env={**os.environ, "RML_PURE": "1", "RML_CACHE": str(cache)},
        stdin=subprocess.DEVNULL,
        capture_output=options.pop("capture_output", True),
        check=False,
        timeout=120,
        **options,
    )


def without_figures(name, output):
    """What is the same in every run."""
    return output.partition(b"\n")[0] if name == "bench" else output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_stream_in_every_state(name, tmp_path):
    args = COMMANDS[name]
    with ThreadPoolExecutor(3) as threads:
        usual = threads.submit(start, args, cache=tmp_path)
        runs = {
            state: threads.submit(start, args, redirections, tmp_path)
            for state, (redirections, _answers) in STATES.items()
        }
    usual = usual.result()
    expected = without_figures(name, usual.stdout)
    for state, run in runs.items():
        done, answers = run.result(), STATES[state][1]
        said = done.stderr.decode()
        assert "Traceback" not in said, state
        assert "Exception ignored" not in said, state
        if answers or not usual.stdout:
            assert (done.returncode, without_figures(name, done.stdout)) == (
                usual.returncode,
                expected if answers else b"",
            ), state
        else:
            assert done.returncode == 1, state
            if "closed" not in STATES[state][0] and "2>" not in STATES[state][0]:
                assert said.count("Error: standard output: ") == 1, state


@pytest.mark.parametrize("name", ["help", "list", "show", "run", "chat"])
def test_a_pipe_that_nobody_reads_is_quiet(name, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = start(
            [arg for arg in COMMANDS[name] if arg != "-v"],
            cache=tmp_path,
            capture_output=False,
            stdout=writing,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(writing)
    said = done.stderr.decode()
    assert done.returncode == (0 if name == "list" else 1)
    assert said == "" or name == "list"
    assert "Error" not in said


def test_what_is_said_of_a_lost_output():
    assert start(["info"], ">/dev/full").stderr == (
        b"Error: standard output: No space left on device\n"
    )
    assert start(["info"], ">&-").stderr == b"Error: standard output: Bad file descriptor\n"


@pytest.mark.parametrize("args", [["run", *FEW], ["chat", *FEW], ["tok", "-m", TOY], ["ppl"]])
def test_no_input_is_a_wrong_command_line(args):
    done = start(args, "<&-")
    assert done.returncode == 2
    assert b"stdin is closed" in done.stderr


def test_a_closed_stream_is_no_place_for_a_file():
    """A file that a program opens first would else get the number of the stream, and its output."""
    code = (
        "import os, sys\nfrom rml.cli.streams import guard\nguard()\n"
        "sys.exit(os.open('/dev/null', os.O_RDONLY))"
    )
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    done = subprocess.run(["bash", "-c", shell, sys.executable, code], check=False)
    assert done.returncode > 2


def test_a_busy_pipe_is_waited_for():
    """Another program may have made the pipe non-blocking, as some terminals and loops do."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    words = 30_000
    code = (
        "import sys\nfrom rml.cli.streams import guard\nguard()\n"
        f"for i in range({words}): print('word', i)\nsys.stdout.flush()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        assert len(stream.read().splitlines()) == words
    assert process.wait(60) == 0

"""rml chat: one answer, and conversations in a terminal of their own."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time

import pytest

import rml
from rml.cli.console import printable

GREEDY = ("--temp", "0", "-n", "6")


def reply(path, *messages, **options):
    roles = ("user", "assistant")
    with rml.load(path, n_ctx=512) as model:
        chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
        return model.chat(chat, temperature=0, max_tokens=6, **options).text


def test_one_question(rml_command, toy_path):
    result = rml_command("chat", "-m", toy_path, *GREEDY, "hi")
    assert result.exit_code == 0
    assert result.stdout.removesuffix("\n") == reply(toy_path, "hi").removesuffix("\n")
    assert result.stderr == ""


def test_a_question_from_stdin(rml_command, toy_path):
    assert (
        rml_command("chat", "-m", toy_path, *GREEDY, input="hi\n").stdout
        == rml_command("chat", "-m", toy_path, *GREEDY, "hi").stdout
    )


@pytest.mark.parametrize("text", ["", "\n", " \n"])
def test_an_empty_question_is_a_wrong_command_line(rml_command, toy_path, text):
    assert rml_command("chat", "-m", toy_path, input=text).exit_code == 2
    assert rml_command("chat", "-m", toy_path, text).exit_code == 2


def test_a_pipe_and_a_question_are_joined(rml_command, toy_path):
    args = ("chat", "-m", toy_path, *GREEDY, "--show-template")
    result = rml_command(*args, "Summarize.", input="notes\n")
    assert "<|im_start|>user\nnotes\n\nSummarize.<|im_end|>" in result.stderr


def test_a_cut_answer_is_announced(rml_command, toy_path):
    args = ("chat", "-m", toy_path, "-c", "40", "--ignore-eos", "hi")
    cut = "[the answer is cut: the context is full with 40 tokens; -c N makes room for N tokens]\n"
    assert rml_command(*args).stderr == cut
    assert rml_command(*args, "-n", "99").stderr == cut
    assert rml_command(*args, "--raw").stderr == cut
    assert rml_command(*args, "-n", "3").stderr == ""


def test_the_template_is_shown_on_stderr(rml_command, toy_path):
    result = rml_command("chat", "-m", toy_path, *GREEDY, "--show-template", "--system", "S", "hi")
    assert result.stderr == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n"
    )
    assert "<|im_start|>" not in result.stdout


@pytest.mark.parametrize("flag", ["--system", "-sys", "--system-prompt"])
def test_a_system_prompt_changes_the_answer(rml_command, toy_path, flag):
    with_system = rml_command("chat", "-m", toy_path, *GREEDY, flag, "shout", "hi").stdout
    assert with_system != rml_command("chat", "-m", toy_path, *GREEDY, "hi").stdout


def test_raw_gives_the_model_the_text_alone(rml_command, toy_path):
    raw = rml_command("chat", "-m", toy_path, *GREEDY, "--raw", "the cat").stdout
    assert raw == rml_command("run", "-m", toy_path, *GREEDY, "the cat").stdout


def test_raw_has_no_place_for_a_system_prompt(rml_command, toy_path, monkeypatch):
    args = ("chat", "-m", toy_path, *GREEDY, "--raw", "hi")
    refused = rml_command(*args, "--system", "S")
    assert refused.exit_code == 2
    assert "--raw uses none" in refused.stderr
    monkeypatch.setenv("RML_ARG_SYSTEM", "S")  # a default, for conversations
    assert rml_command(*args).exit_code == 0


def test_a_template_from_a_file(rml_command, toy_path, tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text("Q: {{ messages[-1]['content'] }}\nA:")
    args = ("-m", toy_path, *GREEDY, "--chat-template", path)
    result = rml_command("chat", *args, "--show-template", "hi")
    assert result.stderr == "Q: hi\nA:\n"
    named = rml_command("chat", *args[:-1], "chatml", "--show-template", "hi")
    assert "<|im_start|>user\nhi<|im_end|>" in named.stderr
    given = rml_command("chat", *args[:-1], "{{ messages[0].content }}?", "--show-template", "hi")
    assert given.stderr == "hi?\n"
    for name in ("nonsense", "no/such.jinja", tmp_path):
        missing = rml_command("chat", "-m", toy_path, "--chat-template", name, "hi")
        assert missing.exit_code == 1
        assert "templates known by name are" in missing.stderr


def test_a_model_without_template(rml_command, toy_path, tmp_path):
    data = toy_path.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_xemplate")
    (tmp_path / "base.gguf").write_bytes(data)
    result = rml_command("chat", "-m", tmp_path / "base.gguf", "hi")
    assert result.exit_code == 1
    assert "--chat-template" in result.stderr
    assert rml_command("chat", "-m", tmp_path / "base.gguf", *GREEDY, "--raw", "hi").exit_code == 0


def test_a_question_that_does_not_fit(rml_command, toy_path):
    result = rml_command("chat", "-m", toy_path, "x" * 200)
    assert result.exit_code == 1
    assert "the context holds 128" in result.stderr


def test_an_absent_known_model_is_fetched_first(rml_command, known_toy, toy_path, tmp_path):
    result = rml_command("chat", "-m", "toy", *GREEDY, "hi")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == rml_command("chat", "-m", toy_path, *GREEDY, "hi").stdout
    lines = result.stderr.splitlines()
    assert lines[0] == "toy is not on this machine yet."
    assert lines[1].startswith("toy: A toy Llama, ")
    assert lines[1].endswith("CC0-1.0 licence")
    assert lines[-1] == f"saved as {tmp_path / 'cache' / 'toy.gguf'}"
    assert rml_command("chat", "-m", "toy", *GREEDY, "hi").stderr == ""


def test_offline_nothing_is_fetched(rml_command, known_toy):
    result = rml_command("chat", "-m", "toy", "--offline", "hi")
    assert result.exit_code == 1
    assert "network is not to be used" in result.stderr


def shown(text):
    """How a terminal shows an answer."""
    return printable(text.strip()).replace("\n", "\r\n")


class Terminal:
    """``rml chat`` in a pseudo-terminal."""

    def __init__(self, *args):
        master, slave = pty.openpty()
        self.master = master
        self.text = ""
        # The process makes the terminal its own, so that Ctrl-C reaches it as it reaches a shell's.
        start = (
            "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "runpy.run_module('rml', run_name='__main__', alter_sys=True)"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, "chat", *map(str, args)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(slave)

    def read_until(self, text, seconds=60):
        """Return what is printed up to and including `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"no {text!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # the process has closed the terminal
                    self.text += os.read(self.master, 4096).decode(errors="replace")
        end = self.text.index(text) + len(text)
        seen, self.text = self.text[:end], self.text[end:]
        return seen

    def send(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """Return the exit code, reading what the process still prints."""
        deadline = time.monotonic() + 30
        try:
            while self.process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    if select.select([self.master], [], [], 0.1)[0]:
                        os.read(self.master, 4096)
            return self.process.poll()
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)


@pytest.fixture
def terminal():
    opened = []

    def start(*args):
        opened.append(Terminal(*args))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
            os.close(one.master)


def test_a_conversation(terminal, toy_path):
    """The second answer knows the first turn; after /reset the first answer comes again."""
    first = reply(toy_path, "hi")
    second = reply(toy_path, "hi", first, "and")
    assert second != reply(toy_path, "and")

    chat = terminal("-m", toy_path, "-c", "512", *GREEDY)
    chat.read_until("> ")
    chat.send("hi\n")
    assert shown(first) in chat.read_until("\n> ")
    chat.send("and\n")
    assert shown(second) in chat.read_until("\n> ")
    chat.send("/reset\n")
    chat.read_until("forgotten")
    chat.read_until("> ")
    chat.send("and\n")
    after = chat.read_until("\n> ")
    assert shown(reply(toy_path, "and")) in after
    chat.send("/exit\n")
    assert chat.end() == 0


def test_commands_and_the_ends(terminal, toy_path):
    chat = terminal("-m", toy_path, "-c", "512", *GREEDY)
    chat.read_until("/help")
    chat.read_until("> ")
    chat.send("/help\n")
    assert "/reset" in chat.read_until("Ctrl-C")
    chat.read_until("> ")
    chat.send("/nonsense\n")
    chat.read_until("/nonsense is no command")
    chat.read_until("> ")
    chat.send("\n")
    chat.read_until("> ")
    chat.send("one\\\n")
    chat.read_until("... ")
    chat.send("two\n")
    chat.read_until("\n> ")
    chat.send("\x04")
    assert chat.end() == 0


def test_ctrl_c_stops_the_answer_and_then_leaves(terminal, toy_path):
    chat = terminal("-m", toy_path, "-c", "100000", "--ignore-eos", "--temp", "0")
    chat.read_until("> ")
    chat.send("hi\n")
    time.sleep(1)  # some tokens into an answer of a hundred thousand
    chat.send("\x03")
    chat.read_until("[stopped]")
    chat.read_until("> ")
    chat.send("/reset\n")
    chat.read_until("forgotten")
    chat.read_until("> ")
    time.sleep(0.5)  # readline shows the prompt a moment before it listens to signals
    chat.send("\x03")
    assert chat.end() == 130


def test_a_cut_turn_says_how_to_go_on(terminal, toy_path):
    chat = terminal("-m", toy_path, "-c", "40", "--ignore-eos", "--temp", "0", "-n", "99")
    chat.read_until("> ")
    chat.send("hi\n")
    chat.read_until("[the answer is cut: the context is full with 40 tokens; /reset begins anew")
    chat.send("/exit\n")
    assert chat.end() == 0


def test_a_turn_that_fails_does_not_end_the_chat(terminal, toy_path):
    chat = terminal("-m", toy_path, *GREEDY)
    chat.read_until("> ")
    chat.send("x" * 200 + "\n")
    chat.read_until("the context holds 128")
    chat.read_until("> ")
    chat.send("hi\n")
    assert shown(reply(toy_path, "hi")) in chat.read_until("\n> ")
    chat.send("/exit\n")
    assert chat.end() == 0


def test_ctrl_c_ends_a_single_question_with_130(terminal, toy_path):
    chat = terminal("-m", toy_path, "-c", "100000", "--ignore-eos", "--temp", "0", "hi")
    chat.read_until(shown(reply(toy_path, "hi", ignore_eos=True))[:5])
    chat.send("\x03")
    chat.read_until("[stopped]")
    assert chat.end() == 130

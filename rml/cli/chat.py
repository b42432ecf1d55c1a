"""``rml chat``: a conversation in the terminal, or one answer to one question."""

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import rml
from rml.cli.console import answer, prompt_progress, say
from rml.cli.interrupts import on_interrupt
from rml.cli.models import load
from rml.cli.option_table import MODEL_OPTIONS, SAMPLING_OPTIONS
from rml.cli.options import options, sampling_arguments
from rml.cli.parsing import Command
from rml.cli.prompts import read_prompt
from rml.cli.timings import ROOM, report
from rml.errors import RmlError, TemplateError

__all__ = ["command"]

_HELP = """\
/reset   forget the conversation
/exit    leave (or Ctrl-D)
/help    this list
Ctrl-C   stop the answer; at the prompt, leave
A line that ends with a backslash goes on in the next one."""
_TALK_ROOM = f"/reset begins anew, {ROOM}, --truncate left leaves out the oldest turns"


@click.command("chat", cls=Command)
@click.argument("question", required=False)
@options("system", "prompt", "file", "chat_template")
@click.option("--show-template", is_flag=True, help="Print what the model sees to stderr.")
@click.option("--raw", is_flag=True, help="Give the model the text alone: it predicts words.")
@options("parse_special", *MODEL_OPTIONS, *SAMPLING_OPTIONS)
def command(
    question: str | None,
    prompt: str | None,
    file: tuple[Path, ...],
    **values: Any,  # noqa: ANN401 - the shared options
) -> None:
    """Chat with a model, or answer one QUESTION.

    The question may also come from -p, from files (-f) and from stdin; several are joined with a
    blank line between, QUESTION last. A first word that is the name of a model, or a model's file,
    is the model; a known one that is not on this machine is fetched.
    """
    source = click.get_current_context().get_parameter_source("system")
    if values["raw"] and source is ParameterSource.COMMANDLINE:
        raise click.UsageError("--system belongs to a template, and --raw uses none")
    arguments = sampling_arguments(values)
    single = question is not None or prompt is not None or file
    one = None
    if single or sys.stdin is None or not sys.stdin.isatty():
        one = read_prompt(question, prompt, file, escape=values["escape"])
    if one is not None and not one.strip():
        raise click.UsageError("the question is empty")
    with load(values, download=True) as model, model.session() as session:
        if not values["raw"] and model.chat_template is None:
            raise TemplateError(
                f"{values['model']} has no chat template, so it may not be made for chat: use rml "
                "run or --raw, or give a template with --chat-template"
            )
        talk = _Conversation(model, session, values, arguments)
        if one is not None:
            if talk.answer(one, advice=ROOM).finish_reason == "cancelled":
                raise click.exceptions.Exit(130)
        else:
            say(f"{values['model']}, context {model.n_ctx} tokens. /help lists the commands.")
            _converse(talk)


class _Conversation:
    """The messages so far, and the session that has evaluated them."""

    def __init__(
        self,
        model: "rml.Model",
        session: "rml.Session",
        values: dict[str, Any],
        arguments: dict[str, Any],
    ) -> None:
        self._model = model
        self._session = session
        self._values = values
        self._n_given = "max_tokens" in arguments
        if values["raw"]:  # a completion of raw text, too, goes on to the end in a chat
            arguments = {"max_tokens": -1, **arguments}
        self._arguments = {**arguments, "session": session, "progress": prompt_progress()}
        self.reset()

    def reset(self) -> None:
        """Forget every message but the system prompt."""
        system = self._values["system"]
        self._messages = [{"role": "system", "content": system}] if system else []

    def answer(self, text: str, *, advice: str = _TALK_ROOM) -> "rml.Completion":
        """Print the model's answer to `text`; both join the conversation when it is done.

        Ctrl-C ends the answer, and what was said of it stays in the conversation. `advice` is what
        helps against a full context.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        with self._stream(text, messages) as stream, on_interrupt(stream.cancel):
            last = ""
            for piece in stream:
                answer(piece.text)
                last = piece.text or last
            if not last.endswith("\n"):
                answer("\n")
            result = stream.result()
        if not self._values["raw"]:
            self._messages = [*messages, {"role": "assistant", "content": result.text}]
        if result.finish_reason == "cancelled":
            say("[stopped]")
        report(result, n_given=self._n_given, advice=advice)
        return result

    def _stream(self, text: str, messages: list[dict[str, str]]) -> "rml.Stream":
        if self._values["raw"]:
            special = self._values["parse_special"]
            return self._model.stream(text, parse_special=special, **self._arguments)
        if self._values["show_template"]:
            say(self._model.render_chat(messages))
        return self._model.stream_chat(messages, **self._arguments)


def _converse(talk: _Conversation) -> None:
    """Read and answer until the user leaves."""
    try:
        import readline  # noqa: F401 - gives `input` line editing and a history
    except ImportError:
        say("no line editing: this Python has no readline")
    while True:
        try:
            text = _read()
        except EOFError:
            say("")
            return
        words = text.strip()
        if words in {"/exit", "/quit", "/bye"}:
            return
        if words == "/reset":
            talk.reset()
            say("the conversation is forgotten")
        elif words == "/help":
            say(_HELP)
        elif words.startswith("/") and " " not in words:
            say(f"{words} is no command; /help lists them")
        elif words:
            try:
                talk.answer(text)
            except RmlError as error:  # one turn failed; the conversation goes on without it
                say(f"{error}")


def _read() -> str:
    """Read one message, over several lines where a line ends with a backslash."""
    lines = [_line("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_line("... "))
    return "\n".join(lines)


def _line(prompt: str) -> str:
    """Read a line; the prompt goes to stderr where stdout is not the terminal."""
    if sys.stdout.isatty():
        return input(prompt)
    click.echo(prompt, err=True, nl=False)
    return input()

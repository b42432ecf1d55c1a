"""``rml run``: complete a text; the continuation alone goes to stdout."""

from pathlib import Path
from typing import Any

import click

from rml.cli.console import answer, prompt_progress
from rml.cli.models import load
from rml.cli.option_table import MODEL_OPTIONS, SAMPLING_OPTIONS
from rml.cli.options import options, sampling_arguments
from rml.cli.parsing import Command
from rml.cli.prompts import read_prompt
from rml.cli.timings import report

__all__ = ["command"]


@click.command("run", cls=Command)
@click.argument("text", required=False)
@options("prompt", "file", "parse_special", "display_prompt", *MODEL_OPTIONS, *SAMPLING_OPTIONS)
def command(
    text: str | None,
    prompt: str | None,
    file: tuple[Path, ...],
    **values: Any,  # noqa: ANN401 - the shared options
) -> None:
    """Complete TEXT as it is, without a chat template.

    TEXT may also come from -p, from files (-f) and from stdin; several are joined with a blank line
    between, TEXT last. A first word that is the name of a model, or a model's file, is the model.
    Nothing is fetched: see rml pull.
    """
    words = read_prompt(text, prompt, file, escape=values["escape"])
    arguments = sampling_arguments(values)
    with load(values) as model:
        stream = model.stream(
            words,
            parse_special=values["parse_special"],
            echo=values["display_prompt"],
            progress=prompt_progress(),
            **arguments,
        )
        last = ""
        for piece in stream:
            answer(piece.text)
            last = piece.text or last
        if not last.endswith("\n"):
            answer("\n")
        report(stream.result(), n_given="max_tokens" in arguments)

"""``rml tok TEXT``: how a text is cut into tokens."""

from pathlib import Path

import click

import rml
from rml.cli.console import print_json, printable, table, uses_color
from rml.cli.models import locate
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.cli.prompts import read_prompt

__all__ = ["command"]

_BACKGROUNDS = ("bright_yellow", "bright_cyan", "bright_green", "bright_magenta", "white")


@click.command("tok", cls=Command)
@click.argument("text", required=False)
@options("model", "prompt", "file")
@click.option("--no-bos", is_flag=True, help="Do not add the beginning-of-text token.")
@click.option("--parse-special", is_flag=True, help="Read <|...|> and the like as control tokens.")
@click.option("--ids", is_flag=True, help="Print the ids alone, as a list.")
@click.option("--count", "--show-count", is_flag=True, help="Print the number of tokens alone.")
@options("output")
def command(
    text: str | None,
    model: str,
    prompt: str | None,
    file: Path | None,
    no_bos: bool,
    parse_special: bool,
    ids: bool,
    count: bool,
    output: str,
) -> None:
    """Show the tokens of TEXT: their ids, bytes and borders. TEXT may come from stdin."""
    words = read_prompt(text, prompt, file)
    tokenizer = rml.load_tokenizer(locate(model))
    tokens = tokenizer.encode(words, add_special=not no_bos, parse_special=parse_special)
    if count:
        click.echo(len(tokens))
    elif ids:
        click.echo(tokens)
    elif output == "json":
        print_json(
            [
                {
                    "id": t,
                    "piece": _piece(tokenizer.token_bytes(t)),
                    "special": tokenizer.is_special(t),
                }
                for t in tokens
            ]
        )
    else:
        rows = [
            (
                t,
                repr(_piece(tokenizer.token_bytes(t))),
                "special" if tokenizer.is_special(t) else "",
            )
            for t in tokens
        ]
        table(("ID", "PIECE", ""), rows, right="rll")
        if uses_color():
            click.echo()
            _show_borders(tokenizer, tokens)


def _piece(data: bytes) -> str | list[int]:
    """Text of a token; the bytes as numbers where they are no whole characters."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def _show_borders(tokenizer: "rml.Tokenizer", tokens: list[int]) -> None:
    """Print the text with one background a token."""
    for i, token in enumerate(tokens):
        text = printable(tokenizer.token_bytes(token).decode("utf-8", "backslashreplace"))
        shown = text.replace("\n", "\\n\n")
        click.secho(shown, bg=_BACKGROUNDS[i % len(_BACKGROUNDS)], fg="black", nl=False)
    click.echo()

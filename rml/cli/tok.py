"""``rml tok TEXT``: how a text is cut into tokens, and whether two tokenizers do it alike."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import click

import rml
from rml.cli.console import print_json, printable, show, table, uses_color
from rml.cli.models import locate
from rml.cli.nasty_texts import NASTY_TEXTS
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.cli.prompts import piped, read_prompt
from rml.cli.stop_tokens import facts_of_stops, print_stops

__all__ = ["command"]

_BACKGROUNDS = ("bright_yellow", "bright_cyan", "bright_green", "bright_magenta", "white")
_SHOWN = 5  # tokens from a difference on


@click.command("tok", cls=Command)
@click.argument("text", required=False)
@options("model", "prompt", "file", "escape")
@click.option("--no-bos", is_flag=True, help="Do not add the beginning-of-text token.")
@click.option("--parse-special", is_flag=True, help="Read <|...|> and the like as control tokens.")
@click.option("--ids", is_flag=True, help="Print the ids alone, as a list.")
@click.option("--count", "--show-count", is_flag=True, help="Print the number of tokens alone.")
@click.option(
    "--compare",
    metavar="OTHER",
    help="Look for a text, TEXT or one of many nasty ones, that the model OTHER cuts differently.",
)
@click.option(
    "--check",
    is_flag=True,
    help="List the tokens that end a generation, why each does, and oddities of the vocabulary.",
)
@options("output")
def command(
    text: str | None,
    model: str,
    prompt: str | None,
    file: tuple[Path, ...],
    escape: bool,
    no_bos: bool,
    parse_special: bool,
    ids: bool,
    count: bool,
    compare: str | None,
    check: bool,
    output: str,
) -> None:
    """Show the tokens of TEXT: their ids, bytes and borders.

    TEXT may also come from -p, from files (-f) and from stdin; several are joined as in rml run. A
    first word that is the name of a model, or a model's file, is the model.
    """
    if check:
        if (text, prompt, file, compare) != (None, None, (), None):
            raise click.UsageError(
                "--check looks at the model alone: it takes no text, no --compare"
            )
        _check(rml.load_tokenizer(locate(model)), output)
        return
    if compare is not None and (text, prompt, file) == (None, None, ()):
        given = piped()
        _compare(model, compare, [given] if given else None)
        return
    words = read_prompt(text, prompt, file, escape=escape)
    if compare is not None:
        _compare(model, compare, [words])
        return
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


def _check(tokenizer: rml.Tokenizer, output: str) -> None:
    """Print what ends a generation, and what is odd."""
    odd = tokenizer.check()
    if output == "json":
        print_json({"stop_tokens": facts_of_stops(tokenizer), "oddities": odd})
        return
    print_stops(tokenizer)
    for sentence in odd:
        show(sentence)


def _compare(model: str, other: str, texts: Sequence[str] | None) -> None:
    """Print the first difference between two tokenizers, and end with exit code 1 if there is one.

    Of every text both the ids are compared, with control tokens read and not read, and the text
    that they decode to.
    """
    names = (model, other)
    pair = [rml.load_tokenizer(locate(name)) for name in names]
    if texts is None:
        own = {name for t in pair for name in (t.bos_token, t.eos_token) if name}
        texts = [*NASTY_TEXTS, *(f"a {name} b" for name in sorted(own))]
    for text in texts:
        for special in (False, True):
            ids = [t.encode(text, parse_special=special) for t in pair]
            decoded = [t.decode(i, skip_special=False) for t, i in zip(pair, ids, strict=True)]
            if ids[0] == ids[1] and decoded[0] == decoded[1]:
                continue
            at = sum(1 for _ in takewhile(bool, map(int.__eq__, *ids)))
            click.echo(f"different{' with --parse-special' if special else ''}: {text!a}")
            click.echo(f"from token {at} on:" if ids[0] != ids[1] else "in the text of the tokens:")
            for name, tokenizer, tokens in zip(names, pair, ids, strict=True):
                shown = tokens[at : at + _SHOWN] if ids[0] != ids[1] else tokens[:_SHOWN]
                click.echo(f"  {name} ({len(tokens)} tokens)")
                for token in shown:
                    click.echo(f"    {token:>7} {_piece(tokenizer.token_bytes(token))!r}")
            raise click.exceptions.Exit(1)
    click.echo(f"the same ids for {len(texts)} {'text' if len(texts) == 1 else 'texts'}")


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

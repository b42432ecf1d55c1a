"""``rml scan FILE``: what deserves a look before a model is trusted."""

from dataclasses import asdict

import click

from rml.cli.console import bytes_text, print_json, progress_bar, say, table
from rml.cli.models import locate
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.errors import RmlError
from rml.files.limits import LIMITS
from rml.scan import Report, scan

__all__ = ["command"]

_FINDINGS, _BROKEN = 1, 2  # exit codes; 0 is clean


@click.command("scan", cls=Command)
@click.argument("file", required=False)
@click.option("--limits", is_flag=True, help="List what a file may ask for at most.")
@options("output")
def command(file: str | None, limits: bool, output: str) -> None:
    """Look through FILE, a model or a tokenizer.json, before it is trusted.

    Structure and bounds, checksums, keys that rml does not know, weights that are not finite, chat
    templates (what they use that is refused, whether they render, characters that nobody sees) and
    control tokens are looked at; nothing is changed. The exit code is 0 if nothing was found, 1 if
    something was, 2 if it cannot be opened.
    """
    if limits:
        if file is not None:
            raise click.UsageError("--limits takes no file")
        _show_limits(output)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'.")
    try:
        with progress_bar("scanning") as progress:
            report = scan(locate(file), progress)
    except RmlError as error:  # also of a model that was not pulled: 1 would say that it was read
        _show_broken(file, error, output)
        raise click.exceptions.Exit(_BROKEN) from None
    if output == "json":
        print_json({"status": "clean" if report.is_clean else "findings"} | asdict(report))
    else:
        _show(report)
    if not report.is_clean:
        raise click.exceptions.Exit(_FINDINGS)


def _show(report: Report) -> None:
    rows = [
        (file.path, bytes_text(file.size), file.sha256, file.receipt or "unknown")
        for file in report.files
    ]
    table(("FILE", "SIZE", "SHA-256", "RECEIPT"), rows, right="lrll")
    click.echo()
    facts = [(name, _fact(value)) for name, value in report.facts.items()]
    table(("LOOKED AT", ""), facts)
    click.echo()
    if report.is_clean:
        click.echo("clean: nothing was found")
        return
    table(
        ("FINDING", "WHERE", "COUNT", "WHAT"),
        [(f.kind, f.where, f.count, f.what) for f in report.findings],
        right="llrl",
    )


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text!r}" for name, text in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _show_broken(file: str, error: RmlError, output: str) -> None:
    if output == "json":
        kind = type(error).__name__
        print_json({"status": "broken", "path": file, "error": kind, "message": str(error)})
    else:
        say(f"broken: {error}")


def _show_limits(output: str) -> None:
    if output == "json":
        print_json([asdict(limit) for limit in LIMITS])
        return
    rows = [(limit.room, limit.value, limit.what, limit.reason) for limit in LIMITS]
    table(("OF", "AT MOST", "WHAT", "WHY"), rows, right="lrll")

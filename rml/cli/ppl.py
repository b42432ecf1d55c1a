"""``rml ppl FILE``: perplexity of a text; `rml.generation.perplexity` says what it means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rml.cli.console import line_progress, print_json
from rml.cli.models import load
from rml.cli.option_table import MODEL_OPTIONS
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.cli.prompts import is_stdin, piped, read_prompt
from rml.generation.perplexity import Perplexity, perplexity

__all__ = ["command"]

_CHUNK = 512  # llama-perplexity's default


@click.command("ppl", cls=Command)
@click.argument("text_file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@options("file", *MODEL_OPTIONS)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Measure N chunks at most.")
@options("output")
def command(
    text_file: Path | None,
    file: tuple[Path, ...],
    chunks: int | None,
    output: str,
    **values: Any,  # noqa: ANN401 - the shared options
) -> None:
    """Measure how well a model predicts the text in FILE; the lower, the better.

    The text is cut into chunks of -c tokens (default: 512), and the second half of each is scored,
    as llama-perplexity does. Without FILE, or with -, the text is read from stdin. A first word
    that is the name of a model, or a model's file, is the model.
    """
    text = _read([*file, *([] if text_file is None else [text_file])])
    with load(values) as model:
        chunk = model.n_ctx if values["ctx_size"] is not None else min(_CHUNK, model.n_ctx)
        tokenizer = model.tokenizer
        with model.session(n_ctx=chunk) as session:
            result = perplexity(
                session,
                tokenizer.encode(text),
                chunk=chunk,
                bos_id=tokenizer.bos_id if tokenizer.add_bos else None,
                max_chunks=chunks,
                progress=_show(),
            )
        if output == "json":
            print_json(
                {
                    "perplexity": result.value,
                    "error": result.error,
                    "tokens": result.n_scored,
                    "chunks": result.n_chunks,
                    "n_ctx": chunk,
                    "model": str(values["model"]),
                    "compute": model.compute,
                    "kv_type": model.kv_type,
                }
            )
        else:
            click.echo(
                f"perplexity {result.value:.4f} ± {result.error:.4f} "
                f"({result.n_scored} tokens in {result.n_chunks} chunks of {chunk})"
            )


def _read(files: Sequence[Path]) -> str:
    """Read the one text; of two joined, the number would mean nothing."""
    if len(files) > 1:
        raise click.UsageError("give the file once: as an argument or with -f")
    for file in files:
        if is_stdin(file):
            break
        if not file.exists():
            raise click.UsageError(f"{file}: there is no such file")
        if piped():
            raise click.UsageError(f"two texts were given, {file} and stdin: give one")
    return read_prompt(None, None, files)


def _show() -> Any:  # noqa: ANN401 - a callback
    line = line_progress("chunks")

    def show(done: int, total: int, result: Perplexity) -> None:
        line(done, total, f"perplexity so far {result.value:.4f}")

    return show

"""Every kernel against the limits of the machine: tables on one page.

    python tools/kernel_table.py                                 all kernels and formats
    python tools/kernel_table.py --markdown --model smollm2      and a model's step and load time
    python tools/kernel_table.py --quick --formats Q4_K,Q8_0     a look

All of it is measured in one run:

- limits: what `rml.limits.measure` finds. Every share below is that of the nearer limit, of reading
  or of multiplying (where ``int8x2`` needs two products of bytes, that is counted).
- each kernel that multiplies weights, in each format: one token (decode) in gigabytes of weights a
  second, 512 tokens (prefill) in 1e9 multiplications a second, for each ``compute``. Matrices are
  5632 x 2048 (experts: 1024 x 2048, two of eight to a token). In decode they are cold: the caches
  are filled with something else, then each operation of a plan reads a matrix of its own.
- dequantize and embed in gigabytes of blocks a second, cold.
- attention in one layer of Llama 3 8B (32 heads on 8, of 128), by what the cache stores: one token
  after 512 and 4096, and 512 tokens that end there.
- the kernels without weights, in microseconds, warm as they are in a step.
- a model: a step by number of threads, what of it is outside the kernels, and load time.

A figure is the median of equal operations, each in the best of three runs. Other programs disturb
it; shares suffer less, as long as the disturbance is the same all the time.
"""

from collections.abc import Iterable
from pathlib import Path

import click
from kernel_measurements import (
    COMPUTES,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PREFILL,
    PRODUCTS,
    Settings,
    attention_rows,
    copy_rows,
    load_seconds,
    product_rows,
    small_rows,
    step_rows,
)

from rml._kernels.checks import FLOAT_FORMATS, QUANTIZED_FORMATS
from rml.errors import RmlError
from rml.files.locate import locate

PARTS = (*PRODUCTS, "copies", "attention", "small", "none")


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], markdown: bool) -> None:
    """Print a table; its first column is text, the others are figures."""
    table = [list(columns), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        [
            cell.rjust(w) if i else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in table
    ]
    click.echo(f"\n**{title}**\n" if markdown else f"\n{title}")
    if not markdown:
        click.echo("\n".join("  ".join(line).rstrip() for line in lines))
        return
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    click.echo("\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]]))


def names(value: str | None, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Names of a comma-separated option; all that are known if it is not given."""
    known = tuple(known)
    chosen = known if value is None else tuple(part.strip() for part in value.split(",") if part)
    for name in chosen:
        if name not in known:
            raise click.UsageError(f"unknown {what} {name!r}; known are {', '.join(known)}")
    return chosen


@click.command()
@click.option("--formats", metavar="A,B,...", help="Weight formats; all if not given.")
@click.option("--parts", metavar="A,B,...", help=f"Tables: {', '.join(PARTS)}; all if not given.")
@click.option("--model", help="A model to step: a path, or a known name such as smollm2.")
@click.option("--threads", type=click.IntRange(1), help="As many as a model gets if not given.")
@click.option("--quick", is_flag=True, help="One run of each, smaller memory: a look, no figures.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(
    formats: str | None,
    parts: str | None,
    model: str | None,
    threads: int | None,
    quick: bool,
    markdown: bool,
) -> None:
    """Print every kernel against the limits of the machine."""
    chosen_formats = names(formats, QUANTIZED_FORMATS + FLOAT_FORMATS, "format")
    chosen_parts = names(parts, PARTS, "part")
    try:
        path = None if model is None else locate(model)
        settings = Settings.measured(chosen_formats, threads, quick=quick)
        click.echo(f"{'**Limits**' if markdown else 'limits'}: {settings.limits}")
        kernel_tables(settings, chosen_parts, markdown)
        if path is not None:
            model_table(settings, path, markdown)
    except RmlError as error:
        raise click.ClickException(str(error)) from error


def kernel_tables(settings: Settings, parts: tuple[str, ...], markdown: bool) -> None:
    """Print the tables of kernels that are asked for."""
    for kernel in PRODUCTS:
        if kernel in parts:
            show(
                f"{kernel}: decode in GB/s, prefill of {PREFILL} tokens in G products/s",
                [
                    "format",
                    "bits",
                    *(f"{c} GB/s" for c in COMPUTES),
                    *(f"{c} G/s" for c in COMPUTES),
                ],
                product_rows(settings, kernel),
                markdown,
            )
    if "copies" in parts:
        show(
            f"dequantize (a matrix) and embed ({PREFILL} rows)",
            ["format", "dequantize GB/s", "and written GB/s", "embed GB/s"],
            copy_rows(settings),
            markdown,
        )
    if "attention" in parts:
        show(
            f"attend: a layer with {HEADS} heads on {KV_HEADS}, of {HEAD_DIM}",
            ["cache", "step ms", "step GB/s", f"prefill of {PREFILL} ms", "prefill G products/s"],
            attention_rows(settings),
            markdown,
        )
    if "small" in parts:
        show(
            "kernels without weights, in a model of that size",
            ["kernel", "1 token us", f"{PREFILL} tokens us"],
            small_rows(settings),
            markdown,
        )


def model_table(settings: Settings, model: Path, markdown: bool) -> None:
    """Print what a step of a model takes, and how long it takes to load."""
    columns = ["threads, compute", "ms", "tokens/s", "GB/s", "limit GB/s", "share"]
    show(
        f"a step of {model.name} after {settings.depth} tokens",
        [*columns, "ms outside kernels"],
        step_rows(settings, model),
        markdown,
    )
    seconds = load_seconds(model, settings.repeats)
    click.echo(f"\nload time of {model.name}: {1e3 * seconds:.1f} ms")


if __name__ == "__main__":
    main()

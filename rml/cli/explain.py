"""``rml explain MODEL``: what a model is and what it costs, before anything is loaded."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import click

import rml
from rml import memory_room
from rml._kernels.pages import KV_TYPES
from rml.cli.console import bytes_text, print_json, show, table
from rml.cli.models import locate
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.engine.context import (
    default_kv_memory,
    fitting_context,
    fitting_positions,
    kv_bytes,
)
from rml.errors import RmlError
from rml.llm.config import ModelConfig
from rml.llm.memory import MemoryBill, Steps
from rml.llm.weight_source import WeightSource
from rml.memory_room import Room

__all__ = ["command"]

# Sizes come first; what is left are switches, shown where they differ from the plain recipe.
_SIZES = (
    "n_layers",
    "n_vocab",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_ffn",
    "n_experts",
    "n_experts_used",
    "d_expert_ffn",
    "n_ctx_train",
)

_MAPPED = (
    "the weights are mapped: pages of the file, shared by all processes that map it, which the "
    "system can take back"
)
_COPY = "the weights are a copy in each process's own memory (--no-mmap), read once as a whole"


@click.command("explain", cls=Command, only_model=True)
@options("model", "ctx_size", "batch_size", "mmap")
@click.option(
    "--kv-memory",
    type=click.IntRange(1),
    metavar="BYTES",
    help="What the keys and values of all sequences may take, as in rml.load.  [default: three "
    "quarters of the memory of the machine, of which a load takes what is free]",
)
@options("output")
def command(
    model: str,
    ctx_size: int | None,
    batch_size: int | None,
    mmap: bool | None,
    kv_memory: int | None,
    output: str,
) -> None:
    """Explain the recipe of MODEL and the memory that it needs, without loading it.

    Beside the memory of one sequence of -c tokens it says how many tokens, and how many such
    sequences, fit into the memory for the keys and values of all.
    """
    with rml.open_checkpoint(locate(model)) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        weights = sum(tensor.n_bytes for tensor in checkpoint.tensors.values())
        if is_copy := mmap is False:
            weights = checkpoint.nbytes  # all of the files
        path = checkpoint.path
        n_ctx, n_batch = ctx_size or config.n_ctx_train, batch_size or 512
        largest = {
            kv_type: fitting_context(
                config, weights=weights, kv_type=kv_type, n_batch=n_batch, in_full=True
            )[0]
            for kv_type in KV_TYPES
        }
        try:
            steps = Steps(formats=WeightSource(checkpoint, config).formats)
        except RmlError:  # it can be explained, if not loaded
            steps = Steps()
        machine, process = memory_room.total(), memory_room.reservable()
        # Pages of a mapped file can be given back to make room, those of a copy cannot.
        left = Room(max(0, machine.n_bytes - weights), machine.limit) if is_copy else machine
        fits = {
            kv_type: _Fit.of(
                config,
                n_ctx=n_ctx,
                kv_type=kv_type,
                # Of the machine, not of what is free in this moment: asked again it is the same.
                kv_memory=kv_memory
                or default_kv_memory(config, n_ctx=n_ctx, kv_type=kv_type, room=min(left, process)),
            )
            for kv_type in KV_TYPES
        }
    bills = {
        kv_type: MemoryBill.of(
            config, weights=weights, n_ctx=n_ctx, kv_type=kv_type, n_batch=n_batch, steps=steps
        )
        for kv_type in KV_TYPES
    }
    if output == "json":
        facts = _facts(path, config, n_ctx, (machine, process), bills, largest)
        facts["mmap"] = not is_copy
        print_json({**facts, "kv_memory": {kv: fit._asdict() for kv, fit in fits.items()}})
        return

    show(f"{path}: {config.architecture}, {config.parameter_count():,} parameters\n")
    table(("SIZE", ""), [(size, f"{getattr(config, size):,}") for size in _SIZES], right="lr")
    click.echo("\nSWITCHES (all others are those of the plain Llama recipe)")
    for switch, value in _switches(config):
        click.echo(f"{switch:26}{value}")
    click.echo()
    rows = [
        (
            kv_type,
            bytes_text(bill.weights),
            bytes_text(bill.kv_cache),
            bytes_text(bill.lists),
            bytes_text(bill.scratch),
            bytes_text(bill.total),
            f"{largest[kv_type]:,}",
        )
        for kv_type, bill in bills.items()
    ]
    header = (
        f"MEMORY FOR {n_ctx:,} TOKENS",
        "WEIGHTS",
        "KV CACHE",
        "LISTS",
        "SCRATCH",
        "ALL",
        "LARGEST CONTEXT",
    )
    table(header, rows, right="lrrrrrr")
    click.echo()
    table(
        ("MEMORY FOR KEYS AND VALUES", "BYTES", "TOKENS", f"SEQUENCES OF {n_ctx:,}"),
        [
            (kv_type, bytes_text(fit.kv_memory), f"{fit.tokens:,}", f"{fit.sequences:,}")
            for kv_type, fit in fits.items()
        ],
        right="lrrr",
    )
    click.echo(f"\n{_COPY if is_copy else _MAPPED}")
    verb = "fit" if weights <= machine.n_bytes else "do not fit"
    click.echo(f"{machine.limit}: {bytes_text(machine.n_bytes)}; the weights {verb} into it")
    if process.is_limited:
        click.echo(f"left for cache and scratch: {bytes_text(process.n_bytes)} ({process.limit})")


class _Fit(NamedTuple):
    """What the memory for the keys and values of all sequences holds."""

    kv_memory: int
    tokens: int
    sequences: int  # of the context's length

    @classmethod
    def of(cls, config: ModelConfig, *, n_ctx: int, kv_type: str, kv_memory: int) -> "_Fit":
        tokens = fitting_positions(kv_memory, config, kv_type=kv_type)
        one = kv_bytes(config, n_ctx=n_ctx, kv_type=kv_type)
        return cls(kv_memory, tokens, kv_memory // one)


def _switches(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Every switch that is on, and what it is set to."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in _SIZES or field.name == "architecture" or value == field.default:
            continue
        if field.name == "windows":
            value = _layers(value, "all")
        elif field.name == "rope_layers":
            value = _layers(tuple("yes" if on else "no" for on in value), None)
        elif field.name == "rope_scaling" and value.divisors:
            value = f"{len(value.divisors)} divisors of the frequencies"
        yield field.name, str(value)


def _layers(values: tuple[Any, ...], name_of_none: str | None) -> str:
    """Summarize one value for each layer: how many layers have which."""
    counts: dict[str, int] = {}
    for value in values:
        text = str(name_of_none if value is None else value)
        counts[text] = counts.get(text, 0) + 1
    return ", ".join(f"{text} in {n} layers" for text, n in counts.items())


def _facts(
    path: object,
    config: ModelConfig,
    n_ctx: int,
    rooms: tuple[memory_room.Room, memory_room.Room],
    bills: dict[str, MemoryBill],
    largest: dict[str, int],
) -> dict[str, Any]:
    machine, process = rooms
    return {
        "path": str(path),
        "config": asdict(config),
        "parameters": config.parameter_count(),
        "n_ctx": n_ctx,
        "machine_bytes": machine.n_bytes if machine.is_limited else None,
        "reservable_bytes": process.n_bytes if process.is_limited else None,
        "memory": {kv: {**asdict(bill), "total": bill.total} for kv, bill in bills.items()},
        "largest_context": largest,
    }

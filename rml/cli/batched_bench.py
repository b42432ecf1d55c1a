"""``rml bench -npp -ntg -npl``: many sequences at once, with the meaning of llama-batched-bench.

For every combination of PP, TG and B the prompts of B sequences are evaluated, PP random tokens
each, then TG steps of one token in all of them. With -pps the prompt is the same one for all, and
is evaluated once. What is not measured: loading, and one step to warm up.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

import click
import numpy as np

import rml
from rml.cli.console import print_csv, print_json
from rml.cli.models import load
from rml.engine.session import Session, forward_together

__all__ = ["asked_for", "options", "run"]

_F = TypeVar("_F", bound=Callable[..., Any])
_NAMES = {"npp": "PP", "ntg": "TG", "npl": "B"}


def _numbers(_: click.Context, option: click.Parameter, given: str | None) -> list[int] | None:
    """Whole numbers with commas between."""
    if given is None:
        return None
    try:
        numbers = [int(each) for each in given.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < (0 if option.name == "ntg" else 1):
        raise click.BadParameter(f"{given!r} is no list of numbers such as 128,256")
    return numbers


class Lists(NamedTuple):
    """What to combine."""

    npp: list[int]
    ntg: list[int]
    npl: list[int]


def options(function: _F) -> _F:
    """Add the options of this measurement to a command."""
    for decorate in (
        click.option(
            "-pps", "pps", is_flag=True, help="One prompt for all sequences, evaluated once."
        ),
        click.option("-npl", "npl", callback=_numbers, metavar="LIST", help="Sequences at once."),
        click.option(
            "-ntg", "ntg", callback=_numbers, metavar="LIST", help="Steps of all of them."
        ),
        click.option(
            "-npp", "npp", callback=_numbers, metavar="LIST", help="Tokens of the prompt of each."
        ),
    ):
        function = decorate(function)
    return function


def asked_for(values: dict[str, Any]) -> Lists | None:
    """Take the options out of what a command was given; None if there are none.

    Raises
    ------
    click.UsageError
        If one of the three is missing.
    """
    lists = [values.pop(name) for name in _NAMES]
    shared = values["pps"]
    if not any(lists):
        if shared:
            raise click.UsageError("-pps belongs to -npp, -ntg and -npl")
        return None
    for name, given in zip(_NAMES, lists, strict=True):
        if not given:
            raise click.UsageError(f"-npp, -ntg and -npl belong together, but -{name} is missing")
    return Lists(*lists)


def run(lists: Lists, values: Mapping[str, Any], output: str) -> None:
    """Measure all combinations; a table shows each one as soon as it is known."""
    n_ctx = max(lists.npp) + max(lists.ntg)
    rows = []
    with load({**values, "ctx_size": n_ctx}) as model:
        with model.session() as session:
            session.forward([0])
        if output == "md":
            columns = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s")
            click.echo(f"| {' | '.join(columns)} | S t/s |")
            click.echo(f"| {' | '.join(['---:'] * (len(columns) + 1))} |")
        for n_prompt, n_steps, n_sequences in itertools.product(*lists):
            row = _measured(model, n_prompt, n_steps, n_sequences, shared=values["pps"])
            rows.append(row)
            if output == "md":
                click.echo(f"| {' | '.join(map(_cell, row.values()))} |")
    if output == "json":
        print_json(rows)
    elif output == "csv":
        print_csv(rows)


def _measured(
    model: rml.Model, n_prompt: int, n_steps: int, n_sequences: int, *, shared: bool
) -> dict[str, float]:
    random, n_vocab = np.random.default_rng(0), model.config.n_vocab
    out = np.empty((n_sequences, n_vocab), np.float32)
    n_prompts = 1 if shared else n_sequences
    prompts = random.integers(0, n_vocab, (n_prompts, n_prompt)).tolist()
    steps = random.integers(0, n_vocab, (n_steps, n_sequences, 1)).tolist()
    with ExitStack() as opened:
        sessions: list[Session] = [opened.enter_context(model.session()) for _ in prompts]
        start = time.perf_counter()
        forward_together(sessions, prompts, out[:n_prompts])
        prompt_seconds = time.perf_counter() - start
        sessions += [
            opened.enter_context(sessions[0].fork()) for _ in range(n_prompts, n_sequences)
        ]
        start = time.perf_counter()
        for ids in steps:
            forward_together(sessions, ids, out)
        step_seconds = time.perf_counter() - start
    seconds = prompt_seconds + step_seconds
    n_evaluated, n_decoded = n_prompts * n_prompt, n_sequences * n_steps
    return {
        "n_prompt": n_prompt,
        "n_gen": n_steps,
        "n_parallel": n_sequences,
        "n_kv": n_evaluated + n_decoded,
        "pp_s": round(prompt_seconds, 3),
        "pp": round(n_evaluated / prompt_seconds, 2),
        "tg_s": round(step_seconds, 3),
        "tg": round(n_decoded / step_seconds, 2),
        "s": round(seconds, 3),
        "total": round((n_evaluated + n_decoded) / seconds, 2),
    }


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"

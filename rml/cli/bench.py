"""``rml bench``: speed of prefill and decode, with the meaning of llama-bench.

ppN   one prompt of N random tokens into a cache that holds the depth, logits of the last token
tgM   M steps of one token each from there; no sampling, no text

Each is run once to warm up (tg: one step), then measured; filling the cache to the depth is not
measured.
"""

import csv
import io
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

import rml
from rml.cli.console import bytes_text, print_json, say
from rml.cli.models import load, locate
from rml.cli.option_table import MODEL_OPTIONS
from rml.cli.options import option, options
from rml.cli.parsing import Command

__all__ = ["command"]


@click.command("bench", cls=Command, only_model=True)
@options(*(name for name in MODEL_OPTIONS if name not in {"ctx_size", "batch_size"}))
@option("batch_size", default=512, show_default=True)
@click.option("-p", "--n-prompt", type=click.IntRange(0), default=512, show_default=True)
@click.option("-n", "--n-gen", type=click.IntRange(0), default=128, show_default=True)
@click.option("-d", "--n-depth", type=click.IntRange(0), default=0, show_default=True)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@option("output", type=click.Choice(["md", "csv", "json"]), default="md", show_default=True)
def command(
    n_prompt: int,
    n_gen: int,
    n_depth: int,
    repetitions: int,
    output: str,
    **values: Any,  # noqa: ANN401 - the shared options
) -> None:
    """Measure tokens per second: a prompt of -p tokens, then -n steps of one token.

    Both start with -d tokens in the cache. -p 0 or -n 0 leaves one of them out.
    """
    if not n_prompt and not n_gen:
        raise click.UsageError("-p 0 -n 0: nothing to measure")
    n_ctx = n_depth + max(n_prompt, n_gen)
    path = locate(values["model"], offline=values["offline"])
    start = time.perf_counter()
    with load({**values, "ctx_size": n_ctx}) as model, model.session() as session:
        load_seconds = time.perf_counter() - start
        bench = _Bench(session, model.config.n_vocab, n_depth, values["batch_size"])
        prompt, steps = [], []
        if n_prompt:
            bench.prompt(n_prompt)
        if n_gen:
            bench.steps(1)
        for _ in range(repetitions):
            if n_prompt:
                prompt.append(bench.prompt(n_prompt))
            if n_gen:
                steps.append(bench.steps(n_gen))
        info = rml.info()
        facts = {
            "engine": "rml",
            "version": rml.__version__,
            "model": str(values["model"]),
            "model_bytes": _size(path),
            "parameters": model.config.parameter_count(),
            "compute": model.compute,
            "kv_type": model.kv_type,
            "threads": model.n_threads,
            "backend": info["backend"],
            "isa": info["isa"],
            "n_prompt": n_prompt,
            "n_gen": n_gen,
            "n_depth": n_depth,
            "repetitions": repetitions,
            "load_s": round(load_seconds, 3),
            **_rates("pp", prompt),
            **_rates("tg", steps),
        }
    _OUTPUTS[output](facts)


class _Bench:
    """Times parts of a session; tokens are random, the same in every run."""

    def __init__(self, session: "rml.Session", n_vocab: int, depth: int, n_batch: int) -> None:
        self._session = session
        self._n_batch = n_batch
        self._random = np.random.default_rng(0)
        self._n_vocab = n_vocab
        self._out = np.empty(n_vocab, np.float32)
        self._depth = self._tokens(depth)

    def _tokens(self, n: int) -> list[int]:
        ids: list[int] = self._random.integers(0, self._n_vocab, n).tolist()
        return ids

    def _evaluate(self, ids: list[int]) -> None:
        for start in range(0, len(ids), self._n_batch):
            self._session.forward(ids[start : start + self._n_batch], out=self._out)

    def _rewind(self) -> None:
        """Leave just the depth in the cache."""
        if self._session.position >= len(self._depth) > 0:
            self._session.truncate(len(self._depth))
        else:
            self._session.truncate(0)
            self._evaluate(self._depth)

    def prompt(self, n: int) -> float:
        """Tokens per second of one prompt."""
        ids = self._tokens(n)
        self._rewind()
        start = time.perf_counter()
        self._evaluate(ids)
        return n / (time.perf_counter() - start)

    def steps(self, n: int) -> float:
        """Tokens per second of single steps."""
        steps = [[token] for token in self._tokens(n)]
        self._rewind()
        start = time.perf_counter()
        for ids in steps:
            self._session.forward(ids, out=self._out)
        return n / (time.perf_counter() - start)


def _rates(name: str, samples: list[float]) -> dict[str, Any]:
    if not samples:
        return {name: None, f"{name}_sd": None, f"{name}_samples": []}
    deviation = statistics.stdev(samples) if len(samples) > 1 else 0.0
    return {
        name: round(statistics.mean(samples), 3),
        f"{name}_sd": round(deviation, 3),
        f"{name}_samples": [round(sample, 3) for sample in samples],
    }


def _size(path: Path) -> int:
    with rml.open_checkpoint(path) as checkpoint:
        return sum(tensor.n_bytes for tensor in checkpoint.tensors.values())


def _print_table(facts: Mapping[str, Any]) -> None:
    """Print llama-bench's table."""
    say(f"rml {facts['version']}, loaded in {facts['load_s']:.2f} s")
    columns = ("model", "size", "params", "compute", "backend", "threads", "test", "t/s")
    click.echo(f"| {' | '.join(columns)} |")
    click.echo("| --- | ---: | ---: | --- | --- | ---: | ---: | ---: |")
    at = f" @ d{facts['n_depth']}" if facts["n_depth"] else ""
    for name, n in (("pp", facts["n_prompt"]), ("tg", facts["n_gen"])):
        if n:
            cells = (
                Path(facts["model"]).name,
                bytes_text(facts["model_bytes"]),
                f"{facts['parameters'] / 1e6:.2f} M",
                facts["compute"],
                f"{facts['backend']} {facts['isa']}",
                facts["threads"],
                f"{name}{n}{at}",
                f"{facts[name]:.2f} ± {facts[f'{name}_sd']:.2f}",
            )
            click.echo(f"| {' | '.join(map(str, cells))} |")


def _print_csv(facts: Mapping[str, Any]) -> None:
    row = {key: value for key, value in facts.items() if not key.endswith("_samples")}
    text = io.StringIO()
    writer = csv.DictWriter(text, row, lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    click.echo(text.getvalue(), nl=False)


_OUTPUTS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "md": _print_table,
    "csv": _print_csv,
    "json": print_json,
}

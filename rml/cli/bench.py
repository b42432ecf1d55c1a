"""``rml bench``: speed of prefill and decode, with the meaning of llama-bench.

ppN   one prompt of N random tokens into a cache that holds the depth, logits of the last token
tgM   M steps of one token each from there; no sampling, no text

Each is run once to warm up (tg: one step), then measured; filling the cache to the depth is not
measured. With --parallel both are done in so many sequences at once, and the tokens of all count.
-npp, -ntg and -npl measure as llama-batched-bench does (`batched_bench`).
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

import rml
from rml.cli import batched_bench
from rml.cli.console import bytes_text, print_csv, print_json, say
from rml.cli.models import load, locate
from rml.cli.option_table import MODEL_OPTIONS
from rml.cli.options import option, options
from rml.cli.parsing import Command
from rml.engine.session import Session, forward_together

__all__ = ["command"]


@click.command("bench", cls=Command, only_model=True)
@options(*(name for name in MODEL_OPTIONS if name not in {"ctx_size", "batch_size"}))
@option("batch_size", default=512, show_default=True)
@click.option("-p", "--n-prompt", type=click.IntRange(0), default=512, show_default=True)
@click.option("-n", "--n-gen", type=click.IntRange(0), default=128, show_default=True)
@click.option("-d", "--n-depth", type=click.IntRange(0), default=0, show_default=True)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--parallel",
    "-np",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Sequences at once; the tokens of all are counted.",
)
@batched_bench.options
@option("output", type=click.Choice(["md", "csv", "json"]), default="md", show_default=True)
def command(
    n_prompt: int,
    n_gen: int,
    n_depth: int,
    repetitions: int,
    parallel: int,
    output: str,
    **values: Any,  # noqa: ANN401 - the shared options
) -> None:
    """Measure tokens per second: a prompt of -p tokens, then -n steps of one token.

    Both start with -d tokens in the cache. -p 0 or -n 0 leaves one of them out. --parallel does
    both in several sequences at once.

    -npp, -ntg and -npl (each a number, or several with commas between) measure every combination:
    -npl prompts of -npp tokens at once, and -ntg steps of all of them.
    """
    if (batched := batched_bench.asked_for(values)) is not None:
        _only_batched()
        batched_bench.run(batched, values, output)
        return
    if not n_prompt and not n_gen:
        raise click.UsageError("-p 0 -n 0: nothing to measure")
    n_ctx = n_depth + max(n_prompt, n_gen)
    path = locate(values["model"], offline=values["offline"])
    start = time.perf_counter()
    with load({**values, "ctx_size": n_ctx}) as model, ExitStack() as opened:
        sessions = [opened.enter_context(model.session()) for _ in range(parallel)]
        load_seconds = time.perf_counter() - start
        bench = Bench(sessions, model.config.n_vocab, n_depth, values["batch_size"])
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
            "n_parallel": parallel,
            "repetitions": repetitions,
            "load_s": round(load_seconds, 3),
            **_rates("pp", prompt),
            **_rates("tg", steps),
        }
    _OUTPUTS[output](facts)


def _only_batched() -> None:
    """Refuse what has no meaning beside the options of the batched bench."""
    context = click.get_current_context()
    for name, flag in (
        ("n_prompt", "-p"),
        ("n_gen", "-n"),
        ("n_depth", "-d"),
        ("repetitions", "-r"),
        ("parallel", "--parallel"),
    ):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"{flag} has no meaning beside -npp, -ntg and -npl")


class Bench:
    """Times parts of sessions; tokens are random, the same in every run."""

    def __init__(
        self,
        sessions: Sequence[Session],
        n_vocab: int,
        depth: int,
        n_batch: int,
        forward: Callable[[Sequence[Session], list[list[int]], Any], object] = forward_together,
    ) -> None:
        self._sessions = sessions
        self._n_batch = n_batch
        self._random = np.random.default_rng(0)
        self._n_vocab = n_vocab
        self._forward = forward
        self._out = np.empty((len(sessions), n_vocab), np.float32)
        self._depth = depth
        self._before = self._tokens(depth)

    def _tokens(self, n: int) -> list[list[int]]:
        """Tokens for each sequence."""
        shape = (len(self._sessions), n)
        ids: list[list[int]] = self._random.integers(0, self._n_vocab, shape).tolist()
        return ids

    def _evaluate(self, ids: list[list[int]], n_batch: int) -> None:
        for start in range(0, len(ids[0]), n_batch):
            parts = [each[start : start + n_batch] for each in ids]
            self._forward(self._sessions, parts, self._out)

    def _rewind(self) -> None:
        """Leave just the depth in the cache."""
        if self._sessions[0].position >= self._depth > 0:
            for session in self._sessions:
                session.truncate(self._depth)
        else:
            for session in self._sessions:
                session.truncate(0)
            self._evaluate(self._before, self._n_batch)

    def prompt(self, n: int) -> float:
        """Tokens per second of one prompt in each sequence."""
        ids = self._tokens(n)
        self._rewind()
        start = time.perf_counter()
        self._evaluate(ids, self._n_batch)
        return n * len(self._sessions) / (time.perf_counter() - start)

    def steps(self, n: int) -> float:
        """Tokens per second of single steps."""
        ids = self._tokens(n)
        self._rewind()
        start = time.perf_counter()
        self._evaluate(ids, 1)
        return n * len(self._sessions) / (time.perf_counter() - start)


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
    if facts["n_parallel"] > 1:
        at += f" × {facts['n_parallel']}"
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
    print_csv([{key: value for key, value in facts.items() if not key.endswith("_samples")}])


_OUTPUTS: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
    "md": _print_table,
    "csv": _print_csv,
    "json": print_json,
}

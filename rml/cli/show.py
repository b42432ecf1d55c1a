"""``rml show MODEL``: look through a model file, without loading the model.

Works for any checkpoint, also one with a vocabulary only, and one whose architecture rml does not
run.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import rml
from rml._kernels.block_formats import FORMATS
from rml.cli.console import bytes_text, print_json, say, show, table
from rml.cli.models import locate
from rml.cli.options import options
from rml.cli.parsing import Command
from rml.cli.stop_tokens import facts_of_stops, print_stops
from rml.errors import ArgumentError, CheckpointError, TokenizerError, UnsupportedModel
from rml.files import Checkpoint, Tensor
from rml.llm.config import ModelConfig
from rml.llm.memory import kv_bytes_per_token

__all__ = ["command"]

_log = logging.getLogger("rml")

_CELL = 70  # characters of a value in the table
_FIRST = 8  # values of a long array, or of a tensor
_CANDIDATES = 1000  # names that a missing one is compared with
_CHUNK = 1 << 22  # values of a tensor that are expanded at a time, about


@click.command("show", cls=Command, only_model=True)
@click.option("--tensor", metavar="NAME", help="Look at one tensor's values.")
@click.option("--key", metavar="KEY", help="Print one metadata value in full.")
@click.option("--tensors", is_flag=True, help="List every tensor.")
@options("model", "output")
def command(model: str, tensor: str | None, key: str | None, tensors: bool, output: str) -> None:
    """Show metadata, tensors, parameters and memory of MODEL."""
    with rml.open_checkpoint(locate(model)) as checkpoint:
        if key is not None:
            _show_key(checkpoint, key, output)
        elif tensor is not None:
            _show_tensor(checkpoint, tensor, output)
        elif output == "json":
            print_json(_everything(checkpoint))
        else:
            _show_all(checkpoint, every_tensor=tensors)


def _show_all(checkpoint: Checkpoint, *, every_tensor: bool) -> None:
    files = _files(checkpoint)
    size = sum(path.stat().st_size for path in files)
    parts = f" in {len(files)} files" if len(files) > 1 else ""
    show(f"{checkpoint.path}: {checkpoint.format}, {bytes_text(size)}{parts}")
    settings = dict(checkpoint.metadata) or dict(checkpoint.config or {})
    if settings:
        click.echo()
        rows = [(k, _type(v), _short(v, _CELL)) for k, v in settings.items()]
        table(("KEY", "TYPE", "VALUE"), rows)
    if tokenizer := _tokenizer(checkpoint):
        click.echo()
        print_stops(tokenizer)
    if checkpoint.tensors:
        click.echo()
        _show_types(checkpoint)
    if every_tensor:
        click.echo()
        table(
            ("TENSOR", "SHAPE", "TYPE", "BYTES"),
            [(t.name, _shape(t), t.type, t.n_bytes) for t in checkpoint.tensors.values()],
            right="lllr",
        )
    if checkpoint.tensors:
        click.echo()
        _show_memory(checkpoint)


def _show_types(checkpoint: Checkpoint) -> None:
    counts: Counter[str] = Counter()
    values: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        counts[tensor.type] += 1
        values[tensor.type] += math.prod(tensor.shape)
        n_bytes[tensor.type] += tensor.n_bytes
    rows = [
        (kind, counts[kind], values[kind], n, f"{8 * n / values[kind]:.2f}" if values[kind] else "")
        for kind, n in n_bytes.most_common()
    ]
    rows.append(("all", counts.total(), values.total(), n_bytes.total(), ""))
    table(("TYPE", "TENSORS", "VALUES", "BYTES", "BITS/VALUE"), rows, right="lrrrr")


def _show_memory(checkpoint: Checkpoint) -> None:
    weights = sum(tensor.n_bytes for tensor in checkpoint.tensors.values())
    rows = [("weights", bytes_text(weights))]
    try:
        config = ModelConfig.from_checkpoint(checkpoint)
    except (CheckpointError, UnsupportedModel) as error:
        table(("MEMORY", ""), rows, right="lr")
        say(f"rml cannot run this model: {error}")
        return
    for kv_type in ("f32", "f16", "int8"):
        one = kv_bytes_per_token(config, kv_type)
        rows.append((f"KV cache {kv_type}, one token", bytes_text(one)))
        whole = bytes_text(one * config.n_ctx_train)
        rows.append((f"KV cache {kv_type}, {config.n_ctx_train} tokens", whole))
    click.echo(f"parameters: {config.parameter_count():,} ({config.architecture})")
    click.echo()
    table(("MEMORY", ""), rows, right="lr")


def _everything(checkpoint: Checkpoint) -> dict[str, Any]:
    tensors = checkpoint.tensors.values()
    weights = sum(tensor.n_bytes for tensor in tensors)
    result: dict[str, Any] = {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "size": sum(path.stat().st_size for path in _files(checkpoint)),
        "metadata": {k: _plain(v) for k, v in checkpoint.metadata.items()},
        "config": _plain(checkpoint.config) if checkpoint.config else None,
        "tensors": [
            {"name": t.name, "shape": t.shape, "type": t.type, "bytes": t.n_bytes} for t in tensors
        ],
        "stop_tokens": (t := _tokenizer(checkpoint)) and facts_of_stops(t),
        "memory": {"weights": weights},
        "parameters": None,
        "unsupported": None,
    }
    try:
        config = ModelConfig.from_checkpoint(checkpoint)
    except (CheckpointError, UnsupportedModel) as error:
        result["unsupported"] = str(error)
        return result
    result["parameters"] = config.parameter_count()
    result["memory"]["n_ctx_train"] = config.n_ctx_train
    result["memory"]["kv_bytes_per_token"] = {
        kv_type: kv_bytes_per_token(config, kv_type) for kv_type in ("f32", "f16", "int8")
    }
    return result


def _show_key(checkpoint: Checkpoint, key: str, output: str) -> None:
    settings: Mapping[str, Any] = checkpoint.metadata or checkpoint.config or {}
    if key not in settings:
        raise ArgumentError(f"{checkpoint.path}: there is no key {key!r}")
    value = settings[key]
    if output == "json":
        print_json(_plain(value, full=True))
    elif isinstance(value, str):
        show(value)
    elif _length(value) is not None:
        for element in value.tolist() if hasattr(value, "tolist") else value:
            show(str(element))
    else:
        show(str(value))


def _show_tensor(checkpoint: Checkpoint, name: str, output: str) -> None:
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        from difflib import get_close_matches  # only for this message

        candidates = list(islice(checkpoint.tensors, _CANDIDATES))
        near = get_close_matches(name, candidates, n=3, cutoff=0.3)
        hint = f"; close to it: {', '.join(near)}" if near else ""
        raise ArgumentError(f"{checkpoint.path}: there is no tensor {name!r}{hint}")
    facts = {"name": tensor.name, "shape": tensor.shape, "type": tensor.type}
    found = facts | {"bytes": tensor.n_bytes} | _statistics(tensor)
    if output == "json":
        print_json(_plain(found, full=True))
        return
    show(f"{name}: {_shape(tensor)} {tensor.type}, {bytes_text(tensor.n_bytes)}")
    click.echo(f"range: ({found['min']:.6g}, {found['max']:.6g})")
    click.echo(f"mean: {found['mean']:.6g} ± {found['sd']:.6g}")
    if found["not_finite"]:
        click.echo(f"not finite: {found['not_finite']} values")
    first = " ".join(f"{value:.6g}" for value in found["first"])
    click.echo(f"first: {first}{' ...' if math.prod(tensor.shape) > _FIRST else ''}")


def _statistics(tensor: Tensor) -> dict[str, Any]:
    """Range, mean and standard deviation of the finite values, in float64, and the first values."""
    n, mean, squares, not_finite = 0, 0.0, 0.0, 0
    low, high = math.inf, -math.inf
    first: list[float] = []
    for chunk in _chunks(tensor):
        if len(first) < _FIRST:
            first += chunk[: _FIRST - len(first)].tolist()
        finite = chunk[np.isfinite(chunk)].astype(np.float64)
        not_finite += len(chunk) - len(finite)
        if not len(finite):
            continue
        low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        # Two means and sums of squared deviations join exactly: Chan, Golub and LeVeque (1979).
        chunk_mean = float(finite.mean())
        apart = chunk_mean - mean
        total = n + len(finite)
        squares += float(((finite - chunk_mean) ** 2).sum()) + apart**2 * n * len(finite) / total
        mean += apart * len(finite) / total
        n = total
    if not n:
        low = high = mean = math.nan
    return {
        "min": low,
        "max": high,
        "mean": mean,
        "sd": math.sqrt(squares / n) if n else math.nan,
        "not_finite": not_finite,
        "first": first,
    }


def _chunks(tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
    """Expand a tensor piece by piece: whole, a large one takes eight times its file's memory."""
    entry = FORMATS.get(tensor.type)
    if entry is None or entry.kind == "integer" or tensor.type == "F64":
        yield tensor.numpy().reshape(-1)
        return
    step = _CHUNK // entry.length * entry.n_bytes
    for start in range(0, tensor.n_bytes, step):  # each asks anew whether the file has changed
        yield rml.dequantize(tensor.data[start : start + step], tensor.type)


def _tokenizer(checkpoint: Checkpoint) -> rml.Tokenizer | None:
    """Load the tokenizer of a checkpoint, if it has one that rml reads."""
    try:
        if checkpoint.format == "gguf":
            return rml.Tokenizer.from_gguf(checkpoint.metadata, path=str(checkpoint.path))
        return rml.load_tokenizer(checkpoint.path)
    except (CheckpointError, TokenizerError) as error:
        _log.info("no stop tokens: %s", error)
        return None


def _files(checkpoint: Checkpoint) -> list[Path]:
    """Every file of the checkpoint that holds a tensor; the file itself if none does."""
    return sorted({tensor.path for tensor in checkpoint.tensors.values()}) or [checkpoint.path]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "scalar"


def _length(value: object) -> int | None:
    """Length of an array; None for a single value."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__len__"):
        return None
    return len(value)


def _type(value: object) -> str:
    length = _length(value)
    if length is None:
        return type(value).__name__
    kind = _type(value[0]) if length else ""  # type: ignore[index]  # it has a length: an array
    return f"{getattr(value, 'dtype', kind)}[{length}]"


def _short(value: object, width: int) -> str:
    """Show a value on one line of at most `width` characters."""
    if _length(value) is not None:
        few = [_short(element, 24) for element in value[:_FIRST]]  # type: ignore[index]
        text = ", ".join(few)
    elif isinstance(value, str):
        text = value[: width + 1].replace("\n", "\\n").replace("\t", "\\t")
    elif isinstance(value, float | np.floating):
        text = f"{value:.7g}"
    else:
        text = str(value)
    longer = len(text) > width or (_length(value) or 0) > _FIRST
    return f"{text[: width - 4]} ..." if longer else text


def _plain(value: Any, *, full: bool = False) -> Any:  # noqa: ANN401 - JSON in and out
    """Turn a value into what JSON can say; long arrays are cut unless `full`."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v, full=full) for k, v in value.items()}
    length = _length(value)
    if length is not None:
        shown = value if full else value[:_FIRST]
        elements = [_plain(v, full=full) for v in shown]
        return elements if full or length <= _FIRST else {"length": length, "first": elements}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

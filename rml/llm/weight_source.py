"""A checkpoint's weights under canonical names, checked as a whole before any is used.

Matrices stay views into the mapped files in their stored format; norm weights and biases are
copied out as float32. `WeightSource` compares the checkpoint with what the configuration implies
when it is made: whatever is missing, unknown or has the wrong shape is reported in one error.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import WEIGHT_FORMATS
from rml._kernels.ieee import ieee
from rml.errors import ArgumentError, CheckpointError, UnsupportedModel
from rml.files import Checkpoint, Tensor
from rml.llm.config import ModelConfig
from rml.llm.weight_names import TensorNames, expected_shapes

__all__ = ["Formats", "Outline", "WeightMatrix", "WeightSource"]

# Hugging Face checkpoints of these families store a norm's weight as w where the model multiplies
# with 1 + w; the converters to GGUF store 1 + w.
_NORM_PLUS_ONE = frozenset({"gemma3_text"})

_INTEGERS = frozenset(
    {name for name, layout in FORMATS.items() if layout.kind == "integer"}
    | {"BOOL", "U8", "U16", "U32", "U64"}
)

_LISTED = 20  # problems of a kind in one message
_EXPLAINED = 5  # missing tensors for which near names are looked up
_CANDIDATES = 1000  # names that a missing one is compared with

Shape = tuple[int, ...]
Place = tuple[str, Shape]  # a stored name and its shape
Formats = tuple[tuple[str, tuple[str, ...]], ...]  # canonical names, and formats of the parts


@dataclass(frozen=True, slots=True, eq=False)
class WeightMatrix:
    """A matrix as it is stored; a kernel multiplies with it as it is.

    Attributes
    ----------
    type : str
        Name of the format, see `rml._kernels.block_formats`.
    rows, cols : int
        Outputs and inputs of the product.
    data : ndarray of uint8, shape (rows * bytes of a row,)
        Row after row, read-only, at any alignment.
    """

    type: str
    rows: int
    cols: int
    data: NDArray[np.uint8]


class WeightSource:
    """Weights of a model, by canonical (GGUF) name.

    Parameters
    ----------
    checkpoint : Checkpoint
        Open for as long as the matrices are used.
    config : ModelConfig
        What the model is.

    Raises
    ------
    CheckpointError
        If tensors are missing, unknown, misshapen, or no weights; all are named at once.
    UnsupportedModel
        If a matrix has a format for which there is no kernel.
    """

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._tensors: Mapping[str, Tensor] = checkpoint.tensors
        self._path = checkpoint.path
        self._architecture = config.architecture
        self._shapes = expected_shapes(config)
        names = TensorNames(config, checkpoint.format, self._tensors.keys())
        self._stored = {name: names.stored(name, shape) for name, shape in self._shapes.items()}
        self._plus_one = (
            checkpoint.format == "safetensors" and config.architecture in _NORM_PLUS_ONE
        )
        self._check(names)

    @property
    def formats(self) -> Formats:
        """Formats of the tensors, for an `Outline`."""
        return tuple(
            (name, tuple(self._tensors[stored].type for stored, _ in places))
            for name, places in self._stored.items()
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the model, as stored."""
        return sum(self._tensors[name].n_bytes for name, _ in self._places())

    def matrix(self, name: str, rows: int, cols: int) -> WeightMatrix:
        """View a matrix of `rows` outputs and `cols` inputs, e.g. ``"blk.0.attn_q.weight"``."""
        ((stored, _),) = self._look_up(name, (rows, cols))
        tensor = self._tensors[stored]
        return WeightMatrix(tensor.type, rows, cols, tensor.data)

    def experts(self, name: str, n_experts: int, rows: int, cols: int) -> list[WeightMatrix]:
        """View the matrices of all experts, stored as one tensor or one by one."""
        places = self._look_up(name, (n_experts, rows, cols))
        tensors = [self._tensors[stored] for stored, _ in places]
        parts = n_experts // len(tensors)
        return [
            WeightMatrix(tensor.type, rows, cols, data)
            for tensor in tensors
            for data in np.split(tensor.data, parts)
        ]

    @ieee
    def vector(self, name: str, n: int) -> NDArray[np.float32]:
        """Copy the `n` values of a norm's weight or a bias out as float32; read-only."""
        ((stored, _),) = self._look_up(name, (n,))
        values = self._tensors[stored].numpy().astype(np.float32)
        if self._plus_one and name.endswith("norm.weight"):
            values += np.float32(1.0)
        values.flags.writeable = False
        return values

    def _places(self) -> Iterator[Place]:
        return chain.from_iterable(self._stored.values())

    def _look_up(self, name: str, shape: Shape) -> tuple[Place, ...]:
        if self._shapes.get(name) != shape:
            raise ArgumentError(
                f"tensor {name!r} of this {self._architecture} model has shape "
                f"{self._shapes.get(name)}, but {shape} was asked for"
            )
        return self._stored[name]

    def _check(self, names: TensorNames) -> None:
        """Compare what the checkpoint holds with what the model needs."""
        places = dict(self._places())
        missing = [
            self._missing(name, places, with_nearest=count < _EXPLAINED)
            for count, name in enumerate(name for name in places if name not in self._tensors)
        ]
        found = {name: self._tensors[name] for name in places if name in self._tensors}
        wrong = [
            f"{name!r}{self._file_of(tensor)} {problem}"
            for name, tensor in found.items()
            if (problem := _problem(tensor, places[name]))
        ]
        unknown = [
            f"{name!r}{self._file_of(tensor)} has no place in it"
            for name, tensor in self._tensors.items()
            if name not in places and not names.is_harmless(name)
        ]
        unsupported = [
            f"{name!r}{self._file_of(tensor)} is stored as {tensor.type}"
            for name, tensor in found.items()
            if tensor.type not in WEIGHT_FORMATS | _INTEGERS
        ]
        if unsupported:  # the reason for what else is unusual, such as tensors of scales
            raise UnsupportedModel(
                f"{self._path}: weights are stored in formats that rml cannot multiply with; it "
                f"knows {', '.join(sorted(WEIGHT_FORMATS))}:{_listed(unsupported)}"
            )
        if missing or wrong or unknown:
            problems = "".join(map(_listed, (missing, wrong, unknown)))
            raise CheckpointError(
                f"{self._path}: these are not the tensors of this {self._architecture} model:"
                f"{problems}"
            )

    def _missing(self, name: str, places: Mapping[str, Shape], *, with_nearest: bool) -> str:
        text = f"{name!r} is missing, expected with shape {places[name]}"
        if not with_nearest:
            return text
        # Names that are not needed elsewhere, then those of the same layer, are the likelier ones.
        spare = [other for other in self._tensors if other not in places]
        likely = sorted(spare or self._tensors, key=lambda other: _layer(other) != _layer(name))
        near = get_close_matches(name, likely[:_CANDIDATES], n=3)
        return f"{text}; the nearest names are {', '.join(map(repr, near))}" if near else text

    def _file_of(self, tensor: Tensor) -> str:
        """Which of several files holds a tensor, for messages."""
        return "" if tensor.path == self._path else f" in {tensor.path.name}"


_NOTHING = np.zeros(0, np.uint8)


class Outline:
    """Weights of which nothing is known but their formats: to record what would be computed.

    Parameters
    ----------
    formats : tuple of (str, tuple of str)
        Canonical name of each tensor, and its format, or those of its parts; see
        `WeightSource.formats`. A name that is missing has the format of the name ``""``.
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = dict(formats)

    def matrix(self, name: str, rows: int, cols: int) -> WeightMatrix:
        """Outline a matrix; it has no data."""
        return self._matrices(name, 1, rows, cols)[0]

    def experts(self, name: str, n_experts: int, rows: int, cols: int) -> list[WeightMatrix]:
        """Outline the matrices of all experts."""
        return self._matrices(name, n_experts, rows, cols)

    def vector(self, name: str, n: int) -> NDArray[np.float32]:  # noqa: ARG002 - as in WeightSource
        """Outline a vector, which takes no memory."""
        return np.broadcast_to(np.float32(0.0), (n,))

    def _matrices(self, name: str, n: int, rows: int, cols: int) -> list[WeightMatrix]:
        types = self._formats[name] if name in self._formats else self._formats[""]
        return [WeightMatrix(types[i * len(types) // n], rows, cols, _NOTHING) for i in range(n)]


def _layer(name: str) -> str | None:
    """Find the number of the layer in a tensor's name."""
    match = re.search(r"\.(\d+)\.", name)
    return match and match[1]


def _problem(tensor: Tensor, shape: Shape) -> str:
    """Say why a tensor cannot be a weight of this shape; empty if it can."""
    if tensor.shape != shape:
        return f"has shape {tensor.shape}, expected {shape}"
    if tensor.type in _INTEGERS:
        return f"is stored as {tensor.type}, expected a weight format: integers are no weights"
    layout = FORMATS.get(tensor.type)
    if layout is None:
        return ""
    if shape[-1] % layout.length:
        return f"has {shape[-1]} columns, no whole number of {tensor.type} blocks"
    n_bytes = math.prod(shape[:-1]) * layout.row_bytes(shape[-1])
    if tensor.n_bytes != n_bytes:
        return f"has {tensor.n_bytes} bytes, expected {n_bytes}"
    return ""


def _listed(problems: list[str]) -> str:
    """List problems on lines of their own, the first few."""
    lines = problems[:_LISTED]
    if len(problems) > _LISTED:
        lines.append(f"and {len(problems) - _LISTED} more of this kind")
    return "".join(f"\n  {line}" for line in lines)

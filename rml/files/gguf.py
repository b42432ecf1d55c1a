"""Read GGUF files, versions 2 and 3, whole or split.

    "GGUF"  u32 version  u64 tensor count  u64 key count
    keys          string key, u32 type, value             (gguf_values.py)
    tensor table  string name, u32 n_dims, u64 dims (innermost first), u32 type, u64 offset
    padding       to `general.alignment`
    data          each tensor at its offset, which is a multiple of the alignment

Everything is checked before it is used, in Python integers that cannot wrap: counts against the
bytes left, names for being unique, row lengths against block sizes, and each tensor's range for
lying inside the file and outside every other tensor. Bytes that belong to no tensor (holes, or a
tail after the last one) are allowed and never read.

A split model, ``NAME-00001-of-0000N.gguf`` and so on, has its metadata in the first part and
its tensors in all of them.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import re
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rml._kernels.block_formats import FORMATS_BY_ID, RETIRED_IDS
from rml.errors import CheckpointError, UnsupportedModel
from rml.files.gguf_values import Cursor, read_value, type_name
from rml.files.limits import (
    MAX_FILES,
    MAX_GGUF_ALIGNMENT,
    MAX_GGUF_DIMS,
    MAX_GGUF_KEY_BYTES,
    MAX_GGUF_KEYS,
    MAX_GGUF_NAME_BYTES,
    MAX_TENSOR_VALUES,
    MAX_TENSORS,
)
from rml.files.mapped import Contents, MappedFile, Tensor
from rml.files.paths import is_there
from rml.files.read_only import ReadOnly
from rml.files.strict_json import name_of

__all__ = ["MAGIC", "first_part_name", "read_gguf"]

MAGIC = b"GGUF"

_DEFAULT_ALIGNMENT = 32

# The least bytes that one entry takes: shortest name, smallest value, no dimensions.
_LEAST_KEY = 8 + 1 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8

# Keys that this module acts on must have exactly these types (numbers of the format).
_KEY_TYPES = {
    "general.alignment": 4,  # uint32
    "general.architecture": 8,  # string
    "general.type": 8,
    "split.no": 2,  # uint16
    "split.count": 2,
    "split.tensors.count": 5,  # int32
}

# What follows the number of dimensions: these, the type and the offset.
_TENSOR_LAYOUTS = [struct.Struct(f"<{n}QIQ") for n in range(MAX_GGUF_DIMS + 1)]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class _Info(NamedTuple):
    """An entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int


def read_gguf(path: Path) -> Contents:
    """Read the model in the GGUF file `path`, and in the other parts where it is the first.

    Raises
    ------
    CheckpointError
        If a file is missing, truncated or broken, or `path` is a later part of a split model.
    UnsupportedModel
        If it is sound, but of another version or byte order, holds no text model (a vision
        projector, an adapter, an importance matrix), or a tensor type that rml does not have.
    """
    with ExitStack() as opened:
        first = _read_part(path, opened)
        _refuse_other_kinds(path, first.metadata)
        parts = [first]
        for number, part_path in enumerate(_other_part_paths(path, first.metadata), start=1):
            part = _read_part(part_path, opened)
            _check_part(part.metadata, part_path, number, first.metadata)
            parts.append(part)
        contents = _join(path, parts) if len(parts) > 1 else first
        opened.pop_all()
    return contents


def first_part_name(name: str) -> str | None:
    """Name of the first part of the split model that file `name` is a later part of, or None."""
    match = _PART_NAME.fullmatch(name)
    if match is None or int(match["number"]) <= 1:
        return None
    return f"{match['stem']}-00001-of-{match['count']}.gguf"


def _read_part(path: Path, opened: ExitStack) -> Contents:
    """Read one file; `opened` closes it if anything fails, here or later."""
    file = MappedFile(path)
    opened.callback(file.close)
    cursor = Cursor(file)
    n_tensors, n_keys = _read_counts(cursor)
    metadata = _read_metadata(cursor, n_keys)
    alignment = _alignment(cursor, metadata)
    infos = _read_tensor_table(cursor, n_tensors, alignment)
    data_start = -(-cursor.position // alignment) * alignment
    _check_layout(cursor, infos, data_start)
    tensors = {
        info.name: Tensor(
            info.name, info.shape, info.type, info.n_bytes, data_start + info.offset, file
        )
        for info in infos
    }
    return Contents(ReadOnly(metadata), tensors, [file])


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    """Read magic, version and the counts of tensors and keys."""
    start = cursor.take(len(MAGIC), "the magic number")
    magic = cursor.buffer[start : start + len(MAGIC)]
    if magic != MAGIC:
        cursor.fail(f"not a GGUF file: it starts with {magic.hex(' ')}, not 47 47 55 46 ('GGUF')")
    version = cursor.u32("the version")
    if version == 1:
        raise UnsupportedModel(
            f"{cursor.path}: GGUF version 1, of 2023, is not read; rml reads versions 2 and 3: "
            "convert the original model again"
        )
    if version in (2 << 24, 3 << 24):
        raise UnsupportedModel(
            f"{cursor.path}: this is a big-endian GGUF file; convert it to little-endian with "
            "gguf_convert_endian.py"
        )
    if version not in (2, 3):
        raise UnsupportedModel(
            f"{cursor.path}: GGUF version {version} is not known; rml reads versions 2 and 3"
        )
    n_tensors = cursor.u64("the tensor count")
    n_keys = cursor.u64("the key count")
    cursor.claim(n_keys, _LEAST_KEY, "metadata keys")
    cursor.claim(n_tensors, _LEAST_TENSOR, "tensors")
    for n, limit, what in (
        (n_keys, MAX_GGUF_KEYS, "metadata keys"),
        (n_tensors, MAX_TENSORS, "tensors"),
    ):
        if n > limit:
            cursor.fail(f"there are {n:,} {what}; at most {limit:,} are allowed")
    return n_tensors, n_keys


def _read_metadata(cursor: Cursor, n_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number in range(n_keys):
        key = cursor.name(f"the name of metadata key {number}", MAX_GGUF_KEY_BYTES)
        if not key:
            cursor.fail(f"metadata key {number} of {n_keys} has an empty name: the file is broken")
        if key in metadata:
            cursor.fail(f"the metadata key {key!r} occurs twice")
        what = f"metadata {key!r}"
        type_id = cursor.u32(what, "the type of ")
        wanted = _KEY_TYPES.get(key, type_id)
        if type_id != wanted:
            cursor.fail(f"{what} is stored as {type_name(type_id)}, not {type_name(wanted)}")
        metadata[key] = read_value(cursor, type_id, what)
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment: int = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment.bit_count() != 1 or alignment > MAX_GGUF_ALIGNMENT:
        cursor.fail(
            f"general.alignment is {alignment}; a power of two up to {MAX_GGUF_ALIGNMENT} is "
            "expected"
        )
    return alignment


def _read_tensor_table(cursor: Cursor, n_tensors: int, alignment: int) -> list[_Info]:
    """Read the table, checking each entry by itself."""
    infos: dict[str, _Info] = {}
    for number in range(n_tensors):
        name = cursor.name(f"the name of tensor {number}", MAX_GGUF_NAME_BYTES)
        if name in infos:
            cursor.fail(f"the tensor {name!r} occurs twice")
        what = f"tensor {name!r}"
        n_dims = cursor.u32(what, "the dimension count of ")
        if n_dims > MAX_GGUF_DIMS:
            cursor.fail(f"{what} has {n_dims} dimensions; the format allows {MAX_GGUF_DIMS}")
        *dims, type_id, offset = cursor.unpack(
            _TENSOR_LAYOUTS[n_dims], what, "the dimensions, type and offset of "
        )
        if type_id in RETIRED_IDS:
            raise UnsupportedModel(
                f"{cursor.path}: {what} has the retired type {RETIRED_IDS[type_id]} (id {type_id});"
                " quantize the original model again"
            )
        if type_id not in FORMATS_BY_ID:
            raise UnsupportedModel(
                f"{cursor.path}: {what} has the unknown type id {type_id}: the file is broken, or "
                "newer than this version of rml"
            )
        block = FORMATS_BY_ID[type_id]
        # The row is the innermost dimension, the first in the file.
        row, rows = (dims[0], math.prod(dims[1:])) if dims else (1, 1)
        if row % block.length:
            cursor.fail(
                f"{what} has rows of {row} values, no whole number of {block.name} blocks of "
                f"{block.length}"
            )
        if row * rows > MAX_TENSOR_VALUES or (
            0 in dims and math.prod(dim or 1 for dim in dims) > MAX_TENSOR_VALUES
        ):
            cursor.fail(f"{what} has the impossible dimensions {dims}")
        if offset % alignment:
            cursor.fail(f"{what} has offset {offset}, no multiple of the alignment {alignment}")
        infos[name] = _Info(
            name, tuple(dims[::-1]), block.name, offset, block.row_bytes(row) * rows
        )
    return list(infos.values())


def _check_layout(cursor: Cursor, infos: list[_Info], data_start: int) -> None:
    """Check that tensors lie inside the file and do not overlap."""
    stored = sorted((info for info in infos if info.n_bytes), key=lambda info: info.offset)
    end = 0
    previous = ""
    for info in stored:
        if info.offset < end:
            cursor.fail(f"the tensors {previous!r} and {info.name!r} overlap")
        end, previous = info.offset + info.n_bytes, info.name
    missing = data_start + end - cursor.size
    if not stored or missing <= 0:
        return
    cut = next(i for i in stored if data_start + i.offset + i.n_bytes > cursor.size)
    if missing > data_start + sum(info.n_bytes for info in stored):
        cursor.fail(
            f"tensor {cut.name!r} has offset {cut.offset}, outside the file of {cursor.size} bytes"
        )
    cursor.fail(
        f"the file is truncated: {missing} bytes are missing ({cursor.size} of "
        f"{data_start + end}), first from tensor {cut.name!r}; download it again"
    )


def _refuse_other_kinds(path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse GGUF files that hold something other than a language model, by name."""
    kind = metadata.get("general.type", "")
    architecture = metadata.get("general.architecture", "")
    if kind == "mmproj" or architecture == "clip":
        raise UnsupportedModel(
            f"{path}: this is a vision projector (mmproj), which goes beside a language model; "
            "rml is a text engine: give it the language model's own .gguf"
        )
    if kind == "imatrix":
        raise UnsupportedModel(
            f"{path}: this is an importance matrix (imatrix), made to quantize a model; "
            "give the model itself"
        )
    if kind == "adapter" or "adapter.type" in metadata:
        base = name_of(metadata.get("general.base_model.0.name"), "another model")
        raise UnsupportedModel(
            f"{path}: this is a LoRA adapter of {base}, not a model; merge it into that model "
            "with llama-export-lora and give the result"
        )
    if architecture == "controlvector":
        raise UnsupportedModel(f"{path}: this is a control vector, not a model")


def _other_part_paths(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Paths of the parts after the first; none where the model is in one file."""
    count = metadata.get("split.count", 1)
    number = metadata.get("split.no", 0)
    first = first_part_name(path.name)
    if number != 0 or (count > 1 and first is not None):
        advice = f"give the first part, {first}" if first else "give the first part"
        raise CheckpointError(f"{path}: this is part {number + 1} of {count}; {advice}")
    if count <= 1:
        return []
    if count > MAX_FILES:
        raise CheckpointError(
            f"{path}: split.count is {count:,} files; at most {MAX_FILES:,} are allowed"
        )
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"{path}: split.count is {count}, so the file should be named "
            f"NAME-00001-of-{count:05d}.gguf and lie beside the other parts; rename it"
        )
    if "split.tensors.count" not in metadata:
        raise CheckpointError(f"{path}: split.count is {count}, but split.tensors.count is missing")
    names = [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(2, count + 1)]
    paths = [path.with_name(name) for name in names]
    missing = [part.name for part in paths if not is_there(part)]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {count} parts are missing: {', '.join(missing[:8])}"
            f"{', ...' if len(missing) > 8 else ''}; put them into {path.parent}"
        )
    return paths


def _check_part(
    metadata: Mapping[str, Any], path: Path, number: int, first: Mapping[str, Any]
) -> None:
    """Check that `path` is part `number` (from 0) of the model whose first part says `first`."""
    for key, wanted in (
        ("split.no", number),
        ("split.count", first["split.count"]),
        ("split.tensors.count", first["split.tensors.count"]),
    ):
        found = metadata.get(key)
        if found != wanted:
            raise CheckpointError(
                f"{path}: {key} is {found}, and {wanted} is expected: "
                "this is a part of another model, or a part under a wrong name"
            )


def _join(path: Path, parts: list[Contents]) -> Contents:
    """Join the parts of the model whose first part is `path`."""
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{tensor.path}: the tensor {name!r} is in {tensors[name].path.name} too"
                )
            tensors[name] = tensor
        if len(tensors) > MAX_TENSORS:
            raise CheckpointError(
                f"{path}: the parts have more than {MAX_TENSORS:,} tensors, which are allowed"
            )
    metadata = parts[0].metadata
    if len(tensors) != metadata["split.tensors.count"]:
        raise CheckpointError(
            f"{path}: split.tensors.count is {metadata['split.tensors.count']}, but the "
            f"{len(parts)} parts hold {len(tensors)} tensors"
        )
    return Contents(metadata, tensors, [file for part in parts for file in part.files])

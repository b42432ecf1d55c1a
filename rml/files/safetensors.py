"""Read safetensors files, and models that an index spreads over several of them.

    u64 header length, JSON header, data
    header  {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {str: str}}

Offsets count from the end of the header. As the format demands, the tensors cover the data
without holes and without overlaps, so that no byte of the file can mean something to one reader
and nothing to another. Tensors may begin at any address: nothing aligns them.

An index, ``model.safetensors.index.json``, maps each name to the file of the same folder that
holds it; tensors that it does not list are not part of the model.

Source: https://github.com/huggingface/safetensors#format
"""

import math
import re
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, TypeGuard

from rml.errors import CheckpointError, UnsupportedModel
from rml.files.limits import (
    MAX_FILE_NAME,
    MAX_FILES,
    MAX_JSON_BYTES,
    MAX_SAFETENSORS_DIMS,
    MAX_SAFETENSORS_NAME,
    MAX_TENSOR_VALUES,
    MAX_TENSORS,
)
from rml.files.mapped import Contents, MappedFile, Tensor
from rml.files.paths import is_there
from rml.files.read_only import ReadOnly
from rml.files.strict_json import brief, load_json, parse_json

__all__ = ["INDEX_SUFFIX", "SHARD_NAME", "looks_like_safetensors", "read_index", "read_safetensors"]

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_NAME = re.compile(r".+-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")

_LENGTH_BYTES = 8

# Bits of a value. The sub-byte types pack whole bytes.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip


def looks_like_safetensors(head: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins with `head` can be a safetensors file."""
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    return head[_LENGTH_BYTES:][:1] == b"{" and length <= size - _LENGTH_BYTES


def read_safetensors(path: Path) -> Contents:
    """Read the one file `path`.

    Raises
    ------
    CheckpointError
        If the file is missing, truncated or broken, or is one of several.
    UnsupportedModel
        If a tensor has an unknown dtype, or the file is an adapter.
    """
    shard = SHARD_NAME.fullmatch(path.name)
    if shard and int(shard["count"]) > 1:
        raise CheckpointError(
            f"{path}: this is file {int(shard['number'])} of {int(shard['count'])}; give their "
            "folder"
        )
    with ExitStack() as opened:
        file = MappedFile(path)
        opened.callback(file.close)
        tensors = _read_file(file)
        _refuse_adapter(path, tensors)
        opened.pop_all()
    return Contents(ReadOnly({}), tensors, [file])


def read_index(path: Path) -> Contents:
    """Read the model whose parts the index file `path` lists.

    Raises
    ------
    CheckpointError
        If the index or a part is broken, a part or a listed tensor is missing, two parts hold
        a tensor of the same name, or the index names a file outside its folder.
    UnsupportedModel
        If a tensor has an unknown dtype.
    """
    weight_map = load_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: no 'weight_map' of tensor names to files")
    _check_count(path, len(weight_map))
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise CheckpointError(
                f"{path}: tensor {brief(name)} is said to be in {brief(shard)}; the name of a "
                f"file in the same folder is expected, of at most {MAX_FILE_NAME} characters"
            )
    shards = [path.with_name(shard) for shard in dict.fromkeys(weight_map.values())]
    if len(shards) > MAX_FILES:
        raise CheckpointError(
            f"{path}: the tensors are in {len(shards):,} files; at most {MAX_FILES:,} are allowed"
        )
    missing = [shard.name for shard in shards if not is_there(shard)]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(shards)} files are missing: {', '.join(missing[:8])}"
            f"{', ...' if len(missing) > 8 else ''}; download them into {path.parent}"
        )
    found: dict[str, Tensor] = {}
    files: list[MappedFile] = []
    with ExitStack() as opened:
        for shard in shards:
            file = MappedFile(shard)
            opened.callback(file.close)
            files.append(file)
            for name, tensor in _read_file(file).items():
                if name in found:
                    raise CheckpointError(
                        f"{shard}: the tensor {name!r} is in {found[name].path.name} too"
                    )
                found[name] = tensor
            _check_count(path, len(found))
        for name, shard_name in weight_map.items():
            if name not in found or found[name].path.name != shard_name:
                raise CheckpointError(
                    f"{path}: tensor {brief(name)} is said to be in {shard_name}, which does not "
                    "hold it"
                )
        opened.pop_all()
    return Contents(ReadOnly({}), {name: found[name] for name in weight_map}, files)


def _is_plain_name(name: str) -> bool:
    return (
        name not in {"", ".", ".."}
        and len(name) <= MAX_FILE_NAME
        and not any(c in name for c in "/\\\0")
    )


def _read_file(file: MappedFile) -> dict[str, Tensor]:
    """Read the header of `file` and check it against the file's size."""
    path = file.path
    if file.size < _LENGTH_BYTES:
        raise CheckpointError(
            f"{path}: {file.size} bytes are too few for a safetensors file; download it again"
        )
    length: int = struct.unpack_from("<Q", file.buffer)[0]
    if length > MAX_JSON_BYTES:
        raise CheckpointError(
            f"{path}: the header is said to have {length} bytes; the format allows {MAX_JSON_BYTES}"
        )
    start = _LENGTH_BYTES + length
    if start > file.size:
        raise CheckpointError(
            f"{path}: the file is truncated inside its header: {start - file.size} bytes are "
            "missing; download it again"
        )
    text = file.buffer[_LENGTH_BYTES:start]
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: the header starts with {text[:8]!r}, not with '{{'")
    header = parse_json(text, f"{path}: header")
    _check_metadata(path, header.pop("__metadata__", None))
    _check_count(path, len(header))
    tensors = {name: _parse_entry(file, name, entry, start) for name, entry in header.items()}
    _check_layout(file, tensors, start)
    return tensors


def _check_count(path: Path, n_tensors: int) -> None:
    if n_tensors > MAX_TENSORS:
        raise CheckpointError(
            f"{path}: there are {n_tensors:,} tensors; at most {MAX_TENSORS:,} are allowed"
        )


def _check_metadata(path: Path, metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is not a map of strings to strings")


def _parse_entry(file: MappedFile, name: str, entry: object, data_start: int) -> Tensor:
    """Check one entry of the header by itself."""

    def fail(message: str) -> NoReturn:
        raise CheckpointError(f"{file.path}: tensor {brief(name)} {message}")

    if len(name) > MAX_SAFETENSORS_NAME:
        fail(
            f"has a name of {len(name):,} characters; at most {MAX_SAFETENSORS_NAME:,} are allowed"
        )
    if not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name):
        fail("has a name that is not Unicode text")  # an escaped half of a surrogate pair
    if not isinstance(entry, dict):
        fail("has no dtype, shape and data_offsets")
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str):
        fail(f"has the dtype {brief(dtype)}; a string is expected")
    if dtype not in _BITS:
        raise UnsupportedModel(
            f"{file.path}: tensor {brief(name)} has the unknown dtype {brief(dtype)}; rml knows "
            f"{', '.join(_BITS)}"
        )
    if not _is_counts(shape):
        fail(f"has the shape {brief(shape)}; a list of sizes is expected")
    if len(shape) > MAX_SAFETENSORS_DIMS:
        fail(f"has {len(shape):,} dimensions; at most {MAX_SAFETENSORS_DIMS} are allowed")
    if math.prod(max(size, 1) for size in shape) > MAX_TENSOR_VALUES:
        fail(f"has the impossible shape {brief(shape)}")
    offsets = entry.get("data_offsets")
    if not _is_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] < 1 << 63:
        fail(f"has the data_offsets {brief(offsets)}; [begin, end] is expected")
    begin, end = offsets
    n_bytes, rest = divmod(math.prod(shape) * _BITS[dtype], 8)
    if rest or end - begin != n_bytes:
        fail(f"has {end - begin} bytes of data; {dtype} of shape {shape} implies {n_bytes}")
    return Tensor(name, tuple(shape), dtype, n_bytes, data_start + begin, file)


def _is_counts(value: object) -> TypeGuard[list[int]]:
    """Whether `value` is a list of integers that are not negative."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(file: MappedFile, tensors: dict[str, Tensor], data_start: int) -> None:
    """Check that the tensors cover the data once and without holes."""
    end = data_start
    previous = "the header"
    for start, n_bytes, name in sorted((t.start, t.n_bytes, t.name) for t in tensors.values()):
        if start != end:
            fault = "overlap" if start < end else f"leave a hole of {start - end} bytes"
            raise CheckpointError(f"{file.path}: {previous} and tensor {name!r} {fault}")
        end, previous = start + n_bytes, f"tensor {name!r}"
    if end > file.size:
        cut = min((t for t in tensors.values() if t.start + t.n_bytes > file.size), key=_start)
        raise CheckpointError(
            f"{file.path}: the file is truncated: {end - file.size} bytes are missing ({file.size} "
            f"of {end}), first from tensor {cut.name!r}; download it again"
        )
    if end < file.size:
        raise CheckpointError(
            f"{file.path}: {file.size - end} bytes after the last tensor belong to nothing"
        )


def _start(tensor: Tensor) -> int:
    return tensor.start


def _refuse_adapter(path: Path, tensors: dict[str, Tensor]) -> None:
    if any(".lora_A." in name for name in tensors):
        raise UnsupportedModel(
            f"{path}: this is a LoRA adapter, not a model; merge it into its model "
            "(merge_and_unload of peft) and give the result"
        )

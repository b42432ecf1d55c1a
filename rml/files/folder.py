"""Which file of a folder is the model."""

from pathlib import Path
from typing import NoReturn

from rml.errors import CheckpointError, UnsupportedModel
from rml.files.gguf import first_part_name
from rml.files.safetensors import INDEX_SUFFIX, SHARD_NAME
from rml.files.strict_json import load_json, name_of

__all__ = ["find_model"]

_WEIGHTS = "model.safetensors"
_INDEX = f"model{INDEX_SUFFIX}"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def find_model(folder: Path) -> Path:
    """Find the file to open for `folder`.

    In this order: ``model.safetensors``, ``model.safetensors.index.json``, the only other
    safetensors file, the only GGUF file (the parts of a split one count as one, and vision
    projectors, ``mmproj*.gguf``, not at all).

    Raises
    ------
    CheckpointError
        If the folder cannot be read, holds no model, or more than one.
    UnsupportedModel
        If it holds an adapter, or weights only in formats that rml does not read.
    """
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise CheckpointError(f"{folder}: the folder cannot be read: {error.strerror}") from error
    for name in (_WEIGHTS, _INDEX):
        if name in names:
            return folder / name
    tensors = [n for n in names if n.endswith(".safetensors")]
    ggufs = [n for n in names if n.endswith(".gguf") and first_part_name(n) is None]
    ggufs = [n for n in ggufs if not n.startswith("mmproj")] or ggufs
    only_adapter = set(tensors) <= {"adapter_model.safetensors"} and not ggufs
    if only_adapter and "adapter_config.json" in names:
        config = load_json(folder / "adapter_config.json")
        base = name_of(config.get("base_model_name_or_path"), "another model")
        raise UnsupportedModel(
            f"{folder}: this is an adapter of {base}, not a model; merge it "
            "into that model (merge_and_unload of peft) and give the result"
        )
    if len(tensors) > 1 and any(SHARD_NAME.fullmatch(name) for name in tensors):
        raise CheckpointError(f"{folder}: {_INDEX} is missing; download it beside its parts")
    candidates = tensors or ggufs
    if not candidates:
        _refuse_empty(folder, names)
    if len(candidates) > 1:
        raise CheckpointError(
            f"{folder}: the folder holds {len(candidates)} models; give one of them: "
            f"{', '.join(candidates[:8])}{', ...' if len(candidates) > 8 else ''}"
        )
    return folder / candidates[0]


def _refuse_empty(folder: Path, names: list[str]) -> NoReturn:
    """Say why `folder`, whose entries are `names`, holds no model."""
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        raise UnsupportedModel(
            f"{folder}: the weights are Python pickles ({pickles[0]}), which can run code when "
            "they are read; convert them to safetensors"
        )
    parts = [first_part_name(name) for name in names]
    first = next((name for name in parts if name), None)
    if first:
        raise CheckpointError(f"{folder}: {first}, the first part of a split model, is missing")
    if "snapshots" in names:
        raise CheckpointError(
            f"{folder}: this is an entry of the Hugging Face cache; give the folder of one "
            f"revision in {folder / 'snapshots'}"
        )
    raise CheckpointError(
        f"{folder}: the folder holds no model: no {_WEIGHTS}, no {_INDEX} and no .gguf file"
    )

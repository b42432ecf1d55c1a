"""A tokenizer from a file or folder, whatever the format."""

import os
from pathlib import Path
from typing import Any, Final

from rml.errors import CheckpointError, TokenizerError
from rml.files import open_checkpoint
from rml.files.paths import is_folder, is_there, readable_path
from rml.files.strict_json import load_json
from rml.memory_room import out_of_memory
from rml.tokenizers.json_ends import Beside
from rml.tokenizers.template_source import read_template
from rml.tokenizers.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]

_JSON: Final = "tokenizer.json"
# Older forms, and what makes a tokenizer.json of them.
_OLDER: Final = ("tokenizer.model", "vocab.json", "merges.txt", "tiktoken.model", "tekken.json")


def load_tokenizer(path: str | os.PathLike[str], *, pre: str | None = None) -> Tokenizer:
    """Load the tokenizer of a model.

    Parameters
    ----------
    path : str or path-like
        A GGUF file, also one that holds a vocabulary alone; a tokenizer.json; or a folder that
        holds one of them. Beside a tokenizer.json, what tokenizer_config.json,
        special_tokens_map.json, generation_config.json, config.json, chat_template.jinja,
        additional_chat_templates/ and chat_template.json say counts too.
    pre : str, optional
        Splitting rule to use instead of a GGUF file's own ``tokenizer.ggml.pre``.

    Raises
    ------
    TokenizerError
        The vocabulary is missing, broken, or of a kind that rml does not read.
    CheckpointError, UnsupportedModel
        The file cannot be opened.
    """
    file = readable_path(path)
    with out_of_memory(f"the tokenizer of {file}"):
        return _loaded(file, pre)


def _loaded(file: Path, pre: str | None) -> Tokenizer:
    if file.suffix == ".safetensors" or file.name.endswith(".safetensors.index.json"):
        file = file.parent
    if is_folder(file) and is_there(file / _JSON):
        file /= _JSON
    if file.suffix == ".json":
        return Tokenizer.from_json(load_json(file), _beside(file.parent), path=str(file))
    if is_folder(file) and not any(name.endswith(".gguf") for name in _names(file)):
        _refuse_folder(file)
    with open_checkpoint(file) as checkpoint:
        return Tokenizer.from_gguf(checkpoint.metadata, path=str(checkpoint.path), pre=pre)


def _beside(folder: Path) -> Beside:
    templates = {}
    more = folder / "additional_chat_templates"
    for name in sorted(_names(more)) if is_folder(more) else ():
        if name.endswith(".jinja"):
            templates[name.removesuffix(".jinja")] = read_template(more / name, CheckpointError)
    if is_there(folder / "chat_template.jinja"):
        templates["default"] = read_template(folder / "chat_template.jinja", CheckpointError)
    return Beside(
        tokenizer_config=_optional(folder / "tokenizer_config.json"),
        special_tokens_map=_optional(folder / "special_tokens_map.json"),
        generation_config=_optional(folder / "generation_config.json"),
        config=_optional(folder / "config.json"),
        templates=templates,
        processor_template=_optional(folder / "chat_template.json"),
    )


def _optional(file: Path) -> dict[str, Any]:
    return load_json(file, constants=True) if is_there(file) else {}


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise CheckpointError(f"{folder}: the folder cannot be read: {error.strerror}") from error


def _refuse_folder(folder: Path) -> None:
    found = [name for name in _OLDER if is_there(folder / name)]
    if not found:
        raise TokenizerError(f"{folder}: no {_JSON} and no GGUF file; no tokenizer to load")
    raise TokenizerError(
        f"{folder}: rml reads {_JSON}, and this folder has only {', '.join(found)}. "
        "Transformers writes it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    )

"""A scan of a model: its files one after the other, then what they say."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rml.errors import RmlError
from rml.files import Checkpoint, open_checkpoint
from rml.files.cache import receipts, sha256_of
from rml.files.known import KNOWN
from rml.files.paths import is_folder, is_there, readable_path
from rml.files.strict_json import load_json
from rml.memory_room import out_of_memory
from rml.scan.metadata import odd_keys
from rml.scan.report import FileFacts, Finding, Report
from rml.scan.templates import audit
from rml.scan.tokens import oddities
from rml.scan.weights import not_finite, number_of_values, spare_bytes
from rml.tokenizers import Tokenizer, load_tokenizer

__all__ = ["scan"]

# Called with the bytes that were looked at, and those of all files.
Progress = Callable[[int, int], None]

# What lies beside safetensors files or a tokenizer.json and is read, too.
_SIDE_FILES = re.compile(r".*\.json|.*\.jinja|tokenizer\.model|merges\.txt|vocab\.txt")


def scan(path: Path, progress: Progress | None = None) -> Report:
    """Look through a model for what deserves a look before it is trusted.

    Parameters
    ----------
    path : Path
        A GGUF file, or the first part of a split one; a safetensors file, index or folder; or a
        tokenizer.json.
    progress : callable, optional
        Called as ``progress(bytes_done, bytes_in_all)``; the weights are read twice.

    Returns
    -------
    Report
        The files with their digests, and what was found.

    Raises
    ------
    CheckpointError, UnsupportedModel, TokenizerError
        If it cannot be opened: it is broken, or no model that rml reads.
    """
    location = readable_path(path)
    with out_of_memory(f"the scan of {location}"):
        if location.suffix == ".json" and not location.name.endswith(".index.json"):
            return _scan_tokenizer(location, progress)
        if (
            is_folder(location)
            and is_there(location / "tokenizer.json")
            and not _has_weights(location)
        ):
            return _scan_tokenizer(location / "tokenizer.json", progress)
        with open_checkpoint(location) as checkpoint:
            return _scan_checkpoint(checkpoint, progress)


def _has_weights(folder: Path) -> bool:
    return any(p.name.endswith((".gguf", ".safetensors", ".index.json")) for p in folder.iterdir())


def _scan_tokenizer(file: Path, progress: Progress | None) -> Report:
    report = Report(str(file), "tokenizer")
    tokenizer = load_tokenizer(file)
    _add_files(report, sorted({file, *_beside(file.parent)}), _steps(progress, 0))
    _add_tokenizer(report, tokenizer, {}, _added_tokens(file), has_weights=False)
    return report


def _scan_checkpoint(checkpoint: Checkpoint, progress: Progress | None) -> Report:
    report = Report(str(checkpoint.path), checkpoint.format)
    tensors = list(checkpoint.tensors.values())
    files = {tensor.path for tensor in tensors}
    if not is_folder(checkpoint.path):
        files.add(checkpoint.path)
    if checkpoint.format == "safetensors":
        folders = {file.parent for file in files}
        files |= {beside for folder in folders for beside in _beside(folder)}
    weights = sum(tensor.n_bytes for tensor in tensors)
    done = _steps(progress, weights + sum(file.stat().st_size for file in files))
    _add_files(report, sorted(files), done)
    alignment = checkpoint.metadata.get("general.alignment", 32)
    report.findings += spare_bytes(tensors, alignment)
    report.findings += odd_keys(checkpoint)
    for tensor in tensors:
        if finding := not_finite(tensor):
            report.findings.append(finding)
        done(tensor.n_bytes)
    report.facts |= {"tensors": len(tensors), "values": number_of_values(tensors)}
    templates = dict(_gguf_templates(checkpoint))
    try:
        tokenizer, texts = _tokenizer(checkpoint)
    except RmlError as error:
        # A model without a vocabulary is no fault of the file.
        if _has_vocabulary(checkpoint):
            report.findings.append(Finding("tokens", "vocabulary", f"cannot be used: {error}"))
        _add_templates(report, templates, {})
        return report
    _add_tokenizer(report, tokenizer, templates, texts, has_weights=bool(tensors))
    return report


def _tokenizer(checkpoint: Checkpoint) -> tuple[Tokenizer, Iterable[str]]:
    """Load the tokenizer of a checkpoint, and the texts of tokens as they are listed."""
    metadata, file = checkpoint.metadata, checkpoint.path
    if checkpoint.format == "gguf":
        tokenizer = Tokenizer.from_gguf(metadata, path=str(file))
        return tokenizer, metadata["tokenizer.ggml.tokens"]
    folder = file if is_folder(file) else file.parent
    return load_tokenizer(folder), _added_tokens(folder / "tokenizer.json")


def _added_tokens(file: Path) -> Iterator[str]:
    for token in load_json(file).get("added_tokens") or ():
        yield token["content"]


def _has_vocabulary(checkpoint: Checkpoint) -> bool:
    if checkpoint.format == "gguf":
        return any(key.startswith("tokenizer.ggml.") for key in checkpoint.metadata)
    folder = checkpoint.path if is_folder(checkpoint.path) else checkpoint.path.parent
    return is_there(folder / "tokenizer.json")


def _gguf_templates(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Templates as the file has them, those included that no tokenizer would hand out."""
    key = "tokenizer.chat_template"
    for name, value in checkpoint.metadata.items():
        if (name == key or name.startswith(f"{key}.")) and isinstance(value, str):
            yield name.removeprefix(f"{key}.") if name != key else "default", value


def _add_tokenizer(
    report: Report,
    tokenizer: Tokenizer,
    templates: dict[str, str],
    texts: Iterable[str],
    *,
    has_weights: bool,
) -> None:
    report.findings += oddities(tokenizer, texts)
    report.facts["vocabulary"] = tokenizer.check()
    ends = tokenizer.end_tokens
    report.facts["tokens"] = tokenizer.n_vocab
    report.facts["end_tokens"] = {
        str(token): tokenizer.token_bytes(token).decode("utf-8", "backslashreplace")
        for token in ends
        if token < tokenizer.n_vocab
    }
    if has_weights and not ends:
        what = "no token ends a generation: it would go on until it is stopped"
        report.findings.append(Finding("tokens", "end tokens", what))
    names: dict[str, Any] = {
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
    }
    _add_templates(report, templates | dict(tokenizer.chat_templates), names)


def _add_templates(report: Report, templates: dict[str, str], names: dict[str, Any]) -> None:
    report.facts["templates"] = sorted(templates)
    for name, source in templates.items():
        report.findings += audit(name, source, names)


def _beside(folder: Path) -> Iterator[Path]:
    """Side files of a folder that are read with its model."""
    for path in (*folder.iterdir(), *(folder / "additional_chat_templates").glob("*.jinja")):
        if _SIDE_FILES.fullmatch(path.name) and path.is_file():
            yield path


def _add_files(report: Report, files: list[Path], done: Callable[[int], None]) -> None:
    """Hash every file, and compare it with what is known of it."""
    known = {
        record.path: record.sha256
        for receipt in receipts()
        for record in receipt.files
        if record.sha256
    }
    digests = {model.sha256 for model in KNOWN.values()}
    for file in files:
        digest = sha256_of(file)
        expected = known.get(str(file.absolute())) or known.get(str(file.resolve()))
        state = "" if expected is None else "same" if digest == expected else "different"
        if not state and digest in digests:
            state = "same"
        report.files.append(FileFacts(str(file), file.stat().st_size, digest, state))
        if state == "different":
            what = f"its SHA-256 is {digest}, that of its receipt {expected}: it was changed"
            report.findings.append(Finding("checksum", file.name, what))
        done(report.files[-1].size)


def _steps(progress: Progress | None, total: int) -> Callable[[int], None]:
    """Make a function that counts bytes and tells `progress`."""
    so_far = 0

    def done(n_bytes: int) -> None:
        nonlocal so_far
        so_far += n_bytes
        if progress is not None:
            progress(so_far, max(total, so_far))

    return done

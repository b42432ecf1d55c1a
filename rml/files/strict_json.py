"""JSON from strangers: every fault is a `CheckpointError`, and nothing has two meanings.

Python's `json` keeps the last of two equal keys, accepts NaN, and lets RecursionError out.
Readers that differ in such corners see different models in one file, so they are refused here.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from rml.errors import CheckpointError
from rml.files.limits import MAX_JSON_BYTES
from rml.files.mapped import file_size, read_head

__all__ = ["load_json", "parse_json"]


def parse_json(text: bytes, origin: str, *, constants: bool = False) -> dict[str, Any]:
    """Parse `text`, one JSON object in UTF-8.

    Parameters
    ----------
    text : bytes
        The document.
    origin : str
        What it is, for messages: a path, or a path and a part.
    constants : bool, optional
        Accept ``NaN`` and ``Infinity``, which JSON does not have but Python programs write.

    Raises
    ------
    CheckpointError
        If `text` is no UTF-8, no JSON, no object, nested too deeply, or has a key twice in one
        object.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointError(f"{origin}: the key {twice!r} occurs twice")
        return members

    def refuse(constant: str) -> NoReturn:
        raise CheckpointError(f"{origin}: {constant} is not JSON")

    try:
        document = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=None if constants else refuse,
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{origin}: not UTF-8 text at byte {error.start}") from error
    except RecursionError as error:
        raise CheckpointError(f"{origin}: the JSON is nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"{origin}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{origin}: a JSON object is expected, not {type(document).__name__}")
    return document


def load_json(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """Read the file `path`, which must hold one JSON object of at most 100 MB."""
    size = file_size(path)
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: {size} bytes of JSON; {MAX_JSON_BYTES} are allowed")
    return parse_json(read_head(path, size), str(path), constants=constants)

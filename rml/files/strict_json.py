"""JSON from strangers: every fault is a `CheckpointError`, and nothing has two meanings.

Python's `json` keeps the last of two equal keys, accepts NaN, and lets RecursionError out.
Readers that differ in such corners see different models in one file, so they are refused here.

A parsed document takes up to thirty times the memory of its text. So what makes Python objects is
counted in the text first, some milliseconds for a megabyte, and too much of it is refused before
anything is parsed.
"""

import json
import reprlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rml.errors import CheckpointError
from rml.files.limits import (
    MAX_JSON_BYTES,
    MAX_JSON_CONTAINERS,
    MAX_JSON_DEPTH,
    MAX_JSON_DIGITS,
    MAX_JSON_KEYS,
    MAX_JSON_VALUES,
)
from rml.files.mapped import file_size, read_head

__all__ = ["brief", "load_json", "name_of", "parse_json"]

_SHOWN = 160  # characters
_BRIEF = reprlib.Repr()
_BRIEF.maxdict = _BRIEF.maxlist = _BRIEF.maxtuple = 16
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = _SHOWN

_CHUNK = 1 << 18  # bytes that are counted at a time: they stay in the second-level cache

_QUOTE = ord('"')
_OPENING, _CLOSING = b"[{", b"]}"
# All but quotes and brackets.
_OTHERS = bytes(set(range(256)) - {_QUOTE, *_OPENING, *_CLOSING})
_STEPS = np.zeros(256, np.int8)  # how each byte changes the depth
_STEPS[list(_OPENING)], _STEPS[list(_CLOSING)] = 1, -1

# What makes objects: the bytes that are counted, how many there may be, and what they are.
_COUNTED = (
    (_OPENING, MAX_JSON_CONTAINERS, "lists and objects"),
    (b":", MAX_JSON_KEYS, "keys (colons, those of texts included)"),
    (b",", MAX_JSON_VALUES, "values (commas, those of texts included)"),
)


def brief(value: object) -> str:
    """Show what a file holds, in a message of a few lines at most."""
    return _BRIEF.repr(value)


def name_of(value: object, default: str) -> str:
    """Show a name without quotes; a default where there is none."""
    return value[:_SHOWN] if isinstance(value, str) and value else default


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
        If `text` is no UTF-8, no JSON, no object, has a key twice in one object, or exceeds a
        limit of JSON in `rml.files.limits`.
    """
    _check_limits(text, origin)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise CheckpointError(f"{origin}: the key {brief(twice)} occurs twice")
        return members

    def refuse(constant: str) -> NoReturn:
        raise CheckpointError(f"{origin}: {constant} is not JSON")

    try:
        document = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=None if constants else refuse,
            parse_int=_int_parser(),
        )
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{origin}: not UTF-8 text at byte {error.start}") from error
    except RecursionError as error:
        raise CheckpointError(f"{origin}: the JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{origin}: not valid JSON: {error}") from error
    except ValueError as error:
        raise CheckpointError(
            f"{origin}: a whole number has more than {MAX_JSON_DIGITS} digits"
        ) from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{origin}: a JSON object is expected, not {type(document).__name__}")
    return document


def load_json(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """Read the regular file `path`, which must hold one JSON object; see `parse_json`."""
    size = file_size(path)
    if size > MAX_JSON_BYTES:
        raise CheckpointError(f"{path}: {size} bytes of JSON; {MAX_JSON_BYTES} are allowed")
    return parse_json(read_head(path, size), str(path), constants=constants)


def _check_limits(text: bytes, origin: str) -> None:
    """Refuse a document from which the parser would make too many objects, or too deep ones."""
    totals = [0] * len(_COUNTED)
    for chunk in _chunks(text):
        for i, (marks, _, _) in enumerate(_COUNTED):
            totals[i] += sum(int(np.count_nonzero(chunk == mark)) for mark in marks)
    for total, (_, limit, what) in zip(totals, _COUNTED, strict=True):
        if total > limit:
            raise CheckpointError(f"{origin}: {total:,} {what}; at most {limit:,} are allowed")
    if totals[0] > MAX_JSON_DEPTH and (depth := _depth(text)) > MAX_JSON_DEPTH:
        raise CheckpointError(
            f"{origin}: the JSON is nested too deeply: {depth:,} lists and objects in each other; "
            f"at most {MAX_JSON_DEPTH} are allowed"
        )


def _chunks(text: bytes) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(text), _CHUNK):
        yield np.frombuffer(text, np.uint8, min(_CHUNK, len(text) - start), start)


def _depth(text: bytes) -> int:
    """How deeply lists and objects are nested, up to the first fault of the document if it has any.

    The parser goes no further than that.
    """
    if b"\\" in text:  # which JSON has in strings only: what is left of them are plain quotes
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    deepest = depth = 0
    in_string = False
    for start in range(0, len(text), _CHUNK):
        marks = text[start : start + _CHUNK].translate(None, _OTHERS)
        if not marks:
            continue
        marked = np.frombuffer(marks, np.uint8)
        inside = np.logical_xor.accumulate(marked == _QUOTE)
        if in_string:
            inside = ~inside
        steps = _STEPS[marked]
        steps[inside] = 0
        levels = np.cumsum(steps, dtype=np.int64)
        deepest = max(deepest, depth + int(levels.max()))
        depth += int(levels[-1])
        in_string = bool(inside[-1])
    return deepest


def _int_parser() -> Callable[[str], int] | None:
    """How to read whole numbers; None is the quickest way, which has Python's own limit."""
    limit = sys.get_int_max_str_digits()
    return None if 0 < limit <= MAX_JSON_DIGITS else _bounded_int


def _bounded_int(digits: str) -> int:
    """Read a whole number where the program has raised or removed Python's limit."""
    if len(digits) - digits.startswith("-") > MAX_JSON_DIGITS:
        raise ValueError("too many digits")
    return int(digits)

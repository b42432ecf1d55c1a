"""Typed look-up in a model's metadata that remembers which keys were read.

Both readers of configurations use it, so that a key nobody read can be refused instead of passed
over in silence.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from heapq import nsmallest
from typing import Any

import numpy as np

from rml.errors import CheckpointError, UnsupportedModel
from rml.files.limits import MAX_CONFIG_ARRAY, MAX_CONFIG_KEYS, MAX_INTEGER
from rml.files.strict_json import brief, name_of

__all__ = ["Keys", "listed"]

_log = logging.getLogger("rml")

_SHOWN_ENTRIES = 8
_SHOWN_KEYS = 20  # in one message
_SHOWN_LENGTH = 60


class Keys:
    """The keys of a mapping that begin with `prefix`, named without it.

    Parameters
    ----------
    values : mapping
        Metadata of a GGUF file, or a parsed ``config.json``.
    path : str
        The file, for messages.
    prefix : str
        What the keys begin with, e.g. ``"llama."``.
    label : str
        What messages put before a key; the prefix if not given.
    """

    def __init__(
        self, values: Mapping[str, Any], path: str, *, prefix: str = "", label: str = ""
    ) -> None:
        self._values = values
        self._path = path
        self._prefix = prefix
        self._label = label or prefix
        self._read: set[str] = set()
        if len(values) > MAX_CONFIG_KEYS:
            raise self.fail(
                f"the configuration has {len(values):,} keys; at most {MAX_CONFIG_KEYS:,} are "
                "allowed"
            )

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._values

    def __len__(self) -> int:
        return sum(key.startswith(self._prefix) for key in self._values)

    def _where(self) -> str:
        return f"{self._path}: " if self._path else ""

    def fail(self, message: str) -> CheckpointError:
        """Make the error for metadata that is broken."""
        return CheckpointError(f"{self._where()}{message}")

    def refuse(self, message: str) -> UnsupportedModel:
        """Make the error for metadata that asks for what is not implemented."""
        return UnsupportedModel(f"{self._where()}{message}")

    def warn(self, message: str) -> None:
        """Log something about the metadata that is worth a look."""
        _log.warning("%s%s", self._where(), message)

    def get(self, key: str) -> Any:  # noqa: ANN401 - metadata may hold anything
        """Value of a key, None where it is absent or null; arrays become tuples."""
        self._read.add(key)
        value = self._values.get(self._prefix + key)
        if isinstance(value, list):
            return tuple(value)
        if (n := _n_values(value)) > MAX_CONFIG_ARRAY:
            raise self.fail(
                f"{self._label}{key} is an array of {n:,} values; at most {MAX_CONFIG_ARRAY:,} are "
                "allowed"
            )
        return _plain(value)

    def integer(self, key: str, default: int | None = None) -> int:
        """One integer; of an array with one value for each layer, the value that all share."""
        value = self.get(key)
        if isinstance(value, tuple) and value:
            if any(entry != value[0] for entry in value):
                raise self.refuse(
                    f"{self._label}{key} differs from layer to layer, which is not implemented"
                )
            value = value[0]
        if value is None:
            if default is None:
                raise self._missing(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"{self._label}{key} is {_show(value)}, but must be an integer")
        if abs(value) > MAX_INTEGER:
            raise self._too_large(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """One finite number."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self._missing(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"{self._label}{key} is {_show(value)}, but must be a number")
        try:
            number = float(value)
        except OverflowError:
            raise self._too_large(key, value) from None
        if not math.isfinite(number):
            raise self.fail(f"{self._label}{key} is {value}, but must be finite")
        return number

    def optional_number(self, key: str) -> float | None:
        """One finite number, or None where it is absent or null."""
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{self._label}{key} is {_show(value)}, but must be true or false")
        return value

    def child(self, key: str) -> "Keys":
        """Enter a nested object; one without keys where it is absent or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.fail(f"{self._label}{key} is {_show(value)}, but must be an object")
        return Keys(value or {}, self._path, label=f"{self._label}{key}.")

    def full_name(self, key: str) -> str:
        """Name of a key as messages have it."""
        return f"{self._label}{key}"

    def says_more_than(self, keys: Collection[str]) -> bool:
        """Whether there is any other key whose value is not null."""
        return any(
            value is not None and full.removeprefix(self._prefix) not in keys
            for full, value in self._values.items()
            if full.startswith(self._prefix)
        )

    def unread(self) -> Iterator[tuple[str, Any]]:
        """Keys that nobody asked for, with their values."""
        for full in self._values:
            key = full.removeprefix(self._prefix)
            if full.startswith(self._prefix) and key not in self._read:
                yield key, self.get(key)

    def refuse_all(self, unread: Mapping[str, Any]) -> None:
        """Refuse the model for the sake of these keys, if there are any."""
        if unread:
            named = listed(unread, lambda key: f"{self._label}{key} = {_show(unread[key])}")
            raise self.refuse(f"not implemented: {named}")

    def _too_large(self, key: str, value: object) -> CheckpointError:
        return self.fail(f"{self._label}{key} is {_show(value)}, more than any model has")

    def _missing(self, key: str) -> CheckpointError:
        return self.fail(f"{self._label}{key} is missing")


def listed(names: Collection[str], show: Callable[[str], str] = str) -> str:
    """List names in order, the first few, as `show` says them."""
    shown = [name_of(show(name), "") for name in nsmallest(_SHOWN_KEYS, names)]
    if len(names) > len(shown):
        shown.append(f"and {len(names) - len(shown):,} more")
    return ", ".join(shown)


def _n_values(value: object) -> int:
    """Count the values of a GGUF array, those of arrays in it included."""
    if isinstance(value, tuple):
        return sum(1 + _n_values(each) for each in value)
    return value.size if isinstance(value, np.ndarray) else 0


def _plain(value: Any) -> Any:  # noqa: ANN401 - metadata may hold anything
    """Turn numpy's values into Python's, and arrays into tuples."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _show(value: object) -> str:
    """Short form of a value, however long it is."""
    if isinstance(value, tuple) and len(value) > _SHOWN_ENTRIES:
        return f"an array of {len(value)} values"
    text = brief(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."

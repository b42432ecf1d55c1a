"""A mapping that nobody changes, and that pickles and copies."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

__all__ = ["ReadOnly"]

V = TypeVar("V")


class ReadOnly(Mapping[str, V]):
    """A view of a dict.

    Parameters
    ----------
    values : dict
        Whoever has it may change it still.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, V]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> V:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._values, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self._values}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"

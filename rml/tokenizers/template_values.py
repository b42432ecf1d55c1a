"""The caller's own values, copied for a chat template.

A template gets plain mappings and lists of its own, so that nothing that it does reaches the
caller's: a `defaultdict`, for one, changes when a key is looked up. Texts, numbers and what rml
does not know are passed on as they are.
"""

from collections.abc import Mapping
from typing import Any

from rml.errors import ArgumentError
from rml.files.limits import MAX_TEMPLATE_LEVELS

# ruff: noqa: ANN401  # a template's values are whatever messages hold

__all__ = ["Copies"]


class Copies:
    """Copies of values; what is shared stays shared.

    Attributes
    ----------
    size : int
        Characters in what was copied, shared ones counted once.
    """

    def __init__(self) -> None:
        self.size = 0
        self._made: dict[int, tuple[Any, Any]] = {}  # by the id of the first, which stays alive

    def of(self, value: Any, where: str, level: int = 0) -> Any:
        """Copy a value.

        Parameters
        ----------
        value : object
            Whatever the caller gave.
        where : str
            Names it in messages.

        Raises
        ------
        ArgumentError
            It is nested too deeply, or holds itself.
        """
        if isinstance(value, str):
            self.size += len(value)
            return value
        if type(value) is not tuple and not isinstance(value, list | Mapping):
            return value
        if level > MAX_TEMPLATE_LEVELS:
            raise ArgumentError(
                f"{where} is nested in more than {MAX_TEMPLATE_LEVELS} levels, or holds itself"
            )
        if id(value) in self._made:
            return self._made[id(value)][1]
        level += 1
        copy: Any
        if isinstance(value, Mapping):
            copy = {key: self.of(part, where, level) for key, part in value.items()}
            self.size += sum(len(key) for key in copy if isinstance(key, str))
        else:
            copy = [self.of(part, where, level) for part in value]
            copy = tuple(copy) if isinstance(value, tuple) else copy
        self._made[id(value)] = value, copy
        return copy

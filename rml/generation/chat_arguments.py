"""What goes into a chat beside the texts of its messages, checked against the chat template.

A template passes over what it does not read, without a word: so the word is said here.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from rml.errors import ArgumentError
from rml.ranges import listed

if TYPE_CHECKING:
    from rml.tokenizers import ChatTemplate

__all__ = [
    "check_clash",
    "check_text_only",
    "check_variables",
    "given_messages",
    "given_tools",
]

_FORM: Final = '[{"role": "user", "content": "Hello"}]'

# Arguments of a rendering, which are passed on together with variables.
_ARGUMENTS: Final = frozenset({"continue_final_message", "now"})
# What a rendering fills in itself.
_OWN: Final = frozenset({"add_generation_prompt", "messages", "self", "strftime_now", "tools"})
# Modules of frames that are no caller's: `callers_objects` decorates functions.
_OURS: Final = frozenset({"contextlib", "rml"})
# Kinds of content that are for models with eyes and ears.
_MEDIA: Final = frozenset({"audio", "file", "image", "video"})


def given_messages(value: object) -> list[Mapping[str, Any]]:
    """Messages that a caller gave, as a list; what is in each is looked at with the template.

    Raises
    ------
    ArgumentError
        If they are no list of mappings.
    """
    messages = list(value) if isinstance(value, Iterator) else listed(value)
    if messages is None:
        raise ArgumentError(f"messages are a list such as {_FORM}, not {type(value).__name__}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ArgumentError(
                f"messages[{index}] is {type(message).__name__}, but a message is a mapping, as in "
                f"{_FORM}"
            )
    return messages


def given_tools(tools: object) -> list[Mapping[str, Any]] | None:
    """Tools as a list; None if there are none, as without the argument.

    Raises
    ------
    ArgumentError
        If `tools` is not a list of mappings.
    """
    if tools is None:
        return None
    entries = listed(tools)
    if entries is None:
        raise ArgumentError(f"tools is a list of mappings, not {type(tools).__name__}")
    for tool in entries:
        if not isinstance(tool, Mapping):
            raise ArgumentError(
                f"tools: each is a mapping that describes a function, not {type(tool).__name__}"
            )
    return entries or None


def check_variables(variables: Mapping[str, Any], template: "ChatTemplate") -> None:
    """Warn of variables that a template does not read.

    A variable that is None is not given, and names of control tokens (``..._token``) are offered to
    every template.

    Raises
    ------
    ArgumentError
        If `variables` is not a mapping, or one is not for the caller to set.
    """
    check_clash(variables, *_OWN)
    for name, value in variables.items():
        if not isinstance(name, str):
            raise ArgumentError(f"{name!r} is no name of a variable of a chat template")
        if value is None or name in _ARGUMENTS or name.endswith("_token"):
            continue
        if name not in template.variables:
            warnings.warn(
                f"the chat template does not read {name!r}{_hint(name, template)}",
                UserWarning,
                stacklevel=_callers_level(),
            )


def check_clash(variables: Mapping[str, Any], *taken: str) -> None:
    """Refuse variables whose names are taken by what is given otherwise.

    Raises
    ------
    ArgumentError
        If one is among `taken`, or `variables` is not a mapping.
    """
    if not isinstance(variables, Mapping):
        raise ArgumentError(
            f"variables of a chat template are a mapping, not {type(variables).__name__}"
        )
    for name in taken:
        if name in variables:
            raise ArgumentError(f"{name!r} is not for a variable of a chat template")


def check_text_only(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse images and the like: a template may write a place for them, but no model sees them.

    Raises
    ------
    ArgumentError
        If a content has such a part.
    """
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list | tuple) else ():
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(kind, str) and _MEDIA & set(kind.split("_")):
                raise ArgumentError(
                    f"messages[{i}]: the content has a part of the type {kind!r}, and rml reads "
                    "text alone; leave it out, or say in words what it shows"
                )


def _hint(name: str, template: "ChatTemplate") -> str:
    known = sorted(template.variables - _OWN)
    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    names = ", ".join(sorted(template.inputs - _OWN))
    return f"; it reads {names}" if names else ""


def _callers_level() -> int:
    """Stack level, for a warning of the calling function, of the first caller outside rml."""
    level = 1
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to the stack that costs nothing
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS:
        frame = frame.f_back
        level += 1
    return level

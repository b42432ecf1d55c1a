"""Messages of a conversation: checked, and in the forms that chat templates read.

What a template would pass over, or write as something that nobody meant, is refused here: a
misspelt role, a message that says nothing, content that is no text. Content is a text, or a list of
parts as in OpenAI's interface: ``{"type": "text", "text": ...}``.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from rml.errors import ArgumentError, TemplateError
from rml.tokenizers.marked_text import MarkedText, NullText

if TYPE_CHECKING:
    from rml.tokenizers.template_names import TemplateNames  # brings jinja2 along

# ruff: noqa: ANN401, SIM905  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = ["is_text_part", "prepared", "text_of", "with_parsed_calls"]

# Roles are part of a prompt's frame: some templates write them into a control token, as in
# '<|' + role + '|>'. Only these words count so; any other role is content, and is for templates
# that mention it.
_ROLES: Final = frozenset(
    "assistant bot context developer document documents function functions human ipython model "
    "observation system tool tool_call tool_calls tool_response tool_responses user".split()
)
_USUAL_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS: Final = frozenset({"assistant", "developer", "system", "user"})

# What an assistant may say instead of content, whatever the template does with it.
_INSTEAD_OF_CONTENT: Final = frozenset({"function_call", "tool_calls"})
# What belongs to the frame of a message, and says nothing.
_FRAME: Final = frozenset("content id name role tool_call_id type".split())


def prepared(messages: Sequence[Mapping[str, Any]], names: "TemplateNames") -> list[dict[str, Any]]:
    """Check messages, and return them as templates expect them; the caller's own stay.

    Parameters
    ----------
    messages : sequence of mapping
        As the user gave them.
    names : TemplateNames
        What the template mentions: roles and types of parts of its own are let through.

    Raises
    ------
    ArgumentError
        A message is no message.
    TemplateError
        A message holds what the template does not read.
    """
    return [_prepared(message, f"messages[{i}]", names) for i, message in enumerate(messages)]


def _prepared(message: Mapping[str, Any], where: str, names: "TemplateNames") -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ArgumentError(
            f"{where}: a message is a mapping, not {type(message).__name__}: {message!r:.200}"
        )
    result = dict(message)
    result["role"] = _role(message, where, names.words)
    content = message.get("content")
    if content is None:
        _check_silent(message, where, names)
        if "content" in message:
            result["content"] = NullText()
    elif isinstance(content, list | tuple):
        result["content"] = _parts(content, where, names.words) or ""
    elif not isinstance(content, str) and not (
        # Results of tools may be data, for templates that look for that.
        isinstance(content, Mapping)
        and "mapping" in names.tests
        and result["role"] not in _SPEAKERS
    ):
        raise ArgumentError(
            f"{where}: the content is a {type(content).__name__}; it must be text, or a list of "
            "parts like {'type': 'text', 'text': ...}"
        )
    return result


def _role(message: Mapping[str, Any], where: str, words: Collection[str]) -> str:
    role = message.get("role")
    if not isinstance(role, str):
        found = f"the role {role!r:.100}" if "role" in message else "no role"
        raise ArgumentError(f"{where} has {found}; the usual ones are {', '.join(_USUAL_ROLES)}")
    text = str.__str__(role)  # of an enumeration: its value
    if text in _ROLES:
        return MarkedText.written(text)
    if text in words:
        return text
    near = get_close_matches(text.lower(), _USUAL_ROLES, n=1)
    usual = ", ".join(_USUAL_ROLES)
    hint = f"did you mean {near[0]!r}?" if near else f"the usual ones are {usual}"
    raise ArgumentError(
        f"{where} has the role {text[:100]!r}, which the chat template does not mention; {hint}"
    )


def _check_silent(message: Mapping[str, Any], where: str, names: "TemplateNames") -> None:
    """Refuse a message without content that says nothing elsewhere either."""
    said = {name for name, value in message.items() if value} - _FRAME
    calls = _INSTEAD_OF_CONTENT if message["role"] != "user" else frozenset()
    if said & (calls | names.words | names.attributes):
        return
    raise ArgumentError(
        f"{where} (role {str(message['role'])!r}) has no content; give a text, which may be empty"
    )


def _parts(content: Sequence[Any], where: str, words: Collection[str]) -> list[dict[str, Any]]:
    """Parts of a content, those of text in the one form that templates read."""
    parts: list[dict[str, Any]] = []
    for i, part in enumerate(content):
        place = f"{where}: part {i} of the content"
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
            continue
        if not isinstance(part, Mapping):
            raise ArgumentError(
                f"{place} is a {type(part).__name__}; it must be like "
                "{'type': 'text', 'text': ...}"
            )
        kind = part.get("type", "text")
        if kind == "text":
            if not isinstance(part.get("text"), str):
                raise ArgumentError(f"{place} has no text: {dict(part)!r:.200}")
        elif not isinstance(kind, str) or kind not in words:
            raise TemplateError(
                f"{place} is of the type {kind!r:.100}, which the chat template does not read; "
                "leave it out, or say in words what it shows"
            )
        parts.append({"type": kind, **part})
    return parts


def is_text_part(part: Any) -> bool:
    """Whether a part of a content is text, in any form that `prepared` accepts."""
    return isinstance(part, str) or (
        isinstance(part, Mapping)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    )


def text_of(content: Any) -> str | None:
    """Text of a content, its parts joined without anything between; None if not all is text.

    Templates that read parts write them so, one behind the other.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and all(map(is_text_part, content)):
        return "".join(part if isinstance(part, str) else part["text"] for part in content)
    return None


def with_parsed_calls(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Messages whose tool calls have arguments as mappings; None if they have already.

    The OpenAI interface gives arguments as JSON text, and many templates read only mappings.
    """
    changed = [_with_parsed_calls(message) for message in messages]
    if all(new is old for new, old in zip(changed, messages, strict=True)):
        return None
    return changed


def _with_parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    parsed = [_parsed_call(call) for call in calls]
    if all(new is old for new, old in zip(parsed, calls, strict=True)):
        return message
    return message | {"tool_calls": parsed}


def _parsed_call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        function = _parsed_call(call["function"])
        return call if function is call["function"] else {**call, "function": function}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):  # a mapping already, or not JSON
        return call
    return {**call, "arguments": arguments} if isinstance(arguments, dict) else call

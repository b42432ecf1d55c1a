"""Chat messages to the text that a model was trained to see.

A `ChatTemplate` is the Jinja source that comes with a model. It renders exactly as Transformers
renders it, inside a sandbox, because the source comes from strangers, and it tells the text that
the template wrote from the content of messages, so that no content can forge a control token.
"""

import datetime as dt
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from jinja2.exceptions import SecurityError, TemplateSyntaxError

from rml.errors import ArgumentError, TemplateError
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES
from rml.tokenizers.marked_text import MarkedText, NullText
from rml.tokenizers.template_sandbox import RefusalError, Sandbox

# ruff: noqa: ANN401, SIM905  # words in a row read better than a list; a template's values are whatever messages hold

__all__ = ["UNSET", "ChatTemplate", "Unset"]

_MAX_REASON: Final = 1000  # characters of an error message
_MAX_SOURCE: Final = 1 << 20  # characters; the longest in use have 30 000

# Roles are part of a prompt's frame: some templates write them into a control token, as in
# '<|' + role + '|>'. Only these words count so; any other role is content.
_ROLES: Final = frozenset(
    "assistant bot context developer document documents function human ipython model observation "
    "system tool tool_call tool_calls tool_response tool_responses user".split()
)


class Unset(Enum):
    """Type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""A template variable that is left undefined, which is not the same as None."""


class ChatTemplate:
    """A compiled chat template; immutable, and safe to share between threads.

    Parameters
    ----------
    source : str
        Jinja source.

    Raises
    ------
    TemplateError
        It does not compile.
    """

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise ArgumentError(f"a chat template is a str, not {type(source).__name__}")
        if len(source) > _MAX_SOURCE:
            raise TemplateError(
                f"the chat template has {len(source)} characters; at most {_MAX_SOURCE} are read"
            )
        self.source = source
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not compile: line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error

    @classmethod
    def builtin(cls, name: str) -> "ChatTemplate":
        """Make a template that rml knows by name.

        Parameters
        ----------
        name : str
            "chatml", "llama2", "llama3", "gemma", "mistral", "zephyr", "phi3" and others; a name
            that is not known raises with all of them.

        Raises
        ------
        TemplateError
            The name is not known.
        """
        if name not in BUILTIN_TEMPLATES:
            known = ", ".join(sorted(BUILTIN_TEMPLATES))
            raise TemplateError(f"no built-in chat template {name!r}; there are {known}")
        return cls(BUILTIN_TEMPLATES[name])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = UNSET,
        add_generation_prompt: bool | Unset = True,
        now: dt.datetime | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Text of a conversation.

        Parameters
        ----------
        messages : sequence of mapping
            Each with "role" and "content" (a string, a list of parts, or None), and what else the
            template reads. Tool-call arguments may be a mapping or its JSON text.
        tools : list, optional
            Tool descriptions; undefined in the template unless given.
        add_generation_prompt : bool
            End with the opening of an assistant turn.
        now : datetime, optional
            What ``strftime_now`` tells; the time of the call by default.
        continue_final_message : bool
            End inside the last message, so that a model goes on with it.
        **variables
            Further variables of the template: ``bos_token``, ``documents``, ``enable_thinking``...

        Raises
        ------
        TemplateError
            The template refuses the messages (with its own words), fails, or uses up its limits of
            time and size.
        """
        parts = self.render_parts(
            messages, tools, add_generation_prompt, now, continue_final_message, **variables
        )
        return "".join(text for text, _ in parts)

    def render_parts(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = UNSET,
        add_generation_prompt: bool | Unset = True,
        now: dt.datetime | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[tuple[str, bool]]:
        """Text of a conversation in parts: text, and whether the template wrote it.

        Text that comes from messages, tools or variables is not written by the template, nor is
        what the template makes of such text. Variables named ``..._token`` are: they hold the
        names of control tokens.
        """
        if continue_final_message and add_generation_prompt is True:
            raise ArgumentError(
                "continue_final_message and add_generation_prompt exclude each other"
            )
        prepared = [_prepared(message) for message in messages]
        mark = ""
        if continue_final_message:
            mark = f"\ue000{secrets.token_hex(8)}\ue001 "
            prepared[-1:] = [_with_mark(prepared, mark)]
        given: dict[str, Any] = {
            name: MarkedText.written(value)
            if name.endswith("_token") and isinstance(value, str)
            else value
            for name, value in variables.items()
        }
        given |= {"messages": prepared, "strftime_now": _clock(now)}
        if tools is not UNSET:
            given["tools"] = tools
        if add_generation_prompt is not UNSET:
            given["add_generation_prompt"] = add_generation_prompt
        given = {name: value for name, value in given.items() if value is not UNSET}
        text = self._run(given, _adapted(prepared))
        if mark:
            text = _cut_at(text, mark)
        return list(_parts(text))

    def _run(self, variables: dict[str, Any], others: list[list[dict[str, Any]]]) -> MarkedText:
        """Render; where that fails, once more with the messages in another form."""
        sandbox = self._sandbox
        try:
            with sandbox.guard.running(_size(variables)):
                context = self._template.new_context(variables)
                return sandbox.join(self._template.root_render_func(context))
        except Exception as error:
            if others and not isinstance(error, SecurityError):
                return self._run(variables | {"messages": others[0]}, others[1:])
            if isinstance(error, RefusalError):
                raise TemplateError(str(error.message)) from None
            reason = str(error) if isinstance(error, SecurityError) else _described(error)
            raise TemplateError(f"the chat template fails: {reason[:_MAX_REASON]}") from error

    def __repr__(self) -> str:
        return f"ChatTemplate({self.source[:40]!r}...)"


def _prepared(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it; the caller's own stays as it is."""
    if not isinstance(message, Mapping):
        raise ArgumentError(f"a message is a mapping, not {type(message).__name__}: {message!r}")
    prepared = dict(message)
    if prepared.get("role") in _ROLES:
        prepared["role"] = MarkedText.written(str(prepared["role"]))
    if "content" in prepared and prepared["content"] is None:
        prepared["content"] = NullText()
    return prepared


def _adapted(messages: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Other forms of the messages, for templates that do not read the given one.

    The OpenAI interface gives arguments of tool calls as JSON text, and many templates read only
    mappings; it allows content in parts, and many read only text.
    """
    forms = [list(messages)]
    for change in (_with_parsed_calls, _with_joined_content):
        changed = [change(message) for message in forms[-1]]
        if any(new is not old for new, old in zip(changed, forms[-1], strict=True)):
            forms.append(changed)
    return forms[1:]


def _with_parsed_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple):
        return message
    parsed = [_parsed_call(call) for call in calls]
    if all(new is old for new, old in zip(parsed, calls, strict=True)):
        return message
    return message | {"tool_calls": parsed}


def _with_joined_content(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        return message
    return message | {"content": "".join(str(text) for text in texts)}


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


def _with_mark(messages: Sequence[Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Put a mark at the end of the last message's text, to find that end again."""
    last = dict(messages[-1]) if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + mark
        return last
    if isinstance(content, list | tuple) and content and "text" in content[-1]:
        last["content"] = [*content[:-1], {**content[-1], "text": content[-1]["text"] + mark}]
        return last
    raise ArgumentError("continue_final_message needs a last message with text content")


def _cut_at(text: MarkedText, mark: str) -> MarkedText:
    position = text.rfind(mark.strip())
    if position < 0:
        raise TemplateError(
            "continue_final_message: the chat template does not write the last message's text"
        )
    kept = text[:position]
    if text[position : position + len(mark)] != mark:
        kept = kept.rstrip()  # the template trims content, so the space behind the mark is gone
    return kept if isinstance(kept, MarkedText) else MarkedText(kept)


def _parts(text: MarkedText) -> Iterator[tuple[str, bool]]:
    plain = text.plain()
    end = 0
    for start, stop in text.spans:
        if start > end:
            yield plain[end:start], False
        yield plain[start:stop], True
        end = stop
    if end < len(plain):
        yield plain[end:], False


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _clock(now: dt.datetime | None) -> Any:
    def strftime_now(form: str) -> str:
        return (now or dt.datetime.now().astimezone()).strftime(form)

    return strftime_now


def _size(value: Any) -> int:
    """Characters in nested variables."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 0

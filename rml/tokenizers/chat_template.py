"""Chat messages to the text that a model was trained to see.

A `ChatTemplate` is the Jinja source that comes with a model. It renders exactly as Transformers
renders it, inside a sandbox, because the source comes from strangers, and it tells the text that
the template wrote from the content of messages, so that no content can forge a control token.
"""

import datetime as dt
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from jinja2.exceptions import SecurityError, TemplateSyntaxError

from rml.errors import ArgumentError, CheckpointError, TemplateError
from rml.files.limits import MAX_TEMPLATE_CHARS
from rml.files.paths import readable_path
from rml.ranges import callers_objects, iterated, plain_text
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES
from rml.tokenizers.chat_messages import is_text_part, prepared, with_parsed_calls
from rml.tokenizers.content_forms import readable
from rml.tokenizers.marked_text import MarkedText
from rml.tokenizers.template_costs import check_date_format
from rml.tokenizers.template_guard import Allowance
from rml.tokenizers.template_names import names_of
from rml.tokenizers.template_sandbox import RefusalError, Sandbox
from rml.tokenizers.template_source import looks_like_a_reference, read_template
from rml.tokenizers.template_values import Copies

# ruff: noqa: ANN401  # a template's values are whatever messages hold

__all__ = ["UNSET", "ChatTemplate", "Unset"]

_MAX_REASON: Final = 1000  # characters of an error message


class Unset(Enum):
    """Type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""A template variable that is left undefined, which is not the same as None."""


class ChatTemplate:
    """A compiled chat template; immutable, and safe to share between threads.

    It pickles as its source.

    Parameters
    ----------
    source : str
        Jinja source. Names are for `builtin`, files for `from_file`.
    effort : float
        Multiple of the usual limits of time and memory: 1.5 seconds of processor time and 64 MB
        for a rendering, and more in proportion to the messages. For a template that is trusted
        and has a long way to go.

    Attributes
    ----------
    source, effort
        As given.
    variables : frozenset of str
        Names of the variables that it reads, in any of its branches.
    inputs : frozenset of str
        Those that it never sets itself.

    Raises
    ------
    TemplateError
        It does not compile, or is the name of a template or file.
    """

    def __init__(self, source: str, effort: float = 1) -> None:
        if not isinstance(source, str):
            raise ArgumentError(
                f"a chat template is a str of Jinja source, not {type(source).__name__}; "
                "ChatTemplate.from_file reads a file"
            )
        source = plain_text(source)
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} are "
                "read"
            )
        if looks_like_a_reference(source):
            raise TemplateError(
                f"{source[:200]!r} is no Jinja source; ChatTemplate.builtin makes a template from "
                "its name, and ChatTemplate.from_file from a file"
            )
        if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort <= 1e6:
            raise ArgumentError(f"effort is a number above 0, up to 1000000, not {effort!r:.100}")
        self.source = source
        self.effort = effort
        self._sandbox = Sandbox()
        try:
            tree = self._sandbox.parse(source)
            self._template = self._sandbox.from_string(tree)
            self._names = names_of(tree)
        except TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not compile: line {error.lineno}: {error.message}"
            ) from error
        except (RecursionError, MemoryError, OverflowError, SyntaxError, ValueError) as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error
        self.variables, self.inputs = self._names.variables, self._names.inputs

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

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], effort: float = 1) -> "ChatTemplate":
        """Make a template from a file of Jinja source.

        Parameters
        ----------
        path : str or path-like
            UTF-8 text; a byte-order mark at its beginning is dropped.
        effort : float
            Multiple of the usual limits of time and memory.

        Raises
        ------
        TemplateError
            It cannot be read, is too large, or does not compile.
        ArgumentError
            `path` is no path.
        """
        try:
            file = readable_path(path, "the file of a template")
        except CheckpointError as error:  # no file can have that name
            raise TemplateError(str(error)) from error
        return cls(read_template(file), effort)

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
            Each with "role" and "content", and what else the template reads. Content is a string
            or a list of parts like ``{"type": "text", "text": ...}``, and gets the form that the
            template reads in this place: texts of parts are joined without anything between, as
            templates for parts write them, or a text becomes one part. A message without content
            says something else, such as tool calls. Tool-call arguments may be a mapping or its
            JSON text.
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
        ArgumentError
            A message is malformed: it says nothing, or has a role that is neither a usual one nor
            mentioned by the template.
        TemplateError
            The template refuses the messages (with its own words), does not read a part of them
            that is no text, fails, or uses up its limits of time and size.
        """
        parts = self.render_parts(
            messages, tools, add_generation_prompt, now, continue_final_message, **variables
        )
        return "".join(text for text, _ in parts)

    @callers_objects("the conversation")
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
        entries = None if isinstance(messages, str | bytes | Mapping) else iterated(messages)
        if entries is None:
            raise ArgumentError(f"messages are a list of mappings, not {type(messages).__name__}")
        copies = Copies()
        checked = prepared(copies.of(entries, "messages"), self._names)
        mark = ""
        if continue_final_message:
            mark = f"\ue000{secrets.token_hex(8)}\ue001 "
            checked[-1:] = [_with_mark(checked, mark)]
        given: dict[str, Any] = {
            name: MarkedText.written(value)
            if name.endswith("_token") and isinstance(value, str)
            else copies.of(value, name)
            for name, value in variables.items()
        }
        given |= {"messages": checked, "strftime_now": _clock(now)}
        if tools is not UNSET:
            given["tools"] = copies.of(tools, "tools")
        if add_generation_prompt is not UNSET:
            given["add_generation_prompt"] = add_generation_prompt
        given = {name: value for name, value in given.items() if value is not UNSET}
        functions = tuple(value for value in given.values() if callable(value))
        trying, real = (Allowance(copies.size, self.effort, functions) for _ in range(2))
        text = self._run(given, trying, real)
        if mark:
            text = _cut_at(text, mark)
        return list(_parts(text))

    def _run(self, variables: dict[str, Any], trying: Allowance, real: Allowance) -> MarkedText:
        """Render; where that fails, once more with arguments of tool calls as mappings."""

        def render(messages: Sequence[dict[str, Any]]) -> MarkedText:
            self._sandbox.allowance.forget()
            context = self._template.new_context(variables | {"messages": messages})
            return self._sandbox.join(self._template.root_render_func(context))

        with self._sandbox.running(trying):
            messages = readable(variables["messages"], render, self._names)
        try:
            with self._sandbox.running(real):
                return render(messages)
        except Exception as error:
            parsed = with_parsed_calls(variables["messages"])
            if parsed is not None and not isinstance(error, SecurityError):
                return self._run(variables | {"messages": parsed}, trying, real)
            if isinstance(error, RefusalError):
                raise TemplateError(str(error.message)) from None
            reason = str(error) if isinstance(error, SecurityError) else _described(error)
            raise TemplateError(f"the chat template fails: {reason[:_MAX_REASON]}") from error

    def __reduce__(self) -> tuple[type["ChatTemplate"], tuple[str, float]]:
        return type(self), (self.source, self.effort)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.source[:40]!r}...)"


def _with_mark(messages: Sequence[Mapping[str, Any]], mark: str) -> dict[str, Any]:
    """Put a mark at the end of the last message's text, to find that end again."""
    last = dict(messages[-1]) if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + mark
        return last
    if isinstance(content, list) and is_text_part(content[-1]):
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
        check_date_format(form)
        return (now or dt.datetime.now().astimezone()).strftime(form)

    return strftime_now

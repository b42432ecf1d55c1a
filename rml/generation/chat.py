"""Conversations as prompts: a model's chat template and its tokenizer."""

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from rml.errors import ArgumentError, TemplateError
from rml.generation.chat_arguments import (
    check_clash,
    check_text_only,
    check_variables,
    given_messages,
    given_tools,
)
from rml.generation.prompts import Prompt
from rml.ranges import callers_objects
from rml.tokenizers import Tokenizer
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES
from rml.tokenizers.chat_messages import text_of
from rml.tokenizers.template_source import is_jinja, template_source

if TYPE_CHECKING:
    from rml.tokenizers import ChatTemplate

__all__ = ["ChatPrompts", "Messages", "without_system"]

Message = Mapping[str, Any]
Messages = Sequence[Message]


class ChatPrompts:
    """Renders conversations, as text or as token ids.

    Parameters
    ----------
    tokenizer : Tokenizer
        Of the model; it holds the model's templates.
    template : str, path-like, ChatTemplate or None
        What to use instead: the name of one of the model's templates or of rml's own, a file,
        Jinja source, or a template.
    where : str
        Names the model in messages.

    Attributes
    ----------
    source : str or None
        Jinja source of the template to use instead.

    Raises
    ------
    ArgumentError
        If `template` is none of these.
    TemplateError
        If the file cannot be read, or is no template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: "str | os.PathLike[str] | ChatTemplate | None",
        where: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._where = where
        self.source = None
        if template is None:
            return
        if not isinstance(template, str | os.PathLike):
            from rml.tokenizers import ChatTemplate  # brings jinja2 along, which few loads need

            if isinstance(template, ChatTemplate):
                self.source, self.template = template.source, template
                return
        self.source = template_source(template, tokenizer.chat_templates)

    @cached_property
    def template(self) -> "ChatTemplate | None":
        """The template in use, compiled when first asked for; None if there is none."""
        source = self._tokenizer.chat_template if self.source is None else self.source
        if source is not None and self.source is None and not is_jinja(source):
            raise TemplateError(
                f"{self._where}: the model's chat template {source[:100]!r} is no Jinja source: "
                "every conversation would be the same prompt; give another one to "
                "load(..., chat_template=...) or --chat-template"
            )
        return None if source is None else _compiled(source)

    @cached_property
    def _tool_template(self) -> "ChatTemplate | None":
        """The template for conversations with tools: some models have one of its own for these."""
        own = self._tokenizer.chat_templates.get("tool_use")
        return _compiled(own) if own is not None and self.source is None else self.template

    @callers_objects("the conversation")
    def parts(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[tuple[str, bool]]:
        """Text of a conversation in parts, and whether the template wrote each.

        Warns of variables that the template does not read.

        Raises
        ------
        TemplateError
            If there is no template, it does not read `tools`, or it refuses the messages.
        ArgumentError
            If a message or argument is malformed, or a message holds what is no text.
        """
        return self._renderer(tools, add_generation_prompt, variables)(given_messages(messages))

    def _renderer(
        self, tools: Sequence[Any] | None, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> Callable[[Messages], list[tuple[str, bool]]]:
        """Check what goes beside the messages, and return what renders them."""
        tools = given_tools(tools)
        template = self.template if tools is None else self._tool_template
        if template is None:
            raise TemplateError(
                f"{self._where}: the model has no chat template, so it may not be made for chat; "
                "use generate, or give one to load(..., chat_template=...) or --chat-template: a "
                f"file, Jinja source, or one of {', '.join(sorted(BUILTIN_TEMPLATES))}"
            )
        if tools is not None and "tools" not in template.variables:
            raise TemplateError(
                f"{self._where}: the chat template does not read `tools`, so the model would not "
                "see them; describe them in a message, or give load(..., chat_template=...) a "
                "template that lists tools"
            )
        check_variables(variables, template)
        tokenizer = self._tokenizer
        names = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
        known = {name: text for name, text in names.items() if text is not None}
        # Transformers defines `tools` and `documents` even if they are not given.
        context = {**known, "documents": None, **variables}

        def render(messages: Messages) -> list[tuple[str, bool]]:
            check_text_only(messages)
            return template.render_parts(messages, tools, add_generation_prompt, **context)

        return render

    @callers_objects("the conversation")
    def ids(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Token ids of a conversation; only what the template wrote can be a control token."""
        return self._encoded(self.parts(messages, tools, add_generation_prompt, variables))

    def _encoded(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        return self._tokenizer.encode_parts(parts, self._tokenizer.add_bos)

    @callers_objects("the conversation")
    def prompt(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        limit: int | None,
    ) -> Prompt:
        """Prompt of a conversation that is to be answered, or of which the last message goes on.

        With a `limit`, the oldest turns are left out until at most so many tokens, or one turn, are
        left. Messages of the system before the first turn stay.
        """
        messages = given_messages(messages)
        if not messages:
            raise ArgumentError("messages are empty, but at least one is needed")
        check_clash(variables, "continue_final_message")
        variables = {**variables, "continue_final_message": continue_final_message}
        render = self._renderer(tools, not continue_final_message, variables)

        def ids_of(kept: Messages) -> list[int]:
            return self._encoded(render(kept))

        whole = ids_of(messages)
        if limit is None or len(whole) <= limit:
            return Prompt(whole, is_chat=True)
        head, turns = _turns(messages)

        def ids_from(turn: int) -> list[int]:
            return ids_of([*head, *chain.from_iterable(turns[turn:])])

        # The fewer turns, the fewer tokens: so not every beginning needs to be rendered.
        first = bisect_left(
            range(len(turns) - 1), True, key=lambda turn: len(ids_from(turn)) <= limit
        )
        ids = ids_from(first)
        return Prompt(ids, len(whole) - len(ids), is_chat=True)


@callers_objects("the conversation")
def without_system(messages: Messages) -> list[Message]:
    """Write system messages at the beginning into the first user message, a blank line between.

    Raises
    ------
    ArgumentError
        If there is a system message, but no user message follows, or a content is no text.
    """
    head, turns = _turns(given_messages(messages))
    rest = list(chain.from_iterable(turns))
    if not head:
        return rest
    first = next((i for i, each in enumerate(rest) if each.get("role") == "user"), None)
    if first is None:
        raise ArgumentError("merge_system needs a user message behind the system message")
    texts = [text_of(each.get("content")) for each in (*head, rest[first])]
    if None in texts:
        raise ArgumentError("merge_system needs messages whose content is text")
    rest[first] = {**rest[first], "content": "\n\n".join(map(str, texts))}
    return rest


def _compiled(source: str) -> "ChatTemplate":
    from rml.tokenizers import ChatTemplate  # brings jinja2 along, which only chats need

    return ChatTemplate(source)


def _turns(messages: Messages) -> tuple[list[Message], list[list[Message]]]:
    """System messages at the beginning; then turns, each from one user message to the next."""
    n_head = 0
    while n_head < len(messages) and messages[n_head].get("role") in {"system", "developer"}:
        n_head += 1
    turns: list[list[Message]] = []
    for message in messages[n_head:]:
        if message.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:n_head]), turns

"""Conversations as prompts: a model's chat template and its tokenizer."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from rml.errors import ArgumentError, TemplateError
from rml.generation.prompts import Prompt
from rml.tokenizers import Tokenizer
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES

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
    template : str or None
        Source to use instead, or the name of one of the model's templates or of rml's own.
    where : str
        Names the model in messages.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None, where: str) -> None:
        self._tokenizer = tokenizer
        self._given = template
        self._where = where

    @cached_property
    def template(self) -> "ChatTemplate | None":
        """The template in use, compiled when first asked for; None if there is none."""
        from rml.tokenizers import ChatTemplate  # brings jinja2 along, which only chats need

        source = self._tokenizer.chat_template
        if self._given is not None:
            named = BUILTIN_TEMPLATES | self._tokenizer.chat_templates
            source = named.get(self._given, self._given)
        return None if source is None else ChatTemplate(source)

    def parts(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[tuple[str, bool]]:
        """Text of a conversation in parts, and whether the template wrote each.

        Raises
        ------
        TemplateError
            If there is no template, or it refuses the messages.
        """
        if self.template is None:
            raise TemplateError(
                f"{self._where}: the model has no chat template, so it may not be made for chat; "
                "use generate, or give one to load(..., chat_template=...) or --chat-template: "
                f"a Jinja source, or one of {', '.join(sorted(BUILTIN_TEMPLATES))}"
            )
        tokenizer = self._tokenizer
        names = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
        known = {name: text for name, text in names.items() if text is not None}
        # Transformers defines `tools` and `documents` even if they are not given.
        context = {**known, "documents": None, **variables}
        return self.template.render_parts(messages, tools, add_generation_prompt, **context)

    def ids(
        self,
        messages: Messages,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """Token ids of a conversation; only what the template wrote can be a control token."""
        parts = self.parts(messages, tools, add_generation_prompt, variables)
        return self._tokenizer.encode_parts(parts, self._tokenizer.add_bos)

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
        variables = {**variables, "continue_final_message": continue_final_message}

        def ids_of(kept: Messages) -> list[int]:
            return self.ids(kept, tools, not continue_final_message, variables)

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


def without_system(messages: Messages) -> list[Message]:
    """Write system messages at the beginning into the first user message, a blank line between.

    Raises
    ------
    ArgumentError
        If there is a system message, but no user message follows, or a content is no text.
    """
    head, turns = _turns(messages)
    rest = list(chain.from_iterable(turns))
    if not head:
        return rest
    first = next((i for i, each in enumerate(rest) if each.get("role") == "user"), None)
    if first is None:
        raise ArgumentError("merge_system needs a user message behind the system message")
    texts = [each.get("content") for each in (*head, rest[first])]
    if not all(isinstance(text, str) for text in texts):
        raise ArgumentError("merge_system needs messages whose content is text")
    rest[first] = {**rest[first], "content": "\n\n".join(map(str, texts))}
    return rest


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

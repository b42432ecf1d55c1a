"""What a chat template would do: what it uses that the sandbox refuses, and what nobody sees in it.

A template is a program by a stranger that writes the prompt. It is parsed, and run on a small chat
in the sandbox that all templates run in; the rest is looked for in its source.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError

from rml.errors import RmlError
from rml.files.limits import MAX_TEMPLATE_CHARS
from rml.scan.report import Finding
from rml.tokenizers import ChatTemplate
from rml.tokenizers.template_sandbox import Sandbox

__all__ = ["audit", "hidden_characters"]

# Invisible, or changing how what follows is shown: category Cf and Cc but white space, fillers that
# look like spaces, and tags. Joiners and selectors are parts of emoji.
_SEEN: Final = frozenset("\t\n\r\u200c\u200d")
_FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")

# Chats that any template should render one of.
_CHATS: Final = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ],
)
_LOADERS: Final = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


def audit(name: str, source: str, tokens: Mapping[str, str | None]) -> Iterator[Finding]:
    """Look at a template.

    Parameters
    ----------
    name : str
        What the model calls it.
    source : str
        Jinja source.
    tokens : mapping
        Variables such as ``bos_token`` that the model's own tokenizer would give it.
    """

    def found(what: str, count: int = 1) -> Finding:
        return Finding("template", name, what, count)

    if hidden := hidden_characters(source):
        shown = ", ".join(f"U+{ord(c):04X}" for c in hidden[:8])
        yield found(f"has characters that nobody sees: {shown}", len(hidden))
    if refused := sorted(_refused(source)):
        yield found(f"uses what is refused: {', '.join(refused[:8])}", len(refused))
    try:
        template = ChatTemplate(source)
    except RmlError as error:
        yield found(f"cannot be used: {error}")
        return
    errors = []
    variables: dict[str, Any] = {name: text for name, text in tokens.items() if text is not None}
    for chat in _CHATS:
        try:
            text = template.render(chat, **variables)
        except RmlError as error:
            errors.append(str(error))
        else:
            if "Hi" not in text:
                yield found("renders a small chat without what the user said")
            return
    yield found(f"renders none of {len(_CHATS)} small chats: {errors[0]}")


def hidden_characters(text: str) -> list[str]:
    """Characters of a text that are not seen, each once, in their order."""
    body = text.removeprefix("\ufeff")
    return [c for c in dict.fromkeys(body) if c not in _SEEN and _is_hidden(c)]


def _is_hidden(char: str) -> bool:
    return (
        unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
        or char in _FILLERS
        or 0xE0000 <= ord(char) <= 0xE0FFF
    )


def _refused(source: str) -> set[str]:
    """Names in a template that have no meaning in the sandbox, or one that it refuses."""
    sandbox = Sandbox()
    if len(source) > MAX_TEMPLATE_CHARS:
        return set()
    try:
        tree = sandbox.parse(source)
        return set(_refused_in(tree, sandbox))
    except (TemplateSyntaxError, RecursionError, ValueError):
        return set()  # `ChatTemplate` says what is wrong


def _refused_in(tree: nodes.Template, sandbox: Sandbox) -> Iterator[str]:
    for node in tree.find_all((nodes.Filter, nodes.Test, nodes.Getattr, nodes.Const, *_LOADERS)):
        match node:
            case nodes.Filter(name=name) if name not in sandbox.filters:
                yield f"filter {name!r}"
            case nodes.Test(name=name) if name not in sandbox.tests:
                yield f"test {name!r}"
            case nodes.Getattr(attr=name) if not sandbox.is_safe_attribute("", name, 0):
                yield f"attribute {name!r}"
            # Also as x["__class__"] and x | attr("__class__"): such a text has no other use.
            case nodes.Const(value=str(name)) if re.fullmatch(r"__\w+__", name):
                yield f"attribute {name!r}"
            case nodes.Include() | nodes.Import() | nodes.FromImport() | nodes.Extends():
                yield type(node).__name__.lower()

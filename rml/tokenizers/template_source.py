"""Where a chat template comes from: a name, a file, or Jinja source.

Whatever asks a user for a template (`rml.load`, the command line) asks here what was meant, so that
a misspelt name or path is never taken for a template that writes just these letters.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rml.errors import ArgumentError, RmlError, TemplateError, TokenizerError
from rml.files.limits import MAX_TEMPLATE_CHARS
from rml.ranges import callers_objects, plain_text
from rml.tokenizers.builtin_templates import BUILTIN_TEMPLATES

__all__ = [
    "is_jinja",
    "looks_like_a_reference",
    "named_sources",
    "read_template",
    "template_source",
]

_DELIMITERS: Final = ("{{", "{%", "{#")
_SUFFIXES: Final = (".jinja", ".jinja2", ".j2")


def template_source(given: str | os.PathLike[str], own: Mapping[str, str]) -> str:
    """Jinja source that a user means.

    Parameters
    ----------
    given : str or path-like
        The name of one of the model's templates or of rml's own, Jinja source, or a file.
    own : mapping
        The model's templates by name; they go before rml's own.

    Raises
    ------
    ArgumentError
        It is none of these.
    TemplateError
        The file cannot be read, or is no template.
    """
    named = BUILTIN_TEMPLATES | dict(own)
    if isinstance(given, str):
        given = plain_text(given)
        if given in named:
            return named[given]
        if is_jinja(given):
            return given
    elif not isinstance(given, os.PathLike):
        raise ArgumentError(
            f"chat_template is a name, a file or Jinja source, not {type(given).__name__}"
        )
    file = _file(given)
    if file is None:
        raise ArgumentError(
            f"chat_template {str(given)[:200]!r}: there is no such file, it is no Jinja source, "
            f"and the templates known by name are: {', '.join(sorted(named))}"
        )
    source = read_template(file)
    if not is_jinja(source):
        raise TemplateError(
            f"{file}: not a chat template: there is no Jinja expression ({{{{ ... }}}}) in it"
        )
    return source


def read_template(file: Path, error: type[RmlError] = TemplateError) -> str:
    """Read a template file: UTF-8, a byte-order mark dropped, of a bounded size.

    Parameters
    ----------
    file : Path
        The file.
    error : type
        What to raise if it cannot be read.
    """
    try:
        if not file.is_file():  # a pipe, say, that nobody writes to
            raise error(f"{file}: this is not a regular file")
        with file.open("rb") as stream:
            data = stream.read(MAX_TEMPLATE_CHARS + 1)
        if len(data) > MAX_TEMPLATE_CHARS:
            raise error(f"{file}: a template of more than {MAX_TEMPLATE_CHARS} bytes")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{file}: cannot be read as UTF-8 text: {cause}") from cause


def named_sources(value: Any, where: str) -> dict[str, str]:  # noqa: ANN401 - whatever JSON holds
    """Templates by name, of a ``chat_template`` in a JSON file beside a model.

    Parameters
    ----------
    value : str, list, mapping or None
        One template, which is the default; a list of ``{"name": ..., "template": ...}``; or
        templates by name. Empty ones are none.
    where : str
        Names the model in messages.

    Raises
    ------
    TokenizerError
        It is something else.
    """
    named: dict[Any, Any] = {}
    if isinstance(value, Mapping):
        named = dict(value)
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, Mapping) or not {"name", "template"} <= set(entry):
                raise TokenizerError(
                    f"{where}: a list of chat templates has an entry without name and template: "
                    f"{entry!r:.100}"
                )
            named[entry["name"]] = entry["template"]
    elif value is not None:
        named = {"default": value}
    for name, source in named.items():
        if not isinstance(name, str) or not isinstance(source, str):
            raise TokenizerError(f"{where}: the chat template {name!r} is not a string")
    return {name: source for name, source in named.items() if source}


def is_jinja(text: str) -> bool:
    """Whether anything in a text is for Jinja; otherwise every prompt would be the text itself."""
    return any(delimiter in text for delimiter in _DELIMITERS)


def looks_like_a_reference(text: str) -> bool:
    """Whether a text is the name of a built-in template or of a template file, not a source."""
    return not is_jinja(text) and (
        text in BUILTIN_TEMPLATES or ("\n" not in text and text.endswith(_SUFFIXES))
    )


def _file(given: str | os.PathLike[str]) -> Path | None:
    with callers_objects("chat_template"):
        given = os.fspath(given)
    try:
        file = Path(given)
        return file if file.is_file() else None
    except (OSError, ValueError, TypeError):  # too long, a null character, a path of bytes
        return None

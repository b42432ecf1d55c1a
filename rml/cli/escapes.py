r"""Escape sequences in a text of the command line, as llama.cpp reads them.

These are ``\n``, ``\r``, ``\t``, ``\'``, ``\"``, ``\\`` and ``\xHH``, a byte by two hexadecimal
digits; any other backslash stays. llama.cpp reads them in its prompt, in stop strings and in the
breakers of DRY, not in a system prompt; rml reads them there and in the positional text, which is
another way to give the prompt. A file or stdin is taken as it is.
"""

import re

import click

__all__ = ["given_text"]

_ESCAPE = re.compile(rb"\\(?:([nrt'\"\\])|x([0-9A-Fa-f]{2}))")
_MEANING = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def given_text(text: str, name: str, *, escape: bool) -> str:
    r"""Return a text of the command line, with `escape` as its escape sequences mean it.

    Raises
    ------
    click.UsageError
        If it is not UTF-8, as it was typed or with the bytes of ``\xHH``; `name` says what it is.
    """
    data = text.encode("utf-8", "surrogateescape")  # what is not UTF-8 comes as surrogates
    if escape:
        data = _ESCAPE.sub(_replace, data)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name} is not UTF-8 text: {error}") from error


def _replace(match: re.Match[bytes]) -> bytes:
    letter, digits = match.groups()
    return bytes.fromhex(digits.decode()) if digits else _MEANING.get(letter, letter)

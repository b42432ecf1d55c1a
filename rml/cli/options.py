"""Options of commands: made from the table, and read into what rml's functions take.

An option can also be set by the environment: ``RML_ARG_`` and the long flag in capitals, as
``RML_ARG_CTX_SIZE=4096``; with ``RML_LLAMA_ENV=1`` llama.cpp's ``LLAMA_ARG_*`` are read too. The
command line wins.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from rml.cli.escapes import given_text
from rml.cli.option_table import PASSED_ON, TABLE

__all__ = ["VARIABLES", "load_arguments", "option", "options", "sampling_arguments"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _long_flags(flags: tuple[str, ...]) -> list[str]:
    """List the long flags as the environment spells them."""
    positive = [flag.partition("/")[0] for flag in flags]
    return [flag[2:].replace("-", "_").upper() for flag in positive if flag[1] == "-"]


# What may follow RML_ARG_.
VARIABLES = frozenset(name for flags, _keywords in TABLE.values() for name in _long_flags(flags))


class _OneText(click.types.StringParamType):
    """A text that may be given several times; in the environment it is one, spaces and all."""

    def split_envvar_value(self, rv: str) -> list[str]:
        """Take the variable as it is."""
        return [rv]


def option(name: str, **changes: Any) -> Callable[[_F], _F]:  # noqa: ANN401 - click's keywords
    """Make the decorator for one option of the table, with some of click's keywords changed."""
    flags, keywords = TABLE[name]
    prefixes = ["RML_ARG_"]
    if os.environ.get("RML_LLAMA_ENV") == "1":
        prefixes.append("LLAMA_ARG_")
    variables = [prefix + flag for prefix in prefixes for flag in _long_flags(flags)]
    if keywords.get("multiple"):
        keywords = {"type": _OneText(), **keywords}
    return click.option(*flags, name, **{"envvar": variables, **keywords, **changes})


def options(*names: str) -> Callable[[_F], _F]:
    """Make the decorator that adds options of the table, in this order."""

    def decorate(function: _F) -> _F:
        for name in reversed(names):
            function = option(name)(function)
        return function

    return decorate


def load_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `rml.load` that the options of a command stand for."""
    arguments = {
        "n_threads": values.get("threads"),
        "compute": values.get("compute"),
        "n_ctx": values.get("ctx_size") or None,
        "n_batch": values.get("batch_size"),
        "kv_type": _kv_type(values.get("cache_type_k"), values.get("cache_type_v")),
        "mmap": values.get("mmap"),
        "chat_template": values.get("chat_template"),
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _kv_type(keys: str | None, values: str | None) -> str | None:
    if keys and values and keys != values:
        raise click.UsageError(
            f"-ctk {keys} -ctv {values}: keys and values are cached in the same type"
        )
    return keys or values


def sampling_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `Model.generate` that the options of a command stand for.

    What was not given is left out, so that the model's own settings apply.
    """
    given = {name: values[name] for name in PASSED_ON if values[name] is not None}
    if values["n_predict"] is not None:
        given["max_tokens"] = max(values["n_predict"], -1)
    if values["seed"] is not None and values["seed"] >= 0:
        given["seed"] = values["seed"]
    if values["stop"]:
        given["stop"] = [_read(text, "-r", values) for text in values["stop"]]
    if values["dry_breakers"]:
        given["dry_breakers"] = [
            _read(text, "--dry-sequence-breaker", values)
            for text in values["dry_breakers"]
            if text != "none"
        ]
    if values["logit_bias"]:
        given["logit_bias"] = dict(_bias(text) for text in values["logit_bias"])
    return given


def _read(text: str, flag: str, values: Mapping[str, Any]) -> str:
    return given_text(text, flag, escape=values.get("escape", True))


def _bias(text: str) -> tuple[int, float]:
    """Read ``15043+1``, ``15043-1.5`` or ``15043-inf``."""
    digits = len(text) - len(text.lstrip("0123456789"))
    try:
        return int(text[:digits]), float(text[digits:])
    except ValueError:
        raise click.UsageError(
            f"--logit-bias {text}: expected a token id, + or -, and a number, as 15043-1.5"
        ) from None

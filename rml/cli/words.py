"""Words of a command line that are no options: the model that comes first, and texts.

``rml chat smollm2``, ``rml run ./x.gguf "why"`` and ``rml bench org/repo`` name their model by the
first word, which is what people try first. It is the model where it can be nothing else: a known
name, a model that was pulled, an existing model file or folder. After ``--``, or where ``-m`` gives
the model, every word is text.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from rml.files import hub_names
from rml.files.gguf import MAGIC
from rml.files.known import KNOWN
from rml.files.local import find

__all__ = ["first_word", "looks_like_repository", "names_a_model"]

_ENDINGS = (".gguf", ".safetensors", ".safetensors.index.json")


def first_word(parse: Callable[[list[str]], list[str]], args: Sequence[str]) -> int | None:
    """Find the first argument that is neither an option, nor the value of one, nor after ``--``.

    Parameters
    ----------
    parse : callable
        Parses arguments and returns the words among them; raises `click.UsageError`, as it does
        where the last one is an option that waits for its value.
    args : sequence of str
        The command line.

    Returns
    -------
    int or None
        Its index.
    """
    complete = True
    for i, arg in enumerate(args):
        if arg == "--" and complete:
            return None
        try:
            if parse([*args[: i + 1]]):
                return i
            complete = True
        except click.UsageError:
            complete = False
    return None


def names_a_model(word: str) -> bool:
    """Whether `word` is a model's name or file, so that nobody means it as a text.

    A file's name that ends as those of models do counts, also where there is no such file: that is
    a model misspelt.
    """
    if word in KNOWN:
        return True
    if not word:  # as a path it would be the folder that the program runs in
        return False
    if word.split() != [word]:
        return _is_model_path(word)
    return word.endswith(_ENDINGS) or _is_model_path(word) or find(word) is not None


def looks_like_repository(word: str) -> bool:
    """Whether `word` is written as a repository of the Hub is, which may also be "and/or"."""
    return hub_names.parse(word) is not None


def _is_model_path(word: str) -> bool:
    path = Path(os.path.expanduser(word))  # noqa: PTH111 - leaves "~nobody" as it is
    try:
        if path.is_dir():
            names = {entry.name for entry in path.iterdir()}
            return "config.json" in names or any(name.endswith(_ENDINGS) for name in names)
        if not path.is_file():
            return False
        if path.name.endswith(_ENDINGS):
            return True
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # a text is often no file name: too long, a NUL in it
        return False

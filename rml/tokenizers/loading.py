"""A tokenizer from a file, whatever the format."""

import os
from pathlib import Path

from rml.errors import ArgumentError
from rml.files import open_checkpoint
from rml.tokenizers.tokenizer import Tokenizer

__all__ = ["load_tokenizer"]


def load_tokenizer(path: str | os.PathLike[str], *, pre: str | None = None) -> Tokenizer:
    """Load the tokenizer of a model.

    Parameters
    ----------
    path : str or path-like
        A GGUF file, also one that holds a vocabulary alone.
    pre : str, optional
        Splitting rule to use instead of the file's own ``tokenizer.ggml.pre``.

    Raises
    ------
    TokenizerError
        The vocabulary is missing, broken, or of a kind that rml does not read.
    CheckpointError, UnsupportedModel
        The file cannot be opened.
    """
    try:
        file = Path(path)
    except TypeError:
        raise ArgumentError(f"a path is expected, not {path!r}") from None
    with open_checkpoint(file) as checkpoint:
        return Tokenizer.from_gguf(checkpoint.metadata, path=str(file), pre=pre)

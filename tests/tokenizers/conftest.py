"""Real vocabularies from the case bank."""

import functools
from pathlib import Path

import pytest

from rml.tokenizers import load_tokenizer


@pytest.fixture(scope="session")
def real(cases_dir):
    """Function: name of a vocabulary of the case bank, or "smollm2" or "gemma3" -> tokenizer."""

    @functools.cache
    def load(name, models_dir=None):
        files = {"smollm2": "smollm2.gguf", "gemma3": "gemma3-270m.gguf"}
        if name not in files:
            path = cases_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        else:
            path = (models_dir or Path("absent")) / files[name]
        if not path.is_file():
            pytest.skip(f"no {path.name}")
        return load_tokenizer(path)

    return load

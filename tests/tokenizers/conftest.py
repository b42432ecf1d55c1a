"""Real vocabularies, from the case bank and the folder of models."""

import functools

import pytest

from rml.tokenizers import load_tokenizer


@pytest.fixture(scope="session")
def path_of(cases_dir, request):
    """Function: name of a vocabulary -> path of its GGUF file; skips where it is absent."""

    def find(name):
        if name in ("smollm2", "gemma3"):
            return request.getfixturevalue(f"{name}_path")
        path = cases_dir / "tokenizers" / f"ggml-vocab-{name}.gguf"
        if not path.is_file():
            pytest.skip(f"no {path.name}")
        return path

    return find


@pytest.fixture(scope="session")
def real(path_of):
    """Function: name of a vocabulary -> tokenizer."""
    return functools.cache(lambda name: load_tokenizer(path_of(name)))

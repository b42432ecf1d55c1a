"""The toy Llama of tests/fixtures, in all its files, against float64 and against itself.

The logits.json beside the files was made by tools/make_llm_fixtures.py with a forward pass that
shares no code with rml.
"""

import filecmp
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

import rml
from rml.engine.sessions import open_session
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM

ROOT = Path(__file__).resolve().parent.parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
LLAMA = FIXTURES / "llama"
GOLDEN = json.loads((LLAMA / "logits.json").read_text("utf-8"))
IDS: list[int] = GOLDEN["ids"]
FILES = list(GOLDEN["files"])
QUANTIZED = [file for file, key in GOLDEN["files"].items() if key != "exact"]
COMPUTES = ("f32", "int8x2", "int8")
N_CTX = 32

# Inputs rounded to 8 bits move these logits by up to 0.36, inputs rounded to 8 bits twice
# 254 times less (measured: up to 1.2e-3); the limits are three times that.
WITHIN = {"f32": 1e-4, "int8x2": 4e-3, "int8": 1.0}


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The checkpoint of the toy Llama that the test's `file` names."""
    with open_checkpoint(LLAMA / request.getfixturevalue("file")) as checkpoint:
        yield checkpoint


def in_chunks(decoder: DecoderLM, size: int, kv_type: str = "f32") -> np.ndarray:
    """Logits of all positions, `size` tokens a call: (n, n_vocab) float32."""
    cache = open_session(decoder, N_CTX, kv_type=kv_type)
    rows = [
        cache.forward(IDS[start : start + size], all_logits=True)
        for start in range(0, len(IDS), size)
    ]
    assert cache.position == len(IDS)
    return np.concatenate(rows)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("file", FILES)
def test_logits(opened: Any, file: str, compute: str) -> None:
    logits = in_chunks(DecoderLM(opened, compute=compute), len(IDS))

    want = np.array(GOLDEN["logits"][GOLDEN["files"][file]])
    within = WITHIN[compute if file in QUANTIZED else "f32"]  # plain numbers are never rounded
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, want, rtol=0, atol=within)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("file", FILES)
def test_chunks_and_threads_change_no_bit(opened: Any, file: str, compute: str) -> None:
    whole = in_chunks(DecoderLM(opened, compute=compute, n_threads=1), len(IDS))

    for n_threads in (1, 2):
        decoder = DecoderLM(opened, compute=compute, n_threads=n_threads)
        for size in range(1, len(IDS) + 1):
            np.testing.assert_array_equal(in_chunks(decoder, size), whole)


@pytest.mark.parametrize("file", ["model.gguf", *QUANTIZED[:1]])
def test_chunks_change_no_bit_with_a_half_precision_cache(opened: Any, file: str) -> None:
    decoder = DecoderLM(opened)
    whole = in_chunks(decoder, len(IDS), "f16")

    for size in range(1, len(IDS)):
        np.testing.assert_array_equal(in_chunks(decoder, size, "f16"), whole)


@pytest.mark.parametrize("file", ["model.gguf", *QUANTIZED[:1]])
def test_last_row_is_the_last_of_all(opened: Any, file: str) -> None:
    decoder = DecoderLM(opened)
    last = open_session(decoder, N_CTX, kv_type="f32").forward(IDS)

    np.testing.assert_array_equal(last, in_chunks(decoder, len(IDS))[-1])


@pytest.mark.parametrize("text", ["The hen and the cat, 1234!", "naïve 東京 👋🏽\n\n\tx = 10", ""])
def test_tokenizer_agrees_with_the_folder(text: str) -> None:
    """rml reads the GGUF's vocabulary, another library the folder's tokenizer.json."""
    want = Tokenizer.from_file(str(LLAMA / "hf" / "tokenizer.json")).encode(text).ids
    tokenizer = rml.load_tokenizer(LLAMA / "model.gguf")

    assert tokenizer.encode(text) == want
    assert tokenizer.decode(want) == text


def test_tools_make_the_same_bytes_again(tmp_path: Path) -> None:
    tool = ROOT / "tools" / "make_llm_fixtures.py"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)  # the tool imports those beside it
    subprocess.run([sys.executable, str(tool), str(tmp_path)], check=True, env=environment)

    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    kept = sorted(path.relative_to(FIXTURES) for path in FIXTURES.rglob("*") if path.is_file())
    assert made == kept
    different = [path for path in made if not filecmp.cmp(tmp_path / path, FIXTURES / path, False)]
    assert not different

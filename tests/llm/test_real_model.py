"""Real checkpoints against float64: tests/goldens/*.json, made by tools of this project.

Limits, and where they come from:

- `compute="f32"`: the eight best logits of every prompt position within 5e-4 of float64, and the
  same greedy ids wherever the best led the second by 1e-3 (twice that).
- `compute="int8x2"`: mean Kullback-Leibler divergence from float64 below 1e-6. A divergence of
  1e-6 is a standard deviation of 1.4e-3 in a logit, of 2e-3 between two; five of those make the
  1e-2 of its greedy ids.
- `compute="int8"`: mean divergence below 8e-3.

In reference mode (no compiled kernels, about a second a token) only the shortest prompt runs, and
only `SHORT_RUN` steps of its continuation; the ids of those tests say "short-run".
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rml
from rml.engine.sessions import open_session
from rml.files import open_checkpoint
from rml.llm.decoder import DecoderLM

GOLDENS = {
    path.stem: json.loads(path.read_text("utf-8"))
    for path in sorted((Path(__file__).resolve().parent.parent / "goldens").glob("*.json"))
}
PROMPTS = {
    (model, prompt["name"]): prompt
    for model, golden in GOLDENS.items()
    for prompt in golden["prompts"]
}
REFERENCE_MODE = rml.info()["backend"] == "python"
SHORT_RUN = 4

TOP = 8
TOP_LOGITS_WITHIN = 5e-4
SAFE_MARGIN = {"f32": 1e-3, "int8x2": 1e-2}
MEAN_KL_BELOW = {"int8x2": 1e-6, "int8": 8e-3}

CONTINUED = list(PROMPTS)
SCORED = [key for key, prompt in PROMPTS.items() if "positions" in prompt]
if REFERENCE_MODE:
    SCORED = CONTINUED = [key for key in PROMPTS if key[1] == "capital"]
RUN = "short-run" if REFERENCE_MODE else "all"


def ids_of(key: tuple[str, str] | str) -> str:
    return f"{'-'.join(key) if isinstance(key, tuple) else key}-{RUN}"


@pytest.fixture(scope="module")
def path_of(models_dir: Path) -> Callable[[str], Path]:
    """Where a golden's model is; skips by name where it is not."""

    def find(model: str) -> Path:
        for path in (models_dir / f"{model}.gguf", models_dir / model):
            if path.exists():
                return path
        pytest.skip(f"no {model}.gguf and no folder {model} in RML_MODELS_DIR")

    return find


@pytest.fixture(scope="module")
def decoder_of(path_of: Callable[[str], Path]) -> Iterator[Callable[[str, str], DecoderLM]]:
    """The decoder of a model and a `compute`, built once."""
    decoders: dict[tuple[str, str], DecoderLM] = {}
    with ExitStack() as stack:

        def get(model: str, compute: str) -> DecoderLM:
            if (model, compute) not in decoders:
                checkpoint = stack.enter_context(open_checkpoint(path_of(model)))
                decoders[model, compute] = DecoderLM(checkpoint, compute=compute)
            return decoders[model, compute]

        yield get
        decoders.clear()


def prompt_logits(decoder: DecoderLM, prompt: dict[str, Any]) -> np.ndarray:
    """Logits of each position that the golden keeps: (n, n_vocab) float32."""
    ids, positions = prompt["ids"], prompt["positions"]
    cache = open_session(decoder, len(ids), kv_type="f32")
    logits = np.empty((len(positions), decoder.config.n_vocab), np.float32)
    done = 0
    for row, position in enumerate(positions):  # positions without a golden cost no head
        logits[row] = cache.forward(ids[done : position + 1])
        done = position + 1
    return logits


def kl_from_golden(prompt: dict[str, Any], logits: np.ndarray) -> list[float]:
    """KL(float64 || logits) at each kept position, over the 64 top ids and one rest bucket."""
    divergences = []
    golden = zip(prompt["top_ids"], prompt["top_logits"], prompt["logsumexp"], strict=True)
    for row, (ids, top, logsumexp) in zip(logits.astype(np.float64), golden, strict=True):
        log_p = np.array(top) - logsumexp
        log_q = row - row.max()
        log_q -= np.log(np.exp(log_q).sum())
        rest_p = max(1.0 - np.exp(log_p).sum(), 0.0)
        rest_q = np.exp(np.delete(log_q, ids)).sum()
        divergence = (np.exp(log_p) * (log_p - log_q[ids])).sum()
        if rest_p > 0.0:
            divergence += rest_p * np.log(rest_p / rest_q)
        divergences.append(float(divergence))
    return divergences


@pytest.mark.parametrize("model", GOLDENS)
def test_golden_is_of_this_file(path_of: Callable[[str], Path], model: str) -> None:
    path = path_of(model)
    for name, expected in GOLDENS[model]["sha256"].items():
        with (path / name if path.is_dir() else path).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected


@pytest.mark.parametrize("model", GOLDENS)
def test_ids_of_the_prompts(path_of: Callable[[str], Path], model: str) -> None:
    """The golden's ids come from another tokenizer library."""
    tokenizer = rml.load_tokenizer(path_of(model))

    for prompt in GOLDENS[model]["prompts"]:
        assert tokenizer.encode(prompt["text"], parse_special=True) == prompt["ids"]


@pytest.mark.parametrize("key", SCORED, ids=ids_of)
def test_top_logits(decoder_of: Callable[[str, str], DecoderLM], key: tuple[str, str]) -> None:
    prompt = PROMPTS[key]
    logits = prompt_logits(decoder_of(key[0], "f32"), prompt)

    top_ids = np.array(prompt["top_ids"])[:, :TOP]
    want = np.array(prompt["top_logits"])[:, :TOP]
    got = np.take_along_axis(logits, top_ids, axis=1)
    np.testing.assert_allclose(got, want, rtol=0, atol=TOP_LOGITS_WITHIN)


@pytest.mark.parametrize("compute", SAFE_MARGIN)
@pytest.mark.parametrize("key", CONTINUED, ids=ids_of)
def test_greedy_continuation(
    decoder_of: Callable[[str, str], DecoderLM], key: tuple[str, str], compute: str
) -> None:
    """Each step chooses the golden's id, after the golden's ids before it."""
    prompt = PROMPTS[key]
    want, margins = prompt["greedy"]["ids"], prompt["greedy"]["margins"]
    if REFERENCE_MODE:
        want, margins = want[:SHORT_RUN], margins[:SHORT_RUN]
    decoder = decoder_of(key[0], compute)
    cache = open_session(decoder, len(prompt["ids"]) + len(want), kv_type="f32")

    got = [int(np.argmax(cache.forward(prompt["ids"])))]
    got += [int(np.argmax(cache.forward([token]))) for token in want[:-1]]

    safe = [margin > SAFE_MARGIN[compute] for margin in margins]
    assert any(safe)
    wrong = [
        (step, got[step], want[step], margins[step])
        for step in range(len(want))
        if safe[step] and got[step] != want[step]
    ]
    assert not wrong, "(step, got, want, margin)"


@pytest.mark.parametrize("compute", MEAN_KL_BELOW, ids=ids_of)
@pytest.mark.parametrize("model", GOLDENS)
def test_mean_kl(decoder_of: Callable[[str, str], DecoderLM], model: str, compute: str) -> None:
    decoder = decoder_of(model, compute)
    divergences = [
        divergence
        for key in SCORED
        if key[0] == model
        for divergence in kl_from_golden(PROMPTS[key], prompt_logits(decoder, PROMPTS[key]))
    ]

    assert np.mean(divergences) < MEAN_KL_BELOW[compute]

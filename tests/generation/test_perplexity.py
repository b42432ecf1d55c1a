"""Perplexity, against the float64 model and llama.cpp's rule of what counts."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError
from rml.generation.perplexity import perplexity

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
IDS = np.random.default_rng(3).integers(3, 288, 70).tolist()


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from reference_model import ReferenceModel
    finally:
        sys.path.pop(0)
    return ReferenceModel(LLAMA)


@pytest.fixture(scope="module")
def model():
    with rml.load(LLAMA, n_threads=1) as model:
        yield model


def exact_surprises(reference, ids, scored):
    """Minus the float64 logprobs of the tokens at the places `scored`."""
    logits = reference.logits(ids)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [-logits[i - 1, ids[i]] for i in scored]


@pytest.mark.parametrize("bos_id", [None, 1])
@pytest.mark.parametrize(("chunk", "n_chunks"), [(32, 2), (33, 2), (70, 1), (100, 1), (7, 10)])
def test_perplexity_is_that_of_the_float64_model(model, reference, chunk, n_chunks, bos_id):
    size = min(chunk, 70)
    surprises = []
    for start in range(0, n_chunks * size, size):
        part = IDS[start : start + size]
        if bos_id is not None:
            part[0] = bos_id
        # llama.cpp: the logits from n / 2 on, each with the token after it.
        surprises += exact_surprises(reference, part, range(size // 2 + 1, size))
    seen = []

    with model.session() as session:
        found = perplexity(
            session, IDS, chunk=chunk, bos_id=bos_id, progress=lambda *args: seen.append(args)
        )

    exact = math.exp(np.mean(surprises))
    assert found.value == pytest.approx(exact, rel=1e-3)
    assert found.error == pytest.approx(
        exact * np.std(surprises) / math.sqrt(len(surprises) - 1), rel=1e-2
    )
    assert (found.n_scored, found.n_chunks) == (len(surprises), n_chunks)
    assert [(done, total) for done, total, _ in seen] == [
        (i + 1, n_chunks) for i in range(n_chunks)
    ]
    assert seen[-1][2] == found


def test_in_float32_it_is_closer_still(reference):
    exact = math.exp(np.mean(exact_surprises(reference, IDS[:64], range(33, 64))))
    options = {"compute": "f32", "kv_type": "f32"}
    with rml.load(LLAMA, n_threads=1, **options) as model, model.session() as session:
        assert perplexity(session, IDS[:64], chunk=64).value == pytest.approx(exact, rel=1e-6)


def test_rows_of_logits_at_a_time_do_not_matter(model, monkeypatch):
    with model.session() as session:
        whole = perplexity(session, IDS, chunk=40)
        monkeypatch.setattr("rml.sampling.logprobs._VALUES", 3 * 288)
        assert perplexity(session, IDS, chunk=40) == whole


def test_some_chunks(model):
    with model.session() as session:
        first = perplexity(session, IDS, chunk=20, max_chunks=2)
        assert first == perplexity(session, IDS[:40], chunk=20)
        assert first.n_chunks == 2


def test_the_text_is_not_changed(model):
    ids = list(IDS)
    with model.session() as session:
        perplexity(session, ids, chunk=20, bos_id=1)
    assert ids == IDS


@pytest.mark.parametrize(
    ("n", "chunk", "message"), [(2, 20, "at least 3"), (70, 2, "3 to 128"), (70, 129, "3 to 128")]
)
def test_refused(model, n, chunk, message):
    with model.session() as session, pytest.raises(ArgumentError, match=message):
        perplexity(session, IDS[:n], chunk=chunk)

"""Texts as vectors, against the float64 model."""

import sys
from pathlib import Path

import numpy as np
import pytest

import rml
from rml import ArgumentError, ContextOverflow
from rml.generation.embedding import _Embedding

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "tests" / "fixtures" / "llama" / "model.gguf"
TEXT = "Hello, embedded world"


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
    with rml.load(LLAMA, n_threads=1, kv_type="f32", compute="f32") as model:
        yield model


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_embeddings_are_those_of_the_float64_model(model, reference, pooling, normalize):
    ids = model.tokenizer.encode(TEXT)
    hidden = reference.hidden(ids)
    exact = hidden.mean(axis=0) if pooling == "mean" else hidden[-1]
    if normalize:
        exact = exact / np.sqrt((exact**2).sum())

    vector = model.embed(TEXT, pooling=pooling, normalize=normalize)

    assert (vector.dtype, vector.shape) == (np.float32, (model.config.d_model,))
    assert np.abs(vector - exact).max() <= 1e-5 * np.abs(exact).max()


def test_normalized_vectors_have_length_one(model):
    assert np.linalg.norm(model.embed(TEXT)) == pytest.approx(1, abs=1e-6)


def test_lists_of_texts_and_of_ids(model):
    texts = [TEXT, "Something else", "x"]
    vectors = model.embed(texts)

    assert vectors.shape == (3, model.config.d_model)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_array_equal(model.embed(text), vector)
    ids = [model.tokenizer.encode(text) for text in texts]
    np.testing.assert_array_equal(model.embed(ids), vectors)
    np.testing.assert_array_equal(model.embed(ids[0]), vectors[0])
    assert model.embed([]).shape == (0, model.config.d_model)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_the_parts_of_a_text_and_its_company_do_not_matter(model, pooling):
    prompts = [list(range(3, 60)), [7], *([i] * (i % 30 + 1) for i in range(3, 60))]
    alone = [model.embed(ids, pooling=pooling) for ids in prompts]
    for n_batch in (1, 7, 16, 512):
        with rml.load(LLAMA, n_batch=n_batch, kv_type="f32", compute="f32") as other:
            np.testing.assert_array_equal(other.embed(prompts, pooling=pooling), alone)


def test_texts_that_do_not_fit_together_take_turns():
    bytes_per_token = 256
    with rml.load(LLAMA, kv_type="f32", kv_memory=64 * bytes_per_token) as model:
        assert model.n_ctx == 64
        prompts = [[i] * 40 for i in range(5)]
        vectors = model.embed(prompts)
        np.testing.assert_array_equal(vectors[3], model.embed(prompts[3]))
        with pytest.raises(ContextOverflow):
            model.embed([[1] * 65])
        assert model._sessions.engine.store("f32").pools[0].n_used == 0


def test_refused(model):
    with pytest.raises(ArgumentError, match="pooling is 'max'"):
        model.embed(TEXT, pooling="max")
    with pytest.raises(ArgumentError, match="normalize"):
        model.embed(TEXT, normalize=1)
    with pytest.raises(ContextOverflow):
        model.embed([3] * 129)
    for bad in ("", [""], [[]], [[-1]], 5, None):
        with pytest.raises(ArgumentError):
            model.embed(bad)
    with pytest.raises(ArgumentError, match="outside the vocabulary"):
        model.embed([288])


def test_an_end_token_is_added_where_the_model_wants_one(model, monkeypatch):
    plain = model.tokenizer.encode(TEXT)
    monkeypatch.setattr(
        model.tokenizer, "encode", lambda text, parse_special: [*plain, model.tokenizer.eos_id]
    )
    monkeypatch.setattr(model.tokenizer, "add_eos", True)

    np.testing.assert_array_equal(model.embed(TEXT), model.embed([*plain, model.tokenizer.eos_id]))
    assert model.generate(TEXT, max_tokens=0).prompt_token_ids == plain


def test_a_step_that_is_computed_again_changes_no_vector(model, monkeypatch):
    """What a thread that is interrupted has computed for others comes to them twice."""
    alone = model.embed([[3] * 40, [5] * 7])
    deliver = _Embedding.deliver

    def twice(self, *args):
        deliver(self, *args)
        deliver(self, *args)

    monkeypatch.setattr(_Embedding, "deliver", twice)
    with rml.load(LLAMA, n_batch=16, n_threads=1, kv_type="f32", compute="f32") as other:
        np.testing.assert_array_equal(other.embed([[3] * 40, [5] * 7]), alone)

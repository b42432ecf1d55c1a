"""Every switch of a family matters: flipped, the toy model's logits are wrong."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rml
from rml.engine.sessions import open_session
from rml.errors import RmlError
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig
from rml.llm.decoder import DecoderLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
WITHIN = 1e-4  # as in test_families


def logits_of(family, **changes):
    """Logits of the golden's ids with some switches changed, and the golden's."""
    golden = json.loads((FIXTURES / family / "logits.json").read_text("utf-8"))
    ids = golden["ids"]
    with open_checkpoint(FIXTURES / family / "hf") as checkpoint:
        config = replace(ModelConfig.from_checkpoint(checkpoint), **changes)
        decoder = DecoderLM(checkpoint, config=config, compute="f32", n_threads=1)
        cache = open_session(decoder, len(ids), kv_type="f32")
        got = cache.forward(ids, all_logits=True)
    return got, np.array(golden["logits"]["exact"])


FLIPPED = [
    ("llama", {"rope_theta": 1000.0}),
    ("llama", {"norm_eps": 1e-2}),
    ("llama", {"attention_scale": 1.0}),
    ("llama", {"activation": "gelu_tanh"}),
    ("llama", {"rope_pairing": "interleaved"}),
    ("mistral", {"windows": ()}),
    ("gemma3_text", {"activation": "silu"}),
    ("gemma3_text", {"embedding_scale": 1.0}),
    ("gemma3_text", {"rope_local_theta": None}),
    ("gemma3_text", {"attention_scale": 0.5}),
    ("gemma3_text", {"windows": ()}),
    ("smollm3", {"rope_layers": ()}),
    ("qwen3_moe", {"normalize_expert_weights": False}),
    ("olmoe", {"normalize_expert_weights": True}),
    ("mixtral", {"normalize_expert_weights": False}),
    ("mixtral", {"n_experts_used": 1}),
]


@pytest.mark.parametrize(
    ("family", "change"), FLIPPED, ids=[f"{family}-{next(iter(c))}" for family, c in FLIPPED]
)
def test_a_flipped_switch_is_seen(family, change):
    got, golden = logits_of(family)
    assert np.abs(got - golden).max() < WITHIN

    wrong, _ = logits_of(family, **change)
    assert np.abs(wrong - golden).max() > 10 * WITHIN


@pytest.mark.parametrize("off_by", [-1, 1])
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_a_window_begins_exactly_where_it_should(family, off_by):
    """With a window of w, the position w - 1 still sees position 0, and position w does not."""
    with open_checkpoint(FIXTURES / family / "hf") as checkpoint:
        windows = ModelConfig.from_checkpoint(checkpoint).windows
    size = next(window for window in windows if window is not None)
    moved = tuple(None if window is None else window + off_by for window in windows)

    got, golden = logits_of(family, windows=moved)

    error = np.abs(got - golden).max(axis=1)
    first = size + min(off_by, 0)  # the first position that sees one key too many or too few
    assert (error[:first] < WITHIN).all()
    assert error[first] > 10 * WITHIN


def test_norm_weights_of_both_formats_are_equal():
    """Gemma's norms are stored as w in one format and as 1 + w in the other."""
    values = []
    for part in ("hf", "model.gguf"):
        with open_checkpoint(FIXTURES / "gemma3_text" / part) as checkpoint:
            decoder = DecoderLM(checkpoint)
            layer = decoder._recipe.layers[0]
            values.append((layer.attn_norm, layer.q_norm, layer.post_ffn_norm))
    for a, b in zip(*values, strict=True):
        assert np.array_equal(a, b)
        assert a.mean() > 0.5


def test_heads_are_tied_only_where_the_file_says_so():
    tied = {}
    for family in ("llama", "gemma3_text"):
        with open_checkpoint(FIXTURES / family / "hf") as checkpoint:
            decoder = DecoderLM(checkpoint)
            tied[family] = decoder._recipe.head is decoder._recipe.embedding
    assert tied == {"llama": False, "gemma3_text": True}


def test_case_bank_files_that_are_no_models(cases_dir):
    """Files whose container is sound, but which no loader of models may accept."""
    cases = json.loads((cases_dir / "gguf" / "index.json").read_text("utf-8"))["cases"]
    tried = 0
    for case in cases:
        if case.get("level") == "model" and case["expect"] == "reject":
            with pytest.raises(RmlError):
                rml.load(cases_dir / "gguf" / case["file"])
            tried += 1
    assert tried >= 4

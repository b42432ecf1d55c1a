"""Toy mixtures of experts: what their switches do, quantized experts, what a plan says of them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from rml.engine.sessions import open_session
from rml.errors import UnsupportedModel
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig
from rml.llm.decoder import DecoderLM

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FAMILIES = ("mixtral", "qwen3_moe", "olmoe")
FORMATS = ("hf", "model.gguf")
N_CTX = 32
WITHIN = 1e-4


def golden_of(family: str) -> tuple[list[int], np.ndarray]:
    golden = json.loads((FIXTURES / family / "logits.json").read_text("utf-8"))
    return golden["ids"], np.array(golden["logits"]["exact"])


def logits_of(decoder: DecoderLM, ids: list[int], chunk: int = N_CTX) -> np.ndarray:
    cache = open_session(decoder, N_CTX, kv_type="f32")
    rows = [
        cache.forward(ids[start : start + chunk], all_logits=True)
        for start in range(0, len(ids), chunk)
    ]
    return np.concatenate(rows)


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize(
    ("family", "normalized"), [("mixtral", True), ("qwen3_moe", True), ("olmoe", False)]
)
def test_weights_are_normalized_where_the_family_does_so(
    family: str, normalized: bool, file: str
) -> None:
    ids, want = golden_of(family)
    with open_checkpoint(FIXTURES / family / file) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        assert config.normalize_expert_weights is normalized
        flipped = dataclasses.replace(config, normalize_expert_weights=not normalized)

        right = logits_of(DecoderLM(checkpoint, config=config, compute="f32"), ids)
        wrong = logits_of(DecoderLM(checkpoint, config=flipped, compute="f32"), ids)

    assert np.abs(right - want).max() <= WITHIN
    assert np.abs(wrong - want).max() > 100 * WITHIN


@pytest.mark.parametrize("family", FAMILIES)
def test_another_number_of_experts_is_another_model(family: str) -> None:
    ids, want = golden_of(family)
    with open_checkpoint(FIXTURES / family / "hf") as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        fewer = dataclasses.replace(config, n_experts_used=config.n_experts_used - 1)
        wrong = logits_of(DecoderLM(checkpoint, config=fewer, compute="f32"), ids)

    assert np.abs(wrong - want).max() > 100 * WITHIN


def quantize(source: Path, out: Path, formats: dict[str, str]) -> None:
    """Copy a GGUF file, with matrices whose names end so in other formats."""
    reader = GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        data: Any = tensor.data
        kind = tensor.tensor_type
        for ending, wanted in formats.items():
            if tensor.name.endswith(ending):
                kind = GGMLQuantizationType[wanted]
                data = quants.quantize(np.asarray(data, np.float32), kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MIXED = {"ffn_gate_exps.weight": "Q8_0", "ffn_up_exps.weight": "Q5_1", "attn_v.weight": "Q8_0"}


@pytest.mark.parametrize("compute", ["f32", "int8x2", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_quantized_experts(tmp_path: Path, family: str, compute: str) -> None:
    """Bits do not depend on chunks and threads; inputs in 8 bits twice are nearly exact."""
    ids, _ = golden_of(family)
    quantize(FIXTURES / family / "model.gguf", tmp_path / "model.gguf", MIXED)
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        types = {tensor.type for tensor in checkpoint.tensors.values()}
        whole = logits_of(DecoderLM(checkpoint, compute=compute, n_threads=1), ids)
        exact = logits_of(DecoderLM(checkpoint, compute="f32"), ids)
        for n_threads in (1, 2):
            decoder = DecoderLM(checkpoint, compute=compute, n_threads=n_threads)
            for chunk in (1, 3, 4, 7):
                np.testing.assert_array_equal(logits_of(decoder, ids, chunk), whole)

    assert {"Q8_0", "Q5_1", "F16"} <= types
    # The limits are about three times what was measured.
    within = {"f32": 0.0, "int8x2": 3e-3, "int8": 0.7}[compute]
    assert np.abs(whole - exact).max() <= within


def test_plan_counts_the_chosen_experts() -> None:
    with open_checkpoint(FIXTURES / "mixtral" / "model.gguf") as checkpoint:
        decoder = DecoderLM(checkpoint)
        cache = open_session(decoder, N_CTX)
        of_an_expert = 3 * 16 * 32  # four experts, two of them for a token
        for n_tokens, n_read in ((1, 2), (2, 4), (5, 4)):
            plan = cache.plan(n_tokens)
            (mixture, _) = (op for op in plan.operations if op.kernel == "mix_experts")
            assert mixture.weight_bytes == n_read * of_an_expert * 2
            assert mixture.products == n_tokens * 2 * of_an_expert
            assert "4 x F16[16, 32], 4 x F16[16, 32], 4 x F16[32, 16]" in mixture.describe()


def test_experts_with_norms_after_a_branch_are_refused() -> None:
    with open_checkpoint(FIXTURES / "mixtral" / "model.gguf") as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        sandwich = dataclasses.replace(config, sandwich_norms=True)
        with pytest.raises(UnsupportedModel, match="experts together with norms after a branch"):
            DecoderLM(checkpoint, config=sandwich)

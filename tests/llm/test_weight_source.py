"""Weights under canonical names: both formats hold the same, and every mismatch is named."""

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rml._kernels.block_formats import FORMATS
from rml.errors import ArgumentError, CheckpointError, UnsupportedModel
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig
from rml.llm.weight_names import expected_shapes
from rml.llm.weight_source import WeightSource

FIXTURES = Path(__file__).parents[1] / "fixtures"
FAMILIES = (
    "gemma3_text", "llama", "mistral", "mixtral", "olmoe", "qwen2", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip
LLAMA = FIXTURES / "llama" / "model.gguf"
LLAMA_HF = FIXTURES / "llama" / "hf"


def edited(checkpoint, *, drop=(), rename=(), change=()):
    """A checkpoint as it would be with other tensors."""
    tensors = {k: v for k, v in checkpoint.tensors.items() if k not in drop}
    for old, new in dict(rename).items():
        tensors[new] = dataclasses.replace(tensors.pop(old), name=new)
    for name, fields in dict(change).items():
        tensors[name] = dataclasses.replace(tensors[name], **fields)
    return SimpleNamespace(
        path=checkpoint.path,
        format=checkpoint.format,
        metadata=checkpoint.metadata,
        config=checkpoint.config,
        tensors=tensors,
    )


def source_of(path, **edits):
    """Weights of a file whose configuration is read before its tensors are edited."""
    checkpoint = open_checkpoint(path)
    config = ModelConfig.from_checkpoint(checkpoint)
    return WeightSource(edited(checkpoint, **edits), config)


def refusal(error, path, **edits):
    with pytest.raises(error) as caught:
        source_of(path, **edits)
    return str(caught.value)


def values(matrix):
    """What an f32, f16 or bf16 matrix holds."""
    bits = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[matrix.type]
    stored = matrix.data.view(bits).reshape(matrix.rows, matrix.cols)
    if matrix.type == "BF16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def everything(source, config):
    """All tensors of a model as arrays, by canonical name."""
    out = {}
    for name, shape in expected_shapes(config).items():
        if len(shape) == 1:
            out[name] = source.vector(name, *shape)
        elif len(shape) == 2:
            out[name] = values(source.matrix(name, *shape))
        else:
            out[name] = np.stack([values(matrix) for matrix in source.experts(name, *shape)])
    return out


def halves(rows, head_dim):
    """Undo the order of q and k rows that llama.cpp's converter writes: pairs side by side."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_files_of_a_toy_model_hold_the_same(family):
    with (
        open_checkpoint(FIXTURES / family / "hf") as hf_file,
        open_checkpoint(FIXTURES / family / "model.gguf") as gguf_file,
    ):
        config = ModelConfig.from_checkpoint(hf_file)
        interleaved = ModelConfig.from_checkpoint(gguf_file).rope_pairing == "interleaved"
        hf = everything(WeightSource(hf_file, config), config)
        gguf = everything(WeightSource(gguf_file, config), config)

    assert hf.keys() == gguf.keys()
    for name, expected in hf.items():
        found = gguf[name]
        if interleaved and re.search(r"attn_[qk]\.weight", name):
            found = halves(found, config.head_dim)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(
    "name",
    [
        "gemma3-linear", "llama-untied", "mistral-nemo-headdim", "qwen2-bias-tied", "qwen3moe",
        "smollm3-nope",
    ],
)  # fmt: skip
def test_both_files_of_a_case_hold_the_same(cases_dir, name):
    folder = cases_dir / "tiny" / name
    with (
        open_checkpoint(folder / "hf") as hf_file,
        open_checkpoint(folder / "model.gguf") as gguf_file,
    ):
        config = ModelConfig.from_checkpoint(hf_file)
        hf = everything(WeightSource(hf_file, config), config)
        gguf = everything(WeightSource(gguf_file, config), config)
        interleaved = ModelConfig.from_checkpoint(gguf_file).rope_pairing == "interleaved"

    for name, expected in hf.items():
        found = gguf[name]
        if interleaved and re.search(r"attn_[qk]\.weight", name):
            found = halves(found, config.head_dim)
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_gemma_norms_are_one_plus_the_stored_weight_and_nothing_else_is():
    with open_checkpoint(FIXTURES / "gemma3_text" / "hf") as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        source = WeightSource(checkpoint, config)
        layer = "model.layers.3."
        for name, stored, size in (
            ("blk.3.attn_norm.weight", f"{layer}input_layernorm.weight", 32),
            ("blk.3.attn_q_norm.weight", f"{layer}self_attn.q_norm.weight", 16),
            ("blk.3.post_attention_norm.weight", f"{layer}post_attention_layernorm.weight", 32),
            ("blk.3.ffn_norm.weight", f"{layer}pre_feedforward_layernorm.weight", 32),
            ("blk.3.post_ffw_norm.weight", f"{layer}post_feedforward_layernorm.weight", 32),
            ("output_norm.weight", "model.norm.weight", 32),
        ):
            weight = checkpoint.tensors[stored].numpy()
            np.testing.assert_array_equal(source.vector(name, size), np.float32(1) + weight)

    with open_checkpoint(LLAMA_HF) as checkpoint:
        source = WeightSource(checkpoint, ModelConfig.from_checkpoint(checkpoint))
        weight = checkpoint.tensors["model.norm.weight"].numpy()
        np.testing.assert_array_equal(source.vector("output_norm.weight", 32), weight)


@pytest.mark.parametrize("path", [LLAMA, LLAMA_HF])
def test_matrices_are_views_and_vectors_are_copies(path):
    with open_checkpoint(path) as checkpoint:
        source = WeightSource(checkpoint, ModelConfig.from_checkpoint(checkpoint))
        name = "token_embd.weight" if path == LLAMA else "model.embed_tokens.weight"
        matrix = source.matrix("token_embd.weight", 288, 32)
        vector = source.vector("output_norm.weight", 32)

        assert np.shares_memory(matrix.data, checkpoint.tensors[name].data)
        assert not matrix.data.flags.writeable
        assert (matrix.data.dtype, matrix.data.ndim) == (np.uint8, 1)
        assert (matrix.rows, matrix.cols) == (288, 32)
        assert vector.dtype == np.float32
        assert not vector.flags.writeable
        assert source.nbytes == sum(t.n_bytes for t in checkpoint.tensors.values())


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_matrices_keep_their_stored_format(name):
    source = source_of(FIXTURES / "llama" / f"model-{name}.gguf")
    matrix = source.matrix("blk.0.ffn_gate.weight", 64, 32)

    assert matrix.type == name.upper()
    assert matrix.data.size == 64 * FORMATS[matrix.type].n_bytes


def test_experts_are_slices_of_one_tensor():
    path = FIXTURES / "mixtral" / "model.gguf"
    with open_checkpoint(path) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        source = WeightSource(checkpoint, config)
        stacked = checkpoint.tensors["blk.1.ffn_down_exps.weight"]
        size = config.d_expert_ffn
        experts = source.experts("blk.1.ffn_down_exps.weight", 4, 32, size)

        assert [(e.type, e.rows, e.cols) for e in experts] == [(stacked.type, 32, size)] * 4
        assert all(np.shares_memory(e.data, stacked.data) for e in experts)
        np.testing.assert_array_equal(np.concatenate([e.data for e in experts]), stacked.data)


def test_experts_of_old_gguf_files_lie_one_by_one():
    with open_checkpoint(FIXTURES / "mixtral" / "model.gguf") as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        new = WeightSource(checkpoint, config)
        tensors = {}
        for name, tensor in checkpoint.tensors.items():
            if "_exps" not in name:
                tensors[name] = tensor
                continue
            n_bytes = tensor.n_bytes // 4
            for e in range(4):
                old = name.replace("_exps.", f".{e}.")
                tensors[old] = dataclasses.replace(
                    tensor, name=old, shape=tensor.shape[1:], n_bytes=n_bytes,
                    start=tensor.start + e * n_bytes,
                )  # fmt: skip
        stand_in = SimpleNamespace(path=checkpoint.path, format="gguf", tensors=tensors)
        old = WeightSource(stand_in, config)

        size = config.d_expert_ffn
        for part, rows, cols in (("gate", size, 32), ("up", size, 32), ("down", 32, size)):
            name = f"blk.0.ffn_{part}_exps.weight"
            for a, b in zip(
                old.experts(name, 4, rows, cols), new.experts(name, 4, rows, cols), strict=True
            ):
                np.testing.assert_array_equal(a.data, b.data)


def test_one_expert_is_a_list_of_one():
    with open_checkpoint(FIXTURES / "mixtral" / "hf") as checkpoint:
        config = dataclasses.replace(
            ModelConfig.from_checkpoint(checkpoint), n_experts=1, n_experts_used=1
        )
        keep = {
            name: tensor if "moe.gate" not in name else dataclasses.replace(
                tensor, shape=(1, 32), n_bytes=64
            )
            for name, tensor in checkpoint.tensors.items()
            if not re.search(r"experts\.[1-9]", name)
        }  # fmt: skip
        stand_in = SimpleNamespace(path=checkpoint.path, format="safetensors", tensors=keep)
        source = WeightSource(stand_in, config)
        (expert,) = source.experts("blk.0.ffn_up_exps.weight", 1, config.d_expert_ffn, 32)

        stored = checkpoint.tensors["model.layers.0.block_sparse_moe.experts.0.w3.weight"]
        np.testing.assert_array_equal(expert.data, stored.data)


@pytest.mark.parametrize(
    ("prefix", "head"),
    [("language_model.model.", "language_model."), ("model.language_model.", ""), ("", "")],
)
def test_decoders_within_larger_checkpoints(prefix, head):
    with open_checkpoint(LLAMA_HF) as checkpoint:
        names = {
            name: f"{head}{name}" if name == "lm_head.weight" else prefix + name[len("model.") :]
            for name in checkpoint.tensors
        }
        source = source_of(LLAMA_HF, rename=names)

        expected = checkpoint.tensors["model.layers.1.mlp.down_proj.weight"].data
        found = source.matrix("blk.1.ffn_down.weight", 32, 64).data
        np.testing.assert_array_equal(found, expected)
        expected = checkpoint.tensors["lm_head.weight"].data
        np.testing.assert_array_equal(source.matrix("output.weight", 288, 32).data, expected)


def test_all_mismatches_are_named_at_once():
    message = refusal(
        CheckpointError,
        LLAMA,
        drop=["blk.1.attn_norm.weight"],
        rename={"blk.0.attn_k.weight": "blk.0.attn_k.wait"},
        change={
            "blk.0.ffn_up.weight": {"shape": (32, 64)},
            "blk.1.attn_v.weight": {"type": "I32"},
            "output.weight": {"n_bytes": 288 * 64 - 2},
        },
    )

    near = "the nearest names are 'blk.0.attn_k.wait'"
    first, *lines = message.splitlines()
    assert first == f"{LLAMA}: these are not the tensors of this llama model:"
    assert sorted(line.strip() for line in lines) == [
        "'blk.0.attn_k.wait' has no place in it",
        f"'blk.0.attn_k.weight' is missing, expected with shape (16, 32); {near}",
        "'blk.0.ffn_up.weight' has shape (32, 64), expected (64, 32)",
        f"'blk.1.attn_norm.weight' is missing, expected with shape (32,); {near}",
        "'blk.1.attn_v.weight' is stored as I32, expected a weight format: integers are no weights",
        "'output.weight' has 18430 bytes, expected 18432",
    ]


def test_nearest_names_are_those_of_the_layer_when_none_is_spare():
    message = refusal(CheckpointError, LLAMA, drop=["blk.1.attn_q.weight"])

    assert re.search(r"nearest names are 'blk\.1\.attn_[kv]\.weight'", message)


def test_long_lists_are_cut():
    with open_checkpoint(FIXTURES / "gemma3_text" / "model.gguf") as checkpoint:
        layers = [name for name in checkpoint.tensors if name.startswith("blk.")]
        message = refusal(CheckpointError, checkpoint.path, drop=layers)
        shorter = refusal(CheckpointError, checkpoint.path, drop=layers[:20])

    assert len(shorter.splitlines()) == 1 + 20
    assert len(message.splitlines()) == 1 + 20 + 1
    assert message.endswith(f"and {len(layers) - 20} more of this kind")


def test_the_file_of_a_wrong_tensor_is_named(cases_dir):
    folder = cases_dir / "tiny" / "qwen3moe" / "hf"
    name = "model.layers.0.mlp.gate.weight"
    message = refusal(CheckpointError, folder, change={name: {"shape": (3, 64)}})

    assert re.search(
        rf"'{re.escape(name)}' in model-0000\d-of-00003\.safetensors has shape", message
    )
    assert str(folder) in message


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (LLAMA, "blk.0.attn_output.bias"),
        (LLAMA, "blk.2.attn_q.weight"),
        (LLAMA, "lm_head.weight"),
        (LLAMA, "model.layers.0.self_attn.rotary_emb.inv_freq"),
        (LLAMA_HF, "model.layers.0.self_attn.o_proj.bias"),
        (LLAMA_HF, "model.layers.2.self_attn.q_proj.weight"),
        (LLAMA_HF, "vision.patch_embed.weight"),
        (FIXTURES / "qwen2" / "model.gguf", "lm_head.weight"),
    ],
)
def test_unknown_tensors_are_refused(path, name):
    with open_checkpoint(path) as checkpoint:
        spare = next(iter(checkpoint.tensors))
        config = ModelConfig.from_checkpoint(checkpoint)
        more = edited(checkpoint)
        more.tensors[name] = dataclasses.replace(checkpoint.tensors[spare], name=name)
        with pytest.raises(CheckpointError, match=rf"'{re.escape(name)}'.* has no place in it"):
            WeightSource(more, config)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (LLAMA, "rope_freqs.weight"),
        (LLAMA, "blk.0.attn_rot_embd.weight"),
        (LLAMA_HF, "model.layers.0.self_attn.rotary_emb.inv_freq"),
        (LLAMA_HF, "model.rotary_emb.inv_freq"),
        (LLAMA_HF, "vision_tower.encoder.0.weight"),
        (LLAMA_HF, "model.multi_modal_projector.weight"),
        (FIXTURES / "qwen2" / "hf", "lm_head.weight"),
    ],
)
def test_harmless_tensors_are_passed_over(path, name):
    with open_checkpoint(path) as checkpoint:
        spare = next(iter(checkpoint.tensors))
        config = ModelConfig.from_checkpoint(checkpoint)
        more = edited(checkpoint)
        more.tensors[name] = dataclasses.replace(checkpoint.tensors[spare], name=name, type="I8")
        WeightSource(more, config)


def test_missing_experts_are_named_as_the_file_would_store_them():
    path = FIXTURES / "mixtral" / "model.gguf"
    message = refusal(CheckpointError, path, drop=["blk.0.ffn_up_exps.weight"])

    assert len(message.splitlines()) == 2
    assert "'blk.0.ffn_up_exps.weight' is missing, expected with shape (4, " in message


def test_an_untied_model_without_a_head():
    message = refusal(CheckpointError, LLAMA_HF, drop=["lm_head.weight"])

    assert "'lm_head.weight' is missing, expected with shape (288, 32)" in message


def test_a_gguf_file_without_a_head_is_tied_and_one_with_it_is_not():
    with open_checkpoint(LLAMA) as checkpoint:
        untied = ModelConfig.from_checkpoint(checkpoint)
        bare = edited(checkpoint, drop=["output.weight"])
        tied = ModelConfig.from_gguf(bare.metadata, bare.tensors)
        WeightSource(bare, tied)

    assert (untied.tied_head, tied.tied_head) == (False, True)


def test_rows_must_be_whole_blocks():
    change = {"blk.0.ffn_gate.weight": {"type": "Q4_K"}}
    message = refusal(CheckpointError, LLAMA, change=change)

    assert "'blk.0.ffn_gate.weight' has 32 columns, no whole number of Q4_K blocks" in message


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "C64", "F4", "Q8_1"])
def test_formats_without_a_kernel_are_named(kind):
    n_bytes = {"C64": 288 * 32 * 8, "F4": 288 * 16, "Q8_1": 288 * 36}.get(kind, 288 * 32)
    change = {"lm_head.weight": {"type": kind, "n_bytes": n_bytes}}
    message = refusal(UnsupportedModel, LLAMA_HF, change=change)

    assert re.search(rf"knows .*Q8_0.*:\n  'lm_head\.weight'.* is stored as {kind}$", message)


def test_a_format_without_a_kernel_is_named_before_what_comes_with_it():
    change = {"lm_head.weight": {"type": "F8_E4M3", "n_bytes": 288 * 32}}
    scales = {"model.norm.weight": "lm_head.weight_scale_inv"}
    message = refusal(UnsupportedModel, LLAMA_HF, change=change, rename=scales)

    assert "is stored as F8_E4M3" in message


def test_every_integer_type_is_refused():
    for kind in ("I8", "I16", "I32", "I64", "U8", "U64", "BOOL"):
        message = refusal(CheckpointError, LLAMA_HF, change={"model.norm.weight": {"type": kind}})

        assert f"is stored as {kind}, expected a weight format" in message


def test_questions_that_the_configuration_does_not_imply():
    source = source_of(LLAMA)
    with pytest.raises(
        ArgumentError, match=r"'blk\.0\.attn_q\.weight'.* \(32, 32\), but \(32, 33\)"
    ):
        source.matrix("blk.0.attn_q.weight", 32, 33)
    with pytest.raises(ArgumentError, match=r"'blk\.0\.attn_q\.bias'"):
        source.vector("blk.0.attn_q.bias", 32)


def test_weights_of_smollm2(smollm2_path):
    with open_checkpoint(smollm2_path) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)
        source = WeightSource(checkpoint, config)
        embedding = source.matrix("token_embd.weight", 49152, 576)
        down = source.matrix("blk.29.ffn_down.weight", 576, 1536)

        assert (embedding.type, down.type) == ("Q8_0", "Q4_1")
        assert source.nbytes == sum(t.n_bytes for t in checkpoint.tensors.values())

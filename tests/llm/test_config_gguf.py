"""Configurations from GGUF metadata: every switch, every default, every refusal."""

import dataclasses
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig, RopeScaling

N_LAYERS = 12

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": N_LAYERS,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 50000.0,
}
EXPERTS = {"expert_count": 6, "expert_used_count": 3}

PLAIN = ModelConfig(
    architecture="llama",
    n_layers=N_LAYERS,
    n_vocab=100,
    d_model=64,
    n_heads=8,
    n_kv_heads=2,
    head_dim=8,
    d_ffn=96,
    n_ctx_train=2048,
    norm_eps=1e-5,
    attention_scale=8**-0.5,
    rope_theta=50000.0,
    rope_pairing="interleaved",
)


def tensor(*shape, values=None):
    return SimpleNamespace(shape=shape, numpy=lambda: np.asarray(values))


def tensors(**more):
    """A tensor table: what every file has, a number of others, and `more` with dots for `__`."""
    table = {"token_embd.weight": tensor(100, 64), "output.weight": tensor(100, 64)}
    table |= {f"blk.{i}.attn_norm.weight": tensor(64) for i in range(70)}
    return table | {name.replace("__", "."): entry for name, entry in more.items()}


def metadata(arch="llama", drop=(), **more):
    """LLAMA for another architecture, without the keys of `drop`, and with `more` of its keys."""
    keys = {key.replace("llama.", f"{arch}."): value for key, value in LLAMA.items()}
    keys["general.architecture"] = arch
    keys |= {f"{arch}.{key.replace('__', '.')}": value for key, value in more.items()}
    return {key: value for key, value in keys.items() if key not in {f"{arch}.{d}" for d in drop}}


def read(arch="llama", drop=(), table=None, **more):
    return ModelConfig.from_gguf(
        metadata(arch, drop, **more), tensors() if table is None else table, path="toy.gguf"
    )


def changed(config, base=PLAIN):
    """The fields in which a configuration differs from another."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(base, field.name)
    }


def test_plain_llama():
    assert read() == PLAIN


@pytest.mark.parametrize(
    ("arch", "more", "expected"),
    [
        ("llama", {"attention__sliding_window": 7}, {"windows": (7,) * N_LAYERS}),
        (
            "llama",
            EXPERTS,
            {
                "architecture": "mixtral",
                "n_experts": 6,
                "n_experts_used": 3,
                "d_expert_ffn": 96,
                "d_ffn": 0,
                "normalize_expert_weights": True,
            },
        ),
        ("qwen2", {}, {"architecture": "qwen2", "rope_pairing": "half"}),
        ("qwen3", {}, {"architecture": "qwen3", "rope_pairing": "half"}),
        (
            "qwen3moe",
            EXPERTS | {"expert_feed_forward_length": 20},
            {
                "architecture": "qwen3_moe",
                "rope_pairing": "half",
                "n_experts": 6,
                "n_experts_used": 3,
                "d_expert_ffn": 20,
                "d_ffn": 0,
                "normalize_expert_weights": True,
            },
        ),
        (
            "olmoe",
            EXPERTS,
            {
                "architecture": "olmoe",
                "rope_pairing": "half",
                "n_experts": 6,
                "n_experts_used": 3,
                "d_expert_ffn": 96,
                "d_ffn": 0,
            },
        ),
        (
            "smollm3",
            {},
            {"architecture": "smollm3", "rope_layers": (True, True, True, False) * 3},
        ),
        (
            "gemma3",
            {"attention__sliding_window": 16},
            {
                "architecture": "gemma3_text",
                "rope_pairing": "half",
                "activation": "gelu_tanh",
                "sandwich_norms": True,
                "embedding_scale": 8.0,
                "windows": ((16,) * 5 + (None,)) * 2,
                "rope_local_theta": 10000.0,
            },
        ),
    ],
)
def test_families(arch, more, expected):
    assert changed(read(arch, **more)) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"attention__key_length": 12}, {"head_dim": 12, "attention_scale": 12**-0.5}),
        (
            {
                "attention__key_length": 12,
                "attention__value_length": 12,
                "rope__dimension_count": 12,
            },
            {"head_dim": 12, "attention_scale": 12**-0.5},
        ),
        ({"attention__scale": 0.5}, {"attention_scale": 0.5}),
        ({"attention__scale": 0.0}, {}),
        ({"feed_forward_length": [96] * N_LAYERS}, {}),
        ({"attention__head_count_kv": np.full(N_LAYERS, 4)}, {"n_kv_heads": 4}),
        ({"vocab_size": 99}, {}),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {}),
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 1.0}, {}),
        ({"rope__scaling__type": "linear"}, {}),
        (
            {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
            {"rope_scaling": RopeScaling(type="linear", factor=4.0)},
        ),
        (
            {"rope__scaling__factor": 4.0},
            {"rope_scaling": RopeScaling(type="linear", factor=4.0)},
        ),
        ({"rope__scale_linear": 2.0}, {"rope_scaling": RopeScaling(type="linear", factor=2.0)}),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__original_context_length": 512,
                "rope__scaling__yarn_beta_fast": 16.0,
                "rope__scaling__yarn_beta_slow": 2.0,
                "rope__scaling__attn_factor": 0.5,
            },
            {
                "rope_scaling": RopeScaling(
                    type="yarn",
                    factor=4.0,
                    original_context=512,
                    beta_fast=16.0,
                    beta_slow=2.0,
                    attention_factor=0.5 * (0.1 * math.log(4.0) + 1.0),
                )
            },
        ),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0},
            {
                "rope_scaling": RopeScaling(
                    type="yarn",
                    factor=2.0,
                    original_context=2048,
                    attention_factor=0.1 * math.log(2.0) + 1.0,
                )
            },
        ),
    ],
)
def test_keys(more, expected):
    assert changed(read(**more)) == expected


def test_absent_keys_have_llama_cpp_defaults():
    config = read(drop=("attention.head_count_kv", "rope.freq_base"))

    assert changed(config) == {"n_kv_heads": 8, "rope_theta": 10000.0}


def test_switches_without_a_key_are_read_off_the_tensors():
    assert changed(read(table=tensors(blk__0__attn_q__bias=tensor(64)))) == {"qkv_bias": True}
    head = tensors(blk__0__attn_q_norm__weight=tensor(8))
    assert changed(read(table=head)) == {"qk_norm": "head"}
    whole = tensors(blk__0__attn_q_norm__weight=tensor(64))
    assert changed(read(table=whole)) == {"qk_norm": "whole"}
    tied = tensors()
    del tied["output.weight"]
    assert changed(read(table=tied)) == {"tied_head": True}
    freqs = tensors(rope_freqs__weight=tensor(4, values=np.float32([1, 1, 2, 8])))
    assert changed(read(table=freqs)) == {
        "rope_scaling": RopeScaling(type="divisors", divisors=(1.0, 1.0, 2.0, 8.0))
    }


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "olmoe"])
@pytest.mark.parametrize("flag", [True, False])
def test_expert_weights_norm_key_wins(arch, flag):
    config = read(arch, **EXPERTS, expert_weights_norm=flag)

    assert config.normalize_expert_weights is flag


def test_qwen3moe_width_without_a_key_is_a_share():
    assert read("qwen3moe", **EXPERTS).d_expert_ffn == 96 // 3


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"attention__scale": 0.25}, 0.25),
        ({"attention__key_length": 16}, 0.25),
        ({"attention__key_length": 16, "block_count": 62}, 8**-0.5),
        ({"attention__key_length": 16, "block_count": 62, "attention__scale": 0.3}, 0.3),
    ],
)
def test_gemma_attention_scale(more, expected):
    assert read("gemma3", **more).attention_scale == pytest.approx(expected, rel=1e-15)


def test_gemma_layers():
    window = {"attention__sliding_window": 16}
    period = read("gemma3", **window, attention__sliding_window_pattern=3)
    flags = read("gemma3", **window, attention__sliding_window_pattern=[True, False] * 6)
    base = read("gemma3", **window, rope__freq_base_swa=20000.0, rope__scaling__factor=8.0)
    none = read("gemma3")
    alone = read("gemma3", **window, attention__sliding_window_pattern=1)

    assert alone.windows == (None,) * N_LAYERS
    assert period.windows == (16, 16, None) * 4
    assert flags.windows == (16, None) * 6
    assert base.rope_local_theta == 20000.0
    assert base.rope_scaling == RopeScaling(type="linear", factor=8.0)
    assert (none.windows, none.rope_local_theta) == ((), None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.shared_kv_layers", 4),
        ("attention.sliding_window_pattern", 2),
        ("attention.temperature_scale", 0.1),
        ("attn_logit_softcapping", 50.0),
        ("embedding_scale", 12.0),
        ("expert_gating_func", 2),
        ("expert_group_count", 8),
        ("expert_shared_count", 1),
        ("expert_weights_scale", 2.5),
        ("final_logit_softcapping", 30.0),
        ("interleave_moe_layer_step", 2),
        ("leading_dense_block_count", 1),
        ("logit_scale", 0.0625),
        ("moe_every_n_layers", 2),
        ("nextn_predict_layers", 1),
        ("residual_scale", 0.22),
        ("rope.dimension_sections", [8, 8, 8, 8]),
        ("rope.freq_base_swa", 10000.0),
        ("rope.scaling.yarn_ext_factor", 0.0),
        ("rope.scaling.yarn_attn_factor", 0.5),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("use_parallel_residual", True),
        ("a_key_of_next_year", 1),
    ],
)
def test_keys_that_change_the_arithmetic_are_refused_by_name(key, value):
    with pytest.raises(UnsupportedModel, match=rf"^toy\.gguf: .*llama\.{re.escape(key)} = "):
        read(**{key.replace(".", "__"): value})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (list(range(9)), "an array of 9 values"),
        (list(range(8)), "(0, 1, 2, 3, 4, 5, 6, 7)"),
        ("x" * 58, "'" + "x" * 58 + "'"),
        ("x" * 59, "'" + "x" * 56 + "..."),
    ],
)
def test_long_values_are_shortened(value, shown):
    with pytest.raises(UnsupportedModel, match=rf"llama\.long = {re.escape(shown)}$"):
        read(long=value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True),
        ("attention.clamp_kqv", 0.0),
        ("attention.layer_norm_epsilon", 1e-5),
        ("attention.max_alibi_bias", 0.0),
        ("attention.shared_kv_layers", 0),
        ("attention.temperature_scale", 0.0),
        ("attn_logit_softcapping", 0.0),
        ("embedding_scale", 0.0),
        ("embedding_scale", 1.0),
        ("expert_gating_func", 1),
        ("expert_group_count", 0),
        ("expert_group_used_count", 1),
        ("expert_shared_count", 0),
        ("expert_shared_feed_forward_length", 0),
        ("expert_used_count", 0),
        ("expert_weights_norm", False),
        ("expert_weights_scale", 0.0),
        ("expert_weights_scale", 1.0),
        ("final_logit_softcapping", 0.0),
        ("interleave_moe_layer_step", 1),
        ("leading_dense_block_count", 0),
        ("classifier.output_labels", ["a", "b"]),
        ("decoder_start_token_id", 0),
        ("logit_scale", 0.0),
        ("vocab_size", 7),
        ("moe_every_n_layers", 1),
        ("nextn_predict_layers", 0),
        ("pooling_type", 3),
        ("residual_scale", 1.0),
        ("rope.scaling.finetuned", False),
        ("rope.scaling.yarn_attn_factor", 1.0),
        ("rope.scaling.yarn_ext_factor", -1.0),
        ("rope.scaling.yarn_log_multiplier", 0.0),
        ("router_logit_softcapping", 0.0),
        ("swin_norm", False),
        ("tensor_data_layout", "Meta AI original pth"),
        ("use_parallel_residual", False),
    ],
)
def test_the_same_keys_pass_where_they_change_nothing(key, value):
    assert read(**{key.replace(".", "__"): value}) == PLAIN


def test_bookkeeping_of_converters_and_quantizers():
    """What lies outside an architecture's own keys changes no arithmetic, known or not."""
    notes = {
        "general.name": "Toy", "general.quantized_by": "x", "general.quantization_version": 2,
        "general.file_type": 15, "general.repo_url": "x", "general.tags": ["a", "b"],
        "general.base_model.count": 1, "general.base_model.0.name": "Base", "general.type": "model",
        "general.sampling.temp": 0.5, "general.a_key_of_next_year": 1,
        "quantize.imatrix.file": "x", "quantize.imatrix.entries_count": 210,
        "split.no": 0, "split.count": 0, "split.tensors.count": 21,
        "unsloth.version": "2025.1", "mradermacher.quantized_by": "x",
        "tokenizer.ggml.a_key_of_next_year": 1,
    }  # fmt: skip
    noted = {**metadata(), **notes}
    assert ModelConfig.from_gguf(noted, tensors(), path="toy.gguf") == PLAIN


@pytest.mark.parametrize(
    ("arch", "more", "named"),
    [
        ("llama", {"rope__dimension_count": 4}, "rope.dimension_count is 4 of 8"),
        ("llama", {"attention__value_length": 16}, "attention.value_length is 16"),
        ("llama", {"rope__scaling__type": "longrope"}, "rope.scaling.type 'longrope'"),
        ("llama", {"rope__scaling__attn_factor": 1.2}, "rope.scaling.attn_factor 1.2"),
        ("llama", {"feed_forward_length": [96, 48] * 6}, "llama.feed_forward_length differs"),
        ("qwen2", {"attention__sliding_window": 64}, "qwen2.attention.sliding_window"),
        ("smollm3", {"attention__sliding_window": 64}, "smollm3.attention.sliding_window"),
    ],
)
def test_refused_values(arch, more, named):
    with pytest.raises(UnsupportedModel, match=re.escape(named)):
        read(arch, **more)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("blk.0.attn_output.bias", "bias on the attention output"),
        ("blk.0.attn_qkv.weight", "query, key and value in one matrix"),
        ("blk.0.ffn_down.bias", "biases in the feed-forward network"),
        ("blk.0.ffn_gate_shexp.weight", "shared experts"),
        ("rope_factors_long.weight", "longrope"),
    ],
)
def test_refused_tensors(name, meaning):
    with pytest.raises(UnsupportedModel, match=rf"{re.escape(name)} means .*{meaning}"):
        read(table=tensors() | {name: tensor(64)})


def test_divisors_beside_another_scaling_are_refused():
    table = tensors(rope_freqs__weight=tensor(4, values=np.ones(4)))
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight beside rope scaling 'linear'"):
        read(table=table, rope__scaling__factor=2.0)


def test_unknown_architecture_lists_the_supported():
    with pytest.raises(
        UnsupportedModel,
        match=r"^toy\.gguf: architecture 'mamba' .*"
        r"gemma3, llama, olmoe, qwen2, qwen3, qwen3moe, smollm3$",
    ):
        read("mamba")


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_keys_are_named(key):
    with pytest.raises(CheckpointError, match=rf"^toy\.gguf: llama\.{re.escape(key)} is missing$"):
        read(drop=(key,))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"block_count": "12"}, "llama.block_count is '12', but must be an integer"),
        ({"block_count": True}, "llama.block_count is True, but must be an integer"),
        ({"block_count": 0}, "llama.block_count is 0"),
        ({"block_count": 2**32 - 1}, "block_count is 4294967295, but the file holds 72 tensors"),
        ({"embedding_length": 64.0}, "llama.embedding_length is 64.0"),
        ({"embedding_length": 60}, "8 heads do not divide an embedding of 60"),
        ({"attention__head_count": 0}, "the model has 0 heads"),
        ({"attention__head_count_kv": 3}, "8 heads cannot share 3 key heads"),
        ({"attention__key_length": 0}, "a head has 0 dimensions"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "must be finite"),
        ({"attention__layer_norm_rms_epsilon": 0.0}, "norm_eps is 0.0, but must be positive"),
        ({"rope__freq_base": "big"}, "llama.rope.freq_base is 'big', but must be a number"),
        ({"expert_count": 4}, "llama.expert_used_count is missing"),
        ({"expert_count": 4, "expert_used_count": 5}, "5 of 4 experts are used"),
        (
            EXPERTS | {"expert_weights_norm": 1},
            "llama.expert_weights_norm is 1, but must be true or false",
        ),
        ({"rope__scaling__factor": -2.0}, "rope scaling factor is -2.0"),
    ],
)
def test_broken_metadata(more, named):
    with pytest.raises(CheckpointError, match=rf"^toy\.gguf: .*{re.escape(named)}"):
        read(**more)


@pytest.mark.parametrize("arch", ["qwen3moe", "olmoe"])
def test_a_family_of_experts_needs_their_count(arch):
    with pytest.raises(CheckpointError, match="expert_count is missing"):
        read(arch)


@pytest.mark.parametrize("pattern", [0, -1, [True] * 3, [2] * N_LAYERS])
def test_broken_gemma_pattern(pattern):
    with pytest.raises(CheckpointError, match=r"gemma3\.attention\.sliding_window_pattern"):
        read("gemma3", attention__sliding_window=4, attention__sliding_window_pattern=pattern)


def test_broken_tensor_tables():
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' is missing"):
        read(table={f"x{i}": tensor(1) for i in range(N_LAYERS)})
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight' has shape \(100,\)"):
        read(table=tensors(token_embd__weight=tensor(100)))
    with pytest.raises(CheckpointError, match=r"'rope_freqs\.weight' has 5 values, expected 4"):
        read(table=tensors(rope_freqs__weight=tensor(5)))
    with pytest.raises(CheckpointError, match="divisors must be positive"):
        read(table=tensors(rope_freqs__weight=tensor(4, values=[1.0, 0.0, 1.0, 1.0])))


@pytest.mark.parametrize("arch", [None, "", 7])
def test_no_architecture(arch):
    with pytest.raises(CheckpointError, match=r"^toy\.gguf: .*general\.architecture is missing"):
        ModelConfig.from_gguf({"general.architecture": arch}, tensors(), path="toy.gguf")


@pytest.mark.parametrize(("name", "named"), [("G49", "block_count"), ("G55", "architecture")])
def test_hostile_files(cases_dir, name, named):
    with (
        open_checkpoint(cases_dir / "gguf" / f"{name}.gguf") as checkpoint,
        pytest.raises(CheckpointError, match=rf"{name}\.gguf: .*{named}"),
    ):
        ModelConfig.from_checkpoint(checkpoint)


def test_smollm2(smollm2_path):
    with open_checkpoint(smollm2_path) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)

    assert config == ModelConfig(
        architecture="llama",
        n_layers=30,
        n_vocab=49152,
        d_model=576,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        d_ffn=1536,
        n_ctx_train=8192,
        norm_eps=float(np.float32(1e-5)),
        attention_scale=0.125,
        rope_theta=100000.0,
        rope_pairing="interleaved",
        tied_head=True,
    )


def test_gemma3_270m(gemma3_path):
    with open_checkpoint(gemma3_path) as checkpoint:
        config = ModelConfig.from_checkpoint(checkpoint)

    assert config == ModelConfig(
        architecture="gemma3_text",
        n_layers=18,
        n_vocab=262144,
        d_model=640,
        n_heads=4,
        n_kv_heads=1,
        head_dim=256,
        d_ffn=2048,
        n_ctx_train=32768,
        norm_eps=float(np.float32(1e-6)),
        attention_scale=0.0625,
        rope_theta=1000000.0,
        rope_local_theta=10000.0,
        rope_pairing="half",
        activation="gelu_tanh",
        qk_norm="head",
        sandwich_norms=True,
        embedding_scale=math.sqrt(640),
        tied_head=True,
        windows=((512,) * 5 + (None,)) * 3,
    )


# ---- numbers that are no measure of what is there ----


def nested(*rows):
    return tuple(np.array(row, np.int32) for row in rows)


@pytest.mark.parametrize(
    "key", ["block_count", "attention.head_count", "feed_forward_length", "context_length"]
)
def test_arrays_in_arrays_are_no_numbers(key):
    with pytest.raises(CheckpointError, match=rf"llama.{key} is \(1, 2\), but must be an integer"):
        ModelConfig.from_gguf(metadata(**{key: nested([1, 2], [1, 2])}), tensors())


def test_a_pattern_of_arrays_is_no_pattern():
    pattern = nested(*[[0, 1]] * N_LAYERS)
    more = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
    with pytest.raises(CheckpointError, match="one flag for each of 12 layers"):
        ModelConfig.from_gguf(metadata("gemma3", **more), tensors())


@pytest.mark.parametrize(
    "value", [np.zeros(70_000, np.int8), nested(*[[0] * 1000] * 66)], ids=["flat", "nested"]
)
def test_long_arrays_are_refused_before_they_become_objects(value):
    with pytest.raises(CheckpointError, match=r"llama.block_count is an array of .*; at most 65,5"):
        ModelConfig.from_gguf(metadata(block_count=value), tensors())


def test_experts_are_compared_with_what_is_stored():
    arch = {"expert_count": 200, "expert_used_count": 3}
    with pytest.raises(CheckpointError, match="expert_count is 200, but the tensors hold 6"):
        ModelConfig.from_gguf(
            metadata(**arch), tensors(blk__0__ffn_gate_exps__weight=tensor(6, 96, 64))
        )
    with pytest.raises(CheckpointError, match="expert_count is 200, but the tensors hold 72"):
        ModelConfig.from_gguf(metadata(**arch), tensors())


def test_messages_stay_short():
    long = "y" * 10**6
    for more in (
        {f"key{i:05d}": 1 for i in range(5000)},
        {"rope.scaling.type": long},
        {"z" * 60_000: 1},
        {"block_count": long},
    ):
        with pytest.raises((CheckpointError, UnsupportedModel)) as caught:
            ModelConfig.from_gguf(metadata(**more), tensors())
        assert len(str(caught.value)) < 3000
    with pytest.raises(UnsupportedModel) as caught:
        ModelConfig.from_gguf({"general.architecture": long}, tensors())
    assert len(str(caught.value)) < 1000


def test_frequency_divisors_of_impossible_heads_are_not_read():
    def read():
        raise AssertionError("expanded")

    wide = SimpleNamespace(shape=(2**29,), numpy=read)
    more = {"attention.key_length": 2**30}
    with pytest.raises(UnsupportedModel, match="head_dim is 1073741824"):
        ModelConfig.from_gguf(metadata(**more), tensors(rope_freqs__weight=wide))

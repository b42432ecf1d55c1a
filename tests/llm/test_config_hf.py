"""Configurations from config.json: defaults of each family, every switch, every refusal."""

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig, RopeScaling

FIXTURES = Path(__file__).parents[1] / "fixtures"

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}
PLAIN = ModelConfig(
    architecture="llama",
    n_layers=8,
    n_vocab=100,
    d_model=64,
    n_heads=8,
    n_kv_heads=2,
    head_dim=8,
    d_ffn=96,
    n_ctx_train=2048,
    norm_eps=1e-6,
    attention_scale=8**-0.5,
    rope_theta=10000.0,
    rope_pairing="half",
)
# As a checkpoint of each family says it: the sizes of Transformers' configuration classes.
DEFAULTS = {
    "llama": {
        "n_vocab": 32000, "d_model": 4096, "d_ffn": 11008, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 32, "head_dim": 128, "n_ctx_train": 2048, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "tied_head": False, "windows": (),
    },
    "mistral": {
        "n_vocab": 32000, "d_model": 4096, "d_ffn": 14336, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 8, "head_dim": 128, "n_ctx_train": 131072, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "tied_head": False, "windows": (4096,) * 32,
    },
    "mixtral": {
        "n_vocab": 32000, "d_model": 4096, "d_ffn": 0, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 8, "head_dim": 128, "n_ctx_train": 131072, "norm_eps": 1e-5,
        "rope_theta": 1000000.0, "tied_head": False, "windows": (), "n_experts": 8,
        "n_experts_used": 2, "d_expert_ffn": 14336, "normalize_expert_weights": True,
    },
    "qwen2": {
        "n_vocab": 151936, "d_model": 4096, "d_ffn": 22016, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 32, "head_dim": 128, "n_ctx_train": 32768, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "tied_head": False, "windows": (), "qkv_bias": True,
    },
    "qwen3": {
        "n_vocab": 151936, "d_model": 4096, "d_ffn": 22016, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 32, "head_dim": 128, "n_ctx_train": 32768, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "tied_head": False, "windows": (), "qk_norm": "head",
    },
    "qwen3_moe": {
        "n_vocab": 151936, "d_model": 2048, "d_ffn": 0, "n_layers": 24, "n_heads": 32,
        "n_kv_heads": 4, "head_dim": 64, "n_ctx_train": 32768, "norm_eps": 1e-6,
        "rope_theta": 10000.0, "tied_head": False, "windows": (), "qk_norm": "head",
        "n_experts": 128, "n_experts_used": 8, "d_expert_ffn": 768,
        "normalize_expert_weights": False,
    },
    "gemma3_text": {
        "n_vocab": 262208, "d_model": 2304, "d_ffn": 9216, "n_layers": 26, "n_heads": 8,
        "n_kv_heads": 4, "head_dim": 256, "n_ctx_train": 131072, "norm_eps": 1e-6,
        "rope_theta": 1000000.0, "rope_local_theta": 10000.0, "tied_head": True,
        "windows": (((4096,) * 5 + (None,)) * 5)[:26], "qk_norm": "head", "sandwich_norms": True,
        "activation": "gelu_tanh", "embedding_scale": 48.0, "attention_scale": 1 / 16,
    },
    "olmoe": {
        "n_vocab": 50304, "d_model": 2048, "d_ffn": 0, "n_layers": 16, "n_heads": 16,
        "n_kv_heads": 16, "head_dim": 128, "n_ctx_train": 4096, "norm_eps": 1e-5,
        "rope_theta": 10000.0, "tied_head": False, "windows": (), "qk_norm": "whole",
        "n_experts": 64, "n_experts_used": 8, "d_expert_ffn": 2048,
        "normalize_expert_weights": False,
    },
    "smollm3": {
        "n_vocab": 128256, "d_model": 2048, "d_ffn": 11008, "n_layers": 36, "n_heads": 16,
        "n_kv_heads": 4, "head_dim": 128, "n_ctx_train": 32768, "norm_eps": 1e-6,
        "rope_theta": 2000000.0, "tied_head": True, "windows": (),
        "rope_layers": (True, True, True, False) * 9,
    },
}  # fmt: skip
ALIKE = {
    "rope_pairing": "half", "activation": "silu", "qkv_bias": False, "qk_norm": "none",
    "sandwich_norms": False, "embedding_scale": 1.0, "n_experts": 0, "n_experts_used": 0,
    "d_expert_ffn": 0, "normalize_expert_weights": False, "rope_local_theta": None,
    "rope_scaling": None, "rope_layers": (),
}  # fmt: skip


def read(family="llama", drop=(), **more):
    config = {"model_type": family} | SMALL | more
    return ModelConfig.from_hf(
        {key: value for key, value in config.items() if key not in drop}, path="config.json"
    )


def changed(config):
    """The fields, but the family's name, in which a configuration differs from PLAIN."""
    base = dataclasses.replace(PLAIN, architecture=config.architecture)
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(base, field.name)
    }


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_defaults_are_those_of_transformers(family):
    config = ModelConfig.from_hf({"model_type": family})

    expected = {"architecture": family} | ALIKE | DEFAULTS[family]
    expected.setdefault("attention_scale", expected["head_dim"] ** -0.5)
    assert dataclasses.asdict(config) == expected


def test_plain_llama():
    assert read() == PLAIN


@pytest.mark.parametrize(
    ("family", "more", "expected"),
    [
        ("llama", {"num_key_value_heads": None}, {"n_kv_heads": 8}),
        ("mistral", {"num_key_value_heads": None, "sliding_window": None}, {"n_kv_heads": 8}),
        ("llama", {"head_dim": 12}, {"head_dim": 12, "attention_scale": 12**-0.5}),
        ("llama", {"head_dim": None}, {}),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}, {"activation": "gelu_tanh"}),
        (
            "llama",
            {"hidden_act": "silu", "hidden_activation": "gelu_pytorch_tanh"},
            {"activation": "gelu_tanh"},
        ),
        ("llama", {"hidden_act": "silu", "hidden_activation": None}, {}),
        ("llama", {"attention_bias": True}, {"qkv_bias": True}),
        ("qwen2", {"attention_bias": False}, {"qkv_bias": True}),
        ("qwen3", {"attention_bias": False, "head_dim": 8}, {"qk_norm": "head"}),
        ("llama", {"tie_word_embeddings": True}, {"tied_head": True}),
        ("llama", {"rms_norm_eps": 1e-5, "rope_theta": 5e5}, {"norm_eps": 1e-5, "rope_theta": 5e5}),
        ("llama", {"sliding_window": 7}, {"windows": (7,) * 8}),
        ("mistral", {"sliding_window": 7}, {"windows": (7,) * 8}),
        ("mistral", {"sliding_window": None}, {}),
        ("mistral", {}, {"windows": (4096,) * 8}),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": False}, {"qkv_bias": True}),
        (
            "qwen2",
            {"layer_types": ["full_attention"] * 8, "max_window_layers": 28},
            {"qkv_bias": True},
        ),
        ("llama", {"layer_types": ["full_attention"] * 8}, {}),
        (
            "llama",
            {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"] * 4},
            {"windows": (None, 5) * 4},
        ),
    ],
)
def test_keys(family, more, expected):
    assert changed(read(family, **more)) == expected


def test_gemma():
    config = read("gemma3_text", tie_word_embeddings=False, query_pre_attn_scalar=4)
    period = read("gemma3_text", sliding_window=9, sliding_window_pattern=2)
    private = read("gemma3_text", sliding_window=9, _sliding_window_pattern=4)
    kinds = ["full_attention"] * 7 + ["sliding_attention"]
    listed = read("gemma3_text", sliding_window=9, sliding_window_pattern=2, layer_types=kinds)

    assert not config.tied_head
    assert config.attention_scale == 0.5
    assert config.embedding_scale == 8.0
    assert config.windows == (*(4096,) * 5, None, 4096, 4096)
    assert period.windows == (9, None) * 4
    assert private.windows == (9, 9, 9, None) * 2
    assert listed.windows == (None,) * 7 + (9,)


def test_text_part_of_gemma_with_images():
    text = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size")}
    images = {"vision_config": {"hidden_size": 1152}, "image_token_index": 262144}
    config = ModelConfig.from_hf({"model_type": "gemma3", "text_config": text} | images)
    alone = ModelConfig.from_hf({"model_type": "gemma3_text"} | text)
    untied = {"model_type": "gemma3", "text_config": text, "tie_word_embeddings": False}

    assert config == alone
    assert config.n_heads == 8
    assert config.tied_head
    assert not ModelConfig.from_hf(untied).tied_head


@pytest.mark.parametrize(
    ("family", "more", "expected"),
    [
        ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 3}, (4, 3, 96, True)),
        ("mixtral", {"num_experts": 4}, (4, 2, 96, True)),
        ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2}, (4, 2, 768, False)),
        (
            "qwen3_moe",
            {"moe_intermediate_size": 10, "norm_topk_prob": True, "mlp_only_layers": []},
            (128, 8, 10, True),
        ),
        ("olmoe", {"num_experts": 9, "clip_qkv": None}, (9, 8, 96, False)),
        ("olmoe", {"norm_topk_prob": True}, (64, 8, 96, True)),
    ],
)
def test_experts(family, more, expected):
    config = read(family, **more)

    assert expected == (
        config.n_experts,
        config.n_experts_used,
        config.d_expert_ffn,
        config.normalize_expert_weights,
    )
    assert config.d_ffn == 0


def test_mixtral_window():
    assert read("mixtral", sliding_window=7).windows == (7,) * 8


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({}, (True, True, True, False) * 2),
        ({"no_rope_layer_interval": 2}, (True, False) * 4),
        ({"no_rope_layers": None}, (True, True, True, False) * 2),
        # In spite of its name, 1 means that the layer is rotated; a longer list is cut.
        ({"no_rope_layers": [0, 1, 1, 1, 1, 1, 1, 1, 0, 0]}, (False,) + (True,) * 7),
    ],
)
def test_smollm3_layers_without_rotation(more, layers):
    assert read("smollm3", **more).rope_layers == layers


def test_smollm3_windows():
    assert read("smollm3", sliding_window=6).windows == ()
    used = read("smollm3", sliding_window=6, use_sliding_window=True)
    assert used.windows == (None, None, None, 6) * 2


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, None),
        ({}, None),
        ({"rope_type": "default"}, None),
        ({"rope_type": "linear", "factor": 4.0}, RopeScaling(type="linear", factor=4.0)),
        ({"type": "linear", "factor": 4}, RopeScaling(type="linear", factor=4.0)),
        (
            {"type": "linear", "rope_type": "linear", "factor": 4.0},
            RopeScaling(type="linear", factor=4.0),
        ),
        (
            {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": None},
            RopeScaling(type="dynamic", factor=2.0, original_context=2048),
        ),
        (
            {"rope_type": "llama3"} | LLAMA3,
            RopeScaling(type="llama3", factor=8.0, original_context=512),
        ),
        (
            {"rope_type": "llama3"} | LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 6.0},
            RopeScaling(
                type="llama3",
                factor=8.0,
                original_context=512,
                low_freq_factor=2.0,
                high_freq_factor=6.0,
            ),
        ),
        (
            {"type": "yarn", "factor": 4.0, "finetuned": True},
            RopeScaling(type="yarn", factor=4.0, original_context=2048),
        ),
        (
            {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512},
            RopeScaling(type="yarn", factor=4.0, original_context=512),
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
                "attention_factor": 1.5,
                "mscale": 0.5,
                "mscale_all_dim": 0.25,
            },
            RopeScaling(
                type="yarn",
                factor=4.0,
                original_context=512,
                beta_fast=16.0,
                beta_slow=2.0,
                truncate=False,
                attention_factor=1.5,
                mscale=0.5,
                mscale_all_dim=0.25,
            ),
        ),
    ],
)
def test_rope_scaling(scaling, expected):
    old = read(rope_theta=7000.0, rope_scaling=scaling)
    new = read(rope_parameters=(scaling or {}) | {"rope_theta": 7000.0})

    assert old.rope_scaling == expected
    assert old.rope_theta == 7000.0
    assert new == old


def test_gemma_rope_sets():
    far = {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6}
    near = {"rope_type": "default", "rope_theta": 3e4}
    new = read("gemma3_text", rope_parameters={"full_attention": far, "sliding_attention": near})
    old = read(
        "gemma3_text",
        rope_theta=2e6,
        rope_local_base_freq=3e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )

    assert (new.rope_theta, new.rope_local_theta) == (2e6, 3e4)
    assert new.rope_scaling == RopeScaling(type="linear", factor=8.0)
    assert new == old


@pytest.mark.parametrize(
    ("family", "more", "named"),
    [
        ("llama", {"mlp_bias": True}, "mlp_bias = True"),
        ("llama", {"hidden_act": "relu"}, "activation 'relu'"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantization_config = {"),
        ("llama", {"is_causal": False}, "is_causal = False"),
        ("llama", {"a_key_of_next_year": 1}, "a_key_of_next_year = 1"),
        ("llama", {"residual_multiplier": 0.22}, "residual_multiplier = 0.22"),
        ("llama", {"layer_types": ["chunked_attention"] * 8}, "layer_types chunked_attention"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 8}, "use_sliding_window"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
    ],
)
def test_refused_by_name(family, more, named):
    with pytest.raises(UnsupportedModel, match=rf"^config\.json: .*{re.escape(named)}"):
        read(family, **more)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope", "long_factor": [1.0] * 4}, "rope type 'longrope'"),
        ({"type": "su"}, "rope type 'su'"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"factor": 4.0}, "rope_scaling.factor = 4.0"),
        ({"rope_type": "linear", "factor": 4.0, "alpha": 2.0}, "rope_scaling.alpha = 2.0"),
        (
            {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1.0}},
            "a second set of rotary parameters",
        ),
        ({"full_attention": {}, "chunked_attention": {"x": 1}}, "rope_scaling.chunked_attention"),
    ],
)
def test_refused_rope_scaling(scaling, named):
    with pytest.raises(UnsupportedModel, match=re.escape(named)):
        read(rope_scaling=scaling)


def test_scaled_local_rope_is_refused():
    sets = {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(UnsupportedModel, match="layers with a window"):
        read("gemma3_text", rope_parameters=sets)


def test_quantized_gemma_with_images_is_refused():
    config = {"model_type": "gemma3", "text_config": {}, "quantization_config": {"bits": 4}}
    with pytest.raises(UnsupportedModel, match="quantization_config"):
        ModelConfig.from_hf(config)


def test_unknown_model_type_lists_the_supported():
    with pytest.raises(
        UnsupportedModel,
        match=r"^config\.json: model_type 'phi3' .*gemma3, gemma3_text, llama, mistral, mixtral, "
        r"olmoe, qwen2, qwen3, qwen3_moe, smollm3$",
    ):
        read("phi3")


@pytest.mark.parametrize(
    ("family", "more", "named"),
    [
        ("llama", {"hidden_size": "64"}, "hidden_size is '64', but must be an integer"),
        ("llama", {"hidden_size": 0}, "a hidden_size of 0"),
        ("llama", {"hidden_size": 60}, "8 heads do not divide a hidden_size of 60"),
        ("llama", {"head_dim": 7}, "head_dim is 7"),
        ("llama", {"head_dim": 0}, "head_dim is 0"),
        ("llama", {"num_hidden_layers": 2**40}, "num_hidden_layers is 1099511627776"),
        ("llama", {"num_key_value_heads": 3}, "8 heads cannot share 3 key heads"),
        ("llama", {"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, but must be finite"),
        ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ("llama", {"rope_scaling": [1]}, "rope_scaling is (1,), but must be an object"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
            "rope_type is 'linear', but type is 'yarn'",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 0.0}},
            "rope scaling factor is 0.0",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "x"}, "rope_parameters": {"type": "y"}},
            "rope_parameters and rope_scaling contradict",
        ),
        ("llama", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"layer_types": ["sliding_attention"] * 8}, "sliding_window is null"),
        ("mistral", {"sliding_window": 0}, "a window is smaller than 1"),
        ("gemma3_text", {"sliding_window": None}, "sliding_window is null"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0"),
        ("mixtral", {"num_local_experts": 4, "num_experts": 5}, "num_local_experts is 4"),
        ("mixtral", {"num_experts_per_tok": 9}, "9 of 8 experts are used"),
        ("smollm3", {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [2] * 8}, "no_rope_layers"),
        ("smollm3", {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
    ],
)
def test_broken_configurations(family, more, named):
    with pytest.raises(CheckpointError, match=rf"^config\.json: .*{re.escape(named)}"):
        read(family, **more)


@pytest.mark.parametrize("value", [2**63, 10**400, -(10**400)])
@pytest.mark.parametrize(
    ("family", "keys"),
    [
        *(("llama", [key]) for key in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
            "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
        )),
        ("mistral", ["sliding_window"]),
        ("mixtral", ["num_local_experts"]),
        ("qwen3_moe", ["moe_intermediate_size"]),
        ("llama", ["rope_scaling", "original_max_position_embeddings"]),
    ],
)  # fmt: skip
def test_integers_beyond_64_bits_are_refused_with_their_key(family, keys, value):
    more = _nested(keys, value)
    with pytest.raises(CheckpointError, match=rf"{re.escape('.'.join(keys))} is -?\d+.*more than"):
        read(family, **more)


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("llama", ["rms_norm_eps"]),
        ("llama", ["rope_theta"]),
        ("llama", ["partial_rotary_factor"]),
        ("llama", ["rope_scaling", "factor"]),
        ("llama", ["rope_scaling", "low_freq_factor"]),
        ("gemma3_text", ["query_pre_attn_scalar"]),
        ("gemma3_text", ["rope_local_base_freq"]),
    ],
)
def test_numbers_beyond_float64_are_refused_with_their_key(family, keys):
    with pytest.raises(CheckpointError, match=rf"{re.escape('.'.join(keys))} is 10+.*more than"):
        read(family, **_nested(keys, 10**400))


def _nested(keys, value):
    if len(keys) == 1:
        return {keys[0]: value}
    return {keys[0]: {
        "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, keys[1]: value,
    }}  # fmt: skip


def test_missing_model_type():
    with pytest.raises(CheckpointError, match="model_type is missing"):
        ModelConfig.from_hf(SMALL)
    with pytest.raises(CheckpointError, match="text_config"):
        ModelConfig.from_hf({"model_type": "gemma3"})


# ---- one thing said twice ----

LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
FAR, NEAR = {"rope_type": "default", "rope_theta": 2e6}, {"rope_theta": 3e4}


@pytest.mark.parametrize(
    ("family", "twice", "once"),
    [
        (
            "llama",
            {"rope_theta": 7e3, "rope_parameters": {"rope_type": "default", "rope_theta": 7e3}},
            {"rope_theta": 7e3},
        ),
        (
            "llama",
            {
                "rope_theta": 7000,
                "rope_scaling": {"type": "linear", "factor": 8},
                "rope_parameters": LINEAR | {"rope_theta": 7e3},
            },
            {"rope_theta": 7e3, "rope_scaling": LINEAR},
        ),
        (
            "llama",
            {
                "rope_scaling": YARN | {"beta_fast": 32, "type": "yarn", "rope_theta": 5e4},
                "rope_parameters": YARN | {"rope_theta": 5e4, "truncate": True, "mscale": None},
            },
            {"rope_theta": 5e4, "rope_scaling": YARN},
        ),
        # One place has the base, the other the scaling.
        (
            "llama",
            {"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 7e3}},
            {"rope_theta": 7e3, "rope_scaling": LINEAR},
        ),
        # What is null or empty says nothing.
        ("llama", {"rope_scaling": None, "rope_parameters": LINEAR}, {"rope_scaling": LINEAR}),
        ("llama", {"rope_scaling": {}, "rope_parameters": LINEAR}, {"rope_scaling": LINEAR}),
        ("llama", {"rope_scaling": LINEAR, "rope_parameters": None}, {"rope_scaling": LINEAR}),
        (
            "llama",
            {"rope_theta": None, "rope_parameters": {"rope_theta": 7e3}},
            {"rope_theta": 7e3},
        ),
        # The original context stands in the set or beside it.
        (
            "llama",
            {"rope_scaling": YARN, "original_max_position_embeddings": 512},
            {"rope_scaling": YARN},
        ),
        (
            "llama",
            {
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
                "original_max_position_embeddings": 512,
            },
            {"rope_scaling": YARN},
        ),
        ("llama", {"original_max_position_embeddings": 512}, {}),
        # A set for each kind of layer, and the two keys of version 4.
        (
            "gemma3_text",
            {
                "rope_theta": 2e6,
                "rope_local_base_freq": 3e4,
                "rope_parameters": {"full_attention": FAR, "sliding_attention": NEAR},
            },
            {"rope_theta": 2e6, "rope_local_base_freq": 3e4},
        ),
        (
            "gemma3_text",
            {
                "rope_scaling": LINEAR,
                "rope_parameters": {
                    "full_attention": LINEAR | {"rope_theta": 2e6},
                    "sliding_attention": NEAR | {"rope_type": "default"},
                },
            },
            {"rope_theta": 2e6, "rope_local_base_freq": 3e4, "rope_scaling": LINEAR},
        ),
        # Two sets that are one.
        (
            "mistral",
            {
                "rope_parameters": {
                    "full_attention": LINEAR | {"rope_theta": 7e3},
                    "sliding_attention": LINEAR | {"rope_theta": 7e3},
                }
            },
            {"rope_theta": 7e3, "rope_scaling": LINEAR},
        ),
        ("llama", {"torch_dtype": "bfloat16", "dtype": "float32"}, {}),
        ("mixtral", {"num_local_experts": 4, "num_experts": 4}, {"num_experts": 4}),
    ],
)
def test_what_is_said_twice_counts_once(family, twice, once):
    assert read(family, **twice) == read(family, **once)


@pytest.mark.parametrize(
    ("family", "more", "one", "other"),
    [
        (
            "llama",
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 7e3}},
            "rope_theta is 10000.0",
            "rope_parameters.rope_theta is 7000.0",
        ),
        (
            "llama",
            {"rope_theta": 1e4, "rope_scaling": LINEAR | {"rope_theta": 7e3}},
            "rope_theta is 10000.0",
            "rope_scaling.rope_theta is 7000.0",
        ),
        (
            "llama",
            {"rope_scaling": LINEAR, "rope_parameters": LINEAR | {"factor": 4.0}},
            "rope_parameters.factor is 4.0",
            "rope_scaling.factor is 8.0",
        ),
        (
            "llama",
            {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default"}},
            "rope_parameters.rope_type is 'default'",
            "rope_scaling.rope_type is 'linear'",
        ),
        # What the other one leaves out has its default.
        (
            "llama",
            {"rope_scaling": YARN, "rope_parameters": YARN | {"beta_fast": 16.0}},
            "rope_parameters.beta_fast is 16.0",
            "rope_scaling.beta_fast is 32.0",
        ),
        (
            "llama",
            {"rope_scaling": YARN, "original_max_position_embeddings": 1024},
            "original_max_position_embeddings is 1024",
            "rope_scaling.original_max_position_embeddings is 512",
        ),
        (
            "gemma3_text",
            {"rope_local_base_freq": 1e4, "rope_parameters": {"sliding_attention": NEAR}},
            "rope_parameters.sliding_attention.rope_theta is 30000.0",
            "rope_local_base_freq is 10000.0",
        ),
        (
            "gemma3_text",
            {"rope_theta": 1e6, "rope_parameters": {"full_attention": FAR}},
            "rope_theta is 1000000.0",
            "rope_parameters.full_attention.rope_theta is 2000000.0",
        ),
        (
            "gemma3_text",
            {"rope_scaling": LINEAR, "rope_parameters": {"full_attention": FAR}},
            "rope_parameters.full_attention.rope_type is 'default'",
            "rope_scaling.rope_type is 'linear'",
        ),
    ],
)
def test_contradictions_are_refused_with_both_values(family, more, one, other):
    with pytest.raises(CheckpointError, match=rf"^config\.json: .*{re.escape(one)}.*") as caught:
        read(family, **more)
    assert "contradict" in str(caught.value)
    assert other in str(caught.value)


# ---- what changes nothing ----


def test_what_every_configuration_of_transformers_has():
    """The attributes of its base class, with their defaults, and what trainers add."""
    more = {
        "_attn_implementation": "sdpa", "_attn_implementation_autoset": True,
        "_commit_hash": "abc", "_flash_attn_2_enabled": True, "_name_or_path": "org/name",
        "_pre_quantization_dtype": "bfloat16", "add_cross_attention": False,
        "architectures": ["LlamaForCausalLM"], "attn_implementation": "eager",
        "auto_map": {"AutoConfig": "x.Y"}, "bad_words_ids": None, "begin_suppress_tokens": [1, 2],
        "bos_token_id": 1, "chunk_size_feed_forward": 0, "classifier_dropout": 0.1,
        "cross_attention_hidden_size": None, "decoder_start_token_id": 3, "diversity_penalty": 0.0,
        "do_sample": True, "dropout": 0.1, "dtype": "bfloat16", "early_stopping": True,
        "encoder_no_repeat_ngram_size": 0, "eos_token_id": [2], "finetuning_task": "x",
        "forced_bos_token_id": 5, "forced_eos_token_id": 6, "gradient_checkpointing": True,
        "hidden_dropout_prob": 0.1, "id2label": {"0": "LABEL_0"}, "initializer_range": 0.02,
        "is_decoder": True, "is_encoder_decoder": False, "label2id": {"LABEL_0": 0},
        "length_penalty": 1.0, "max_length": 20, "max_new_tokens": 100, "min_length": 0,
        "neftune_noise_alpha": 5, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1,
        "num_labels": 2, "num_return_sequences": 1, "output_attentions": False,
        "output_hidden_states": True, "output_scores": False, "pad_token_id": 0, "prefix": "x",
        "problem_type": "single_label_classification", "pruned_heads": {},
        "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True,
        "return_dict_in_generate": False, "sep_token_id": None, "suppress_tokens": [1],
        "task_specific_params": {"x": {"y": 1}}, "temperature": 1.0, "tf_legacy_loss": False,
        "tie_encoder_decoder": True, "tokenizer_class": "LlamaTokenizer", "top_k": 50,
        "top_p": 1.0, "torch_dtype": "float16", "torchscript": True,
        "transformers_version": "4.57.1", "typical_p": 1.0, "unsloth_fixed": True,
        "unsloth_version": "2025.1", "use_bfloat16": True, "use_cache": False,
    }  # fmt: skip
    assert read(**more) == PLAIN


@pytest.mark.parametrize(
    ("key", "neutral", "other"),
    [
        ("residual_multiplier", 1.0, 0.22),
        ("embedding_multiplier", 1, 12),
        ("logits_scaling", 1.0, 8.0),
        ("routed_scaling_factor", 1.0, 2.5),
        ("num_nextn_predict_layers", 0, 1),
        ("n_shared_experts", 0, 1),
        ("scoring_func", "softmax", "sigmoid"),
        ("position_embedding_type", "rope", "alibi"),
        ("norm_type", "rmsnorm", "layernorm"),
        ("rope_interleaved", False, True),
        ("pruned_heads", {}, {"0": [1]}),
        ("is_encoder_decoder", False, True),
        ("a_switch_of_next_year", False, True),
        ("a_number_of_next_year", None, 0),
        ("an_object_of_next_year", {}, {"x": 1}),
        ("a_list_of_next_year", [], ["a"]),
        ("quantization", None, "nf4"),
    ],
)
def test_keys_with_a_neutral_value(key, neutral, other):
    assert read(**{key: neutral}) == PLAIN
    with pytest.raises(UnsupportedModel, match=rf"not implemented: {key} = "):
        read(**{key: other})


def test_unknown_texts_are_notes_and_told_once(caplog):
    with caplog.at_level("WARNING", "rml"):
        assert read(trained_by="us", licence="MIT", date="2026-11-30") == PLAIN
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage() == (
            "config.json: passed over, since they look like notes: date, licence, trained_by"
        )
        caplog.clear()
        assert read(tokenizer_class="x", unsloth_version="y") == PLAIN
        assert not caplog.records


def test_harmless_keys_of_published_files():
    """Bookkeeping that SmolLM2's, Qwen 3's and SmolLM3's configurations carry."""
    more = {
        "architectures": ["LlamaForCausalLM"], "attention_dropout": 0.1, "bos_token_id": 1,
        "eos_token_id": [2, 3], "initializer_range": 0.04, "is_llama_config": True,
        "max_window_layers": 28, "mlp_bias": False, "pad_token_id": None, "pretraining_tp": 2,
        "rope_interleaved": False, "rope_scaling": None, "torch_dtype": "bfloat16",
        "transformers.js_config": {"dtype": "q4"}, "transformers_version": "4.53.0",
        "use_cache": True, "use_sliding_window": False, "_name_or_path": "x",
    }  # fmt: skip
    assert read(**more) == PLAIN


def test_a_checkpoint_without_its_configuration(tmp_path):
    source = FIXTURES / "llama" / "hf" / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    with (
        open_checkpoint(tmp_path) as checkpoint,
        pytest.raises(CheckpointError, match=r"no config\.json beside the weights"),
    ):
        ModelConfig.from_checkpoint(checkpoint)


@pytest.mark.parametrize("family", sorted(DEFAULTS))
def test_both_files_of_a_toy_model_say_the_same(family):
    with open_checkpoint(FIXTURES / family / "hf") as checkpoint:
        hf = ModelConfig.from_checkpoint(checkpoint)
    with open_checkpoint(FIXTURES / family / "model.gguf") as checkpoint:
        gguf = ModelConfig.from_checkpoint(checkpoint)

    # GGUF stores Llama's rows in another order, epsilon in f32, and knows no Mistral.
    interleaved = family in ("llama", "mistral", "mixtral", "smollm3")
    assert gguf.rope_pairing == ("interleaved" if interleaved else "half")
    assert gguf.norm_eps == pytest.approx(hf.norm_eps, rel=1e-7)
    assert gguf.architecture == ("llama" if family == "mistral" else family)
    assert hf == dataclasses.replace(
        gguf, architecture=family, norm_eps=hf.norm_eps, rope_pairing="half"
    )


@pytest.mark.parametrize(
    "name",
    [
        "gemma3-linear", "llama-untied", "mistral-nemo-headdim", "qwen2-bias-tied", "qwen3moe",
        "smollm3-nope",
    ],
)  # fmt: skip
def test_both_files_of_a_case_say_the_same(cases_dir, name):
    folder = cases_dir / "tiny" / name
    hf = ModelConfig.from_hf(json.loads((folder / "hf" / "config.json").read_text()))
    with open_checkpoint(folder / "model.gguf") as checkpoint:
        gguf = ModelConfig.from_checkpoint(checkpoint)

    assert math.isclose(gguf.norm_eps, hf.norm_eps, rel_tol=1e-7)
    assert hf == dataclasses.replace(
        gguf, architecture=hf.architecture, norm_eps=hf.norm_eps, rope_pairing="half"
    )


# ---- numbers that are no measure of what is there ----


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"num_hidden_layers": 1000}, "config.json says 1000 layers, but the checkpoint holds 21"),
        (
            {"model_type": "mixtral", "num_local_experts": 64, "num_hidden_layers": 100},
            "100 layers of 64 experts, but the checkpoint holds 21 tensors",
        ),
    ],
)
def test_layers_and_experts_are_compared_with_the_tensors(tmp_path, more, named):
    folder = shutil.copytree(FIXTURES / "llama" / "hf", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    with open_checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match=named):
        ModelConfig.from_checkpoint(checkpoint)


@pytest.mark.parametrize(
    "more",
    [
        {f"key{i:05d}": 1 for i in range(60_000)},
        {f"key{i:05d}": "a note" for i in range(60_000)} | {"odd": 1},
        {"layer_types": ["y" * 10**6] * 8},
        {"hidden_act": "y" * 10**6},
        {"rope_scaling": {"rope_type": "y" * 10**6, "factor": 2.0}},
        {"rope_scaling": {"rope_type": "y" * 10**6, "type": [[["z"]]] * 9999}},
        {"odd": {str(i): [i] for i in range(10_000)}},
        {"z" * 10**6: 1},
    ],
)
def test_messages_stay_short(more):
    with pytest.raises((CheckpointError, UnsupportedModel)) as caught:
        read(**more)
    assert len(str(caught.value)) < 4000


def test_notes_are_told_in_one_line_however_many(caplog):
    read(**{f"key{i:05d}": "a note" for i in range(60_000)})

    assert "key00000, key00001" in caplog.text
    assert "and 59,980 more" in caplog.text
    assert len(caplog.text) < 1000

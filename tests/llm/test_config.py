"""What a configuration checks and computes: limits, parameters, a rotary table for each layer."""

import dataclasses
import math

import numpy as np
import pytest

from rml.errors import CheckpointError, UnsupportedModel
from rml.files import open_checkpoint
from rml.llm.config import ModelConfig, RopeScaling

TOY = ModelConfig(
    architecture="llama",
    n_layers=4,
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
    rope_pairing="half",
)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_vocab": -1}, "n_vocab is -1"),
        ({"d_model": 0}, "d_model is 0"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"n_kv_heads": 0}, "n_kv_heads is 0"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"d_ffn": 0}, "d_ffn is 0"),
        ({"n_ctx_train": 0}, "n_ctx_train is 0"),
        ({"n_vocab": 2**31}, "n_vocab is 2147483648, more than any model has"),
        ({"n_kv_heads": 3}, "8 heads cannot share 3 key heads"),
        ({"head_dim": 7}, "head_dim is 7, but a rotation needs pairs"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"norm_eps": math.nan}, "norm_eps is nan"),
        ({"attention_scale": -1.0}, "attention_scale is -1.0"),
        ({"embedding_scale": 0.0}, "embedding_scale is 0.0"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({"rope_local_theta": math.inf}, "rope_local_theta is inf"),
        ({"windows": (4,) * 3}, "3 window entries for 4 layers"),
        ({"windows": (4, None, 0, 4)}, "a window is smaller than 1"),
        ({"rope_layers": (True,)}, "1 rope entries for 4 layers"),
        ({"n_experts": 4}, "0 of 4 experts are used"),
        ({"n_experts": 4, "n_experts_used": 5, "d_expert_ffn": 8}, "5 of 4 experts"),
        ({"n_experts": 4, "n_experts_used": 2}, "d_expert_ffn is 0"),
        ({"rope_scaling": RopeScaling(type="linear", factor=0.0)}, "factor is 0.0"),
        ({"rope_scaling": RopeScaling(type="linear", factor=math.inf)}, "factor is inf"),
        ({"rope_scaling": RopeScaling(type="yarn", factor=2.0)}, "needs the original context"),
        ({"rope_scaling": RopeScaling(type="llama3", factor=2.0)}, "needs the original context"),
        ({"rope_scaling": RopeScaling(type="dynamic", factor=2.0)}, "needs the original context"),
        (
            {"rope_scaling": RopeScaling(type="dynamic", original_context=8), "head_dim": 2},
            "head_dim above 2",
        ),
        (
            {"rope_scaling": RopeScaling(type="llama3", original_context=8, low_freq_factor=4.0)},
            "high_freq_factor 4.0 is not above low_freq_factor 4.0",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=8, beta_slow=0.0)},
            "beta_slow is 0.0",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=1), "head_dim": 64},
            "ramp would run from pair 0 down to -5",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=8, attention_factor=0.0)},
            "attention_factor is 0.0",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=8, mscale=-1.0)},
            "mscale is -1.0",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=8), "rope_theta": 1.0},
            "yarn needs one above 1",
        ),
        (
            {"rope_scaling": RopeScaling(type="yarn", original_context=2**60)},
            "ramp would run from pair 13 down to 7",
        ),
        ({"rope_scaling": RopeScaling(type="divisors", divisors=(1.0,))}, "1 frequency divisors"),
        (
            {"rope_scaling": RopeScaling(type="divisors", divisors=(1.0, 1.0, 1.0, -1.0))},
            "divisors must be positive",
        ),
    ],
)
def test_contradictions(change, named):
    with pytest.raises(CheckpointError, match=named):
        dataclasses.replace(TOY, **change).validate("toy.gguf")


def test_all_contradictions_are_told_at_once():
    broken = dataclasses.replace(TOY, n_kv_heads=3, norm_eps=0.0, windows=(1,))
    with pytest.raises(CheckpointError, match=r"^toy: llama model: norm_eps .*; 8 heads .*; 1 win"):
        broken.validate("toy")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"head_dim": 514}, "head_dim is 514"),
        ({"n_experts": 257, "n_experts_used": 1, "d_expert_ffn": 8}, "257 experts"),
        ({"n_layers": 1025}, "1025 layers"),
        (
            {"n_layers": 129, "n_experts": 256, "n_experts_used": 1, "d_expert_ffn": 8},
            "33024 experts in all layers",
        ),
        ({"n_vocab": (1 << 21) + 1}, "2097153 tokens in the vocabulary"),
        ({"d_model": (1 << 17) + 1}, "d_model is 131073, but at most 131072"),
        ({"d_ffn": 1 << 30}, "d_ffn is 1073741824"),
        ({"n_heads": 1 << 16}, r"n_heads \* head_dim is 524288"),
        ({"n_heads": 1 << 16, "n_kv_heads": 1 << 16}, r"n_kv_heads \* head_dim is 524288"),
        (
            {"n_experts": 2, "n_experts_used": 1, "d_expert_ffn": 1 << 19},
            "d_expert_ffn is 524288",
        ),
    ],
)
def test_limits(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        dataclasses.replace(TOY, **change).validate()


@pytest.mark.parametrize(
    "change",
    [
        {"n_heads": 32, "n_kv_heads": 2},
        {"head_dim": 512},
        {"head_dim": 2},
        {"d_ffn": 1, "n_layers": 1024, "n_vocab": 1 << 21},
        {"n_experts": 1, "n_experts_used": 1, "d_expert_ffn": 1, "d_ffn": 0},
        {"n_experts": 256, "n_experts_used": 256, "d_expert_ffn": 8, "d_ffn": 0},
        {"windows": (1, None, 1, 1), "rope_layers": (False,) * 4},
    ],
)
def test_the_limits_themselves_are_sound(change):
    dataclasses.replace(TOY, **change).validate()


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TOY.n_layers = 5


# Published sizes, and the numbers of parameters that their model cards and index files give.
PUBLISHED = {
    "SmolLM2 135M": (
        134_515_008,
        {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
         "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
         "tie_word_embeddings": True},
    ),
    "Llama 3.1 8B": (
        8_030_261_248,
        {"model_type": "llama", "vocab_size": 128256, "intermediate_size": 14336,
         "num_key_value_heads": 8},
    ),
    "Mistral 7B": (7_241_732_096, {"model_type": "mistral"}),
    "Mixtral 8x7B": (46_702_792_704, {"model_type": "mixtral"}),
    "Qwen2 0.5B": (
        494_032_768,
        {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
         "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
         "tie_word_embeddings": True},
    ),
    "Qwen3 0.6B": (
        596_049_920,
        {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
         "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
         "tie_word_embeddings": True},
    ),
    "Qwen3 30B A3B": (
        30_532_122_624,
        {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128},
    ),
    "Gemma 3 1B": (
        999_885_952,
        {"model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152,
         "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1},
    ),
    "OLMoE 1B 7B": (6_919_161_856, {"model_type": "olmoe", "intermediate_size": 1024}),
    "SmolLM3 3B": (3_075_098_624, {"model_type": "smollm3"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count(name):
    expected, config = PUBLISHED[name]

    assert ModelConfig.from_hf(config).parameter_count() == expected


def test_parameter_count_of_a_file(smollm2_path):
    with open_checkpoint(smollm2_path) as checkpoint:
        stored = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())

        assert ModelConfig.from_checkpoint(checkpoint).parameter_count() == stored


def test_one_rope_for_all_layers():
    ropes = TOY.ropes()

    assert len(ropes) == 4
    assert len({id(rope) for rope in ropes}) == 1
    np.testing.assert_allclose(ropes[0].inv_freq, [1, 50000**-0.25, 50000**-0.5, 50000**-0.75])


def test_local_and_global_ropes():
    config = dataclasses.replace(
        TOY,
        windows=(8, None, 8, None),
        rope_local_theta=10000.0,
        rope_scaling=RopeScaling(type="linear", factor=8.0),
    )
    near, far, *again = config.ropes()

    assert again == [near, far]
    np.testing.assert_allclose(near.inv_freq, 10000.0 ** -np.array([0, 0.25, 0.5, 0.75]))
    np.testing.assert_allclose(far.inv_freq, 50000.0 ** -np.array([0, 0.25, 0.5, 0.75]) / 8)


def test_windows_alone_do_not_change_the_rope():
    config = dataclasses.replace(TOY, windows=(8, None, 8, None))

    assert len({id(rope) for rope in config.ropes()}) == 1


def test_layers_without_rotation():
    ropes = dataclasses.replace(TOY, rope_layers=(True, False, True, False)).ropes()

    assert [rope is None for rope in ropes] == [False, True, False, True]


def test_the_context_of_a_session_matters_to_dynamic_scaling_alone():
    dynamic = RopeScaling(type="dynamic", factor=2.0, original_context=2048)
    config = dataclasses.replace(TOY, rope_scaling=dynamic)
    (plain, *_), (short, *_) = TOY.ropes(), config.ropes(n_ctx=2048)
    (long, *_), (default, *_) = config.ropes(n_ctx=8192), config.ropes()

    np.testing.assert_array_equal(short.inv_freq, plain.inv_freq)
    np.testing.assert_array_equal(default.inv_freq, plain.inv_freq)
    assert (long.inv_freq[1:] < plain.inv_freq[1:]).all()
    np.testing.assert_array_equal(TOY.ropes(n_ctx=8192)[0].inv_freq, plain.inv_freq)

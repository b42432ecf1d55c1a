"""The toy models of the tests: a table of families, and how their weights are made.

A family is one entry of FAMILIES; a variant (same weights, other config) is one entry of its
`variants`. Every weight is exact in both bf16 and f16, so that a Hugging Face folder and a GGUF
file can hold one model.
"""

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from toy_tokenizer import BOS, EOS, TOKENS

__all__ = ["FAMILIES", "Family", "head_dim_of", "toy_config", "toy_weights"]

SMALLEST = 2.0**-14  # f16 may not hold smaller bf16 values exactly

BASE = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A toy model.

    Attributes
    ----------
    model_class : str
        Transformers' class, for config.json.
    arch : str
        ``general.architecture`` in GGUF.
    config : dict
        What differs from BASE in config.json, ``model_type`` included.
    gguf : dict
        Keys of the GGUF file without the architecture, beyond those every file has.
    formats : tuple of str
        Block formats of further GGUF files.
    variants : dict
        By name: ``config`` keys to set in config.json; ``gguf`` keys to set in model.gguf
        (without the architecture; absent if GGUF has no word for it; ``rope_freqs.weight`` is a
        tensor of divisors, made from the config); ``n_ctx`` of the session, if it matters.
    """

    model_class: str
    arch: str
    config: dict[str, Any]
    gguf: dict[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA_VARIANTS = {
    "linear": {
        "config": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        "gguf": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    },
    "yarn": {
        "config": {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 8.0,
                "beta_slow": 0.1,
            },
            "max_position_embeddings": 256,
        },
        "gguf": {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 8.0,
            "rope.scaling.yarn_beta_slow": 0.1,
        },
    },
    "llama3": {
        "config": {"rope_scaling": LLAMA3_ROPE},
        "gguf": {"rope_freqs.weight": "from config"},
    },
    "dynamic": {
        "config": {
            "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
            "max_position_embeddings": 8,
        },
        "n_ctx": 64,
    },
}

FAMILIES = {
    "llama": Family(
        model_class="LlamaForCausalLM",
        arch="llama",
        config={"model_type": "llama", "intermediate_size": 64},
        formats=("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
        variants=LLAMA_VARIANTS,
    ),
    "mistral": Family(
        model_class="MistralForCausalLM",
        arch="llama",
        config={
            "model_type": "mistral",
            "head_dim": 12,
            "sliding_window": 5,
            "tie_word_embeddings": True,
        },
        gguf={"attention.sliding_window": 5},
    ),
    "mixtral": Family(
        model_class="MixtralForCausalLM",
        arch="llama",
        config={
            "model_type": "mixtral",
            "intermediate_size": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
        gguf={"expert_count": 4, "expert_used_count": 2},
    ),
    "qwen2": Family(
        model_class="Qwen2ForCausalLM",
        arch="qwen2",
        config={"model_type": "qwen2", "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
    ),
    "qwen3": Family(
        model_class="Qwen3ForCausalLM",
        arch="qwen3",
        config={
            "model_type": "qwen3",
            "rms_norm_eps": 1e-6,
            "head_dim": 16,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_moe": Family(
        model_class="Qwen3MoeForCausalLM",
        arch="qwen3moe",
        config={
            "model_type": "qwen3_moe",
            "rms_norm_eps": 1e-6,
            "head_dim": 16,
            "moe_intermediate_size": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "tie_word_embeddings": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        gguf={"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 16},
    ),
    "gemma3_text": Family(
        model_class="Gemma3ForCausalLM",
        arch="gemma3",
        config={
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "intermediate_size": 16,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "head_dim": 16,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 16,
            "sliding_window": 4,
            "sliding_window_pattern": 6,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
        },
        gguf={"attention.sliding_window": 4},
    ),
    "olmoe": Family(
        model_class="OlmoeForCausalLM",
        arch="olmoe",
        config={
            "model_type": "olmoe",
            "intermediate_size": 16,
            "num_key_value_heads": 4,
            "num_experts": 4,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "clip_qkv": None,
        },
        gguf={"expert_count": 4, "expert_used_count": 3},
    ),
    "smollm3": Family(
        model_class="SmolLM3ForCausalLM",
        arch="smollm3",
        config={
            "model_type": "smollm3",
            "num_hidden_layers": 5,
            "intermediate_size": 16,
            "rms_norm_eps": 1e-6,
            "rope_theta": 50000.0,
            "no_rope_layers": [1, 1, 1, 0, 1],
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
    ),
}


# Weights. Names are those of the Hugging Face file; GGUF is made from them.


def toy_config(family: Family) -> dict[str, Any]:
    """Return what config.json says."""
    config = {"architectures": [family.model_class]} | BASE | family.config
    if "hidden_activation" in config:
        del config["hidden_act"]
    return config


def head_dim_of(config: dict[str, Any]) -> int:
    return config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])


def exact(values: np.ndarray) -> np.ndarray:
    """Round to bf16, half to even; values that f16 could not hold become 0."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    rounded = bits.view(np.float32)
    return np.where(np.abs(rounded) < SMALLEST, np.float32(0.0), rounded)


def toy_weights(name: str, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Make random weights, large enough that every part of a block moves the logits."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    d_model, vocab = config["hidden_size"], config["vocab_size"]
    width, heads = head_dim_of(config), config["num_attention_heads"]
    kv_rows = config["num_key_value_heads"] * width
    kind = config["model_type"]
    norm_mean = 0.0 if kind == "gemma3_text" else 1.0
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0) -> None:
        weights[name] = exact(rng.standard_normal((rows, cols)) * gain / cols**0.5)

    def norm(name: str, size: int) -> None:
        weights[name] = exact(norm_mean + 0.3 * rng.standard_normal(size))

    def ffn(prefix: str, names: tuple[str, str, str], size: int) -> None:
        gate, up, down = names
        matrix(f"{prefix}.{gate}.weight", size, d_model, 1.5)
        matrix(f"{prefix}.{up}.weight", size, d_model, 1.5)
        matrix(f"{prefix}.{down}.weight", d_model, size, 1.5)

    matrix("model.embed_tokens.weight", vocab, d_model, 4.0)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        norm(f"{layer}.input_layernorm.weight", d_model)
        norm(f"{layer}.post_attention_layernorm.weight", d_model)
        matrix(f"{layer}.self_attn.q_proj.weight", heads * width, d_model, 2.0)
        matrix(f"{layer}.self_attn.k_proj.weight", kv_rows, d_model, 2.0)
        matrix(f"{layer}.self_attn.v_proj.weight", kv_rows, d_model, 1.5)
        matrix(f"{layer}.self_attn.o_proj.weight", d_model, heads * width, 1.5)
        if kind == "qwen2":
            for part, rows in (("q", heads * width), ("k", kv_rows), ("v", kv_rows)):
                bias = 0.5 * rng.standard_normal(rows)
                weights[f"{layer}.self_attn.{part}_proj.bias"] = exact(bias)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            norm(f"{layer}.self_attn.q_norm.weight", width)
            norm(f"{layer}.self_attn.k_norm.weight", width)
        if kind == "olmoe":
            norm(f"{layer}.self_attn.q_norm.weight", heads * width)
            norm(f"{layer}.self_attn.k_norm.weight", kv_rows)
        if kind == "gemma3_text":
            norm(f"{layer}.pre_feedforward_layernorm.weight", d_model)
            norm(f"{layer}.post_feedforward_layernorm.weight", d_model)
        if kind == "mixtral":
            moe = f"{layer}.block_sparse_moe"
            matrix(f"{moe}.gate.weight", config["num_local_experts"], d_model, 2.0)
            for e in range(config["num_local_experts"]):
                ffn(f"{moe}.experts.{e}", ("w1", "w3", "w2"), config["intermediate_size"])
        elif kind in ("qwen3_moe", "olmoe"):
            matrix(f"{layer}.mlp.gate.weight", config["num_experts"], d_model, 2.0)
            size = config.get("moe_intermediate_size", config["intermediate_size"])
            for e in range(config["num_experts"]):
                ffn(f"{layer}.mlp.experts.{e}", ("gate_proj", "up_proj", "down_proj"), size)
        else:
            names = ("gate_proj", "up_proj", "down_proj")
            ffn(f"{layer}.mlp", names, config["intermediate_size"])
    norm("model.norm.weight", d_model)
    if not config["tie_word_embeddings"]:
        matrix("lm_head.weight", vocab, d_model, 2.0)
    return weights

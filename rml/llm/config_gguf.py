"""GGUF metadata -> the fields of a `ModelConfig`.

A key ``<arch>.*`` is one of three: read here; without effect on the arithmetic (`_HARMLESS`) or
refused unless it has the value at which it has none (`_NEUTRAL`); or unknown, and then the file is
refused by naming it. Switches that GGUF has no key for are read off the tensor table. Where a key
is missing, the default is llama.cpp's, since its converter wrote the file.

Sources: the GGUF specification (ggml, docs/gguf.md) and llama.cpp's loader (llama-model.cpp,
src/models) for the meaning of the keys and their defaults.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rml._kernels.pages import MAX_HEAD_DIM
from rml.errors import CheckpointError, UnsupportedModel
from rml.files.limits import MAX_LAYERS
from rml.files.strict_json import brief
from rml.llm.config_keys import Keys
from rml.llm.rope import RopeScaling

__all__ = ["fields_from_gguf"]


@dataclass(frozen=True, slots=True)
class _Family:
    """What a GGUF architecture implies beyond its keys."""

    name: str
    rope_pairing: str = "half"
    experts: bool = False
    normalize_expert_weights: bool = True
    activation: str = "silu"


# llama.cpp's converter permutes the q and k rows of the first and the last, so that pairs adjoin.
_FAMILIES = {
    "llama": _Family("llama", rope_pairing="interleaved"),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3"),
    "qwen3moe": _Family("qwen3_moe", experts=True),
    "gemma3": _Family("gemma3_text", activation="gelu_tanh"),
    "olmoe": _Family("olmoe", experts=True, normalize_expert_weights=False),
    "smollm3": _Family("smollm3", rope_pairing="interleaved"),
}

# Keys without effect on the logits: bookkeeping; the vocabulary's size, which is the number of rows
# of the embedding; the epsilon of another kind of norm, and what encoders and classifiers read.
_HARMLESS = frozenset({
    "attention.layer_norm_epsilon", "classifier.output_labels", "decoder_start_token_id",
    "pooling_type", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size",
    # Of experts, in a model that has none; else they are read.
    "expert_used_count", "expert_feed_forward_length", "expert_weights_norm",
})  # fmt: skip

# Keys that would change the arithmetic, and the values at which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_gating_func": (1,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "interleave_moe_layer_step": (1,),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.yarn_ext_factor": (1, -1),
    "rope.scaling.yarn_attn_factor": (1, -1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "swin_norm": (False,),
    "use_parallel_residual": (False,),
}

# Tensors whose presence means arithmetic that is not implemented.
_REFUSED_TENSORS = {
    "blk.0.attn_output.bias": "a bias on the attention output",
    "blk.0.attn_qkv.weight": "query, key and value in one matrix",
    "blk.0.attn_sinks.weight": "attention sinks",
    "blk.0.ffn_gate_shexp.weight": "shared experts",
    "blk.0.ffn_gate.bias": "biases in the feed-forward network",
    "blk.0.ffn_up.bias": "biases in the feed-forward network",
    "blk.0.ffn_down.bias": "biases in the feed-forward network",
    "rope_factors_long.weight": "rope scaling 'longrope'",
    "rope_factors_short.weight": "rope scaling 'longrope'",
}

_GEMMA_PATTERN = 6  # llama.cpp: five layers with a window, then one without
_GEMMA_LOCAL_THETA = 10_000.0
_GEMMA_27B_LAYERS = 62
_SMOLLM3_INTERVAL = 4  # llama.cpp: every fourth layer is not rotated


def fields_from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:
    """Read the keyword arguments of `ModelConfig`; see `ModelConfig.from_gguf`."""
    arch = metadata.get("general.architecture")
    where = f"{path}: " if path else ""
    if not isinstance(arch, str) or not arch:
        raise CheckpointError(f"{where}metadata key general.architecture is missing; not a model?")
    if arch not in _FAMILIES:
        raise UnsupportedModel(
            f"{where}architecture {brief(arch)} is not supported; supported are "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    family = _FAMILIES[arch]
    keys = Keys(metadata, path, prefix=f"{arch}.")
    for name, meaning in _REFUSED_TENSORS.items():
        if name in tensors:
            raise keys.refuse(f"tensor {name} means {meaning}, which is not implemented")

    n_layers = keys.integer("block_count")
    if not 0 < n_layers <= min(MAX_LAYERS, len(tensors)):
        raise keys.fail(
            f"{arch}.block_count is {n_layers}, but the file holds {len(tensors)} tensors"
            if n_layers > len(tensors)
            else f"{arch}.block_count is {n_layers}, but must be from 1 to {MAX_LAYERS}"
        )
    d_model = keys.integer("embedding_length")
    n_heads = keys.integer("attention.head_count")
    head_dim = _head_dim(keys, d_model, n_heads)
    n_experts = keys.integer("expert_count", 0)
    d_ffn = keys.integer("feed_forward_length", 0 if n_experts else None)
    found = {
        "architecture": "mixtral" if arch == "llama" and n_experts else family.name,
        "n_layers": n_layers,
        "n_vocab": _shape(tensors, "token_embd.weight", 2, keys)[0],
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": keys.integer("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "d_ffn": d_ffn,
        "n_ctx_train": keys.integer("context_length"),
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "activation": family.activation,
        "attention_scale": keys.number("attention.scale", 0.0) or head_dim**-0.5,
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "rope_pairing": family.rope_pairing,
        "rope_scaling": _rope_scaling(keys, tensors, head_dim),
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "qk_norm": _qk_norm(tensors, head_dim, keys),
        "sandwich_norms": arch == "gemma3",
        "tied_head": "output.weight" not in tensors,
    }
    if n_experts or family.experts:
        found.update(_experts(keys, tensors, family, n_experts, d_ffn))
    if arch == "llama" and (window := keys.integer("attention.sliding_window", 0)):
        found["windows"] = (window,) * n_layers
    if arch == "gemma3":
        found.update(_gemma(keys, n_layers, d_model, n_heads))
    if arch == "smollm3":
        found["rope_layers"] = tuple(
            (layer + 1) % _SMOLLM3_INTERVAL != 0 for layer in range(n_layers)
        )
    if arch not in ("llama", "gemma3") and keys.integer("attention.sliding_window", 0):
        raise keys.refuse(f"{arch}.attention.sliding_window is not implemented")
    keys.refuse_all(
        {
            key: value
            for key, value in keys.unread()
            if key not in _HARMLESS and value not in _NEUTRAL.get(key, ())
        }
    )
    return found


def _shape(tensors: Mapping[str, Any], name: str, rank: int, keys: Keys) -> tuple[int, ...]:
    if name not in tensors:
        raise keys.fail(f"tensor {name!r} is missing")
    shape = tuple(int(size) for size in tensors[name].shape)
    if len(shape) != rank:
        raise keys.fail(f"tensor {name!r} has shape {shape}, but must have {rank} dimensions")
    return shape


def _head_dim(keys: Keys, d_model: int, n_heads: int) -> int:
    """Size of a head; keys, values and the rotation must share it."""
    if n_heads < 1 or d_model < 1:
        raise keys.fail(f"the model has {n_heads} heads and an embedding of {d_model} values")
    head_dim = keys.integer("attention.key_length", d_model // n_heads)
    if keys.get("attention.key_length") is None and d_model % n_heads:
        raise keys.fail(f"{n_heads} heads do not divide an embedding of {d_model} values")
    if head_dim < 1:
        raise keys.fail(f"a head has {head_dim} dimensions")
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        if (length := keys.integer(key, head_dim)) != head_dim:
            raise keys.refuse(
                f"{key} is {length} where attention.key_length is {head_dim}: "
                "unequal heads are not implemented"
            )
    for key in ("rope.dimension_count", "rope.dimension_count_swa"):
        if (rotated := keys.integer(key, head_dim)) != head_dim:
            raise keys.refuse(
                f"{key} is {rotated} of {head_dim} dimensions: "
                "partial rotary embedding is not implemented"
            )
    return head_dim


def _qk_norm(tensors: Mapping[str, Any], head_dim: int, keys: Keys) -> str:
    if "blk.0.attn_q_norm.weight" not in tensors:
        return "none"
    (length,) = _shape(tensors, "blk.0.attn_q_norm.weight", 1, keys)
    return "head" if length == head_dim else "whole"


def _experts(
    keys: Keys, tensors: Mapping[str, Any], family: _Family, n_experts: int, d_ffn: int
) -> dict[str, Any]:
    """Keys of a mixture of experts; all layers have them."""
    if n_experts < 1:
        raise keys.fail(f"{family.name} model: expert_count is missing or {n_experts}")
    together = tensors.get("blk.0.ffn_gate_exps.weight")
    stored = len(tensors) if together is None else together.shape[0] if together.shape else 0
    if n_experts > stored:
        raise keys.fail(
            f"{family.name} model: expert_count is {n_experts}, but the tensors hold {stored}"
        )
    used = keys.integer("expert_used_count")
    # Qwen 3's feed_forward_length is that of all chosen experts together; the others' of one.
    share = max(used, 1) if family.name == "qwen3_moe" else 1
    return {
        "n_experts": n_experts,
        "n_experts_used": used,
        "d_expert_ffn": keys.integer("expert_feed_forward_length", d_ffn // share),
        "d_ffn": 0,
        "normalize_expert_weights": keys.flag(
            "expert_weights_norm", family.normalize_expert_weights
        ),
    }


def _gemma(keys: Keys, n_layers: int, d_model: int, n_heads: int) -> dict[str, Any]:
    """Gemma 3: embedding scale, and layers of two kinds."""
    found: dict[str, Any] = {"embedding_scale": math.sqrt(d_model)}
    if not keys.number("attention.scale", 0.0) and n_layers == _GEMMA_27B_LAYERS:
        # The one size whose queries are scaled by the width of an even share, not of a head.
        found["attention_scale"] = (d_model // n_heads) ** -0.5
    window = keys.integer("attention.sliding_window", 0)
    local_theta = keys.number("rope.freq_base_swa", _GEMMA_LOCAL_THETA)
    local = _local_layers(keys, n_layers)
    if window:
        found["windows"] = tuple(window if flag else None for flag in local)
        found["rope_local_theta"] = local_theta
    return found


def _local_layers(keys: Keys, n_layers: int) -> tuple[bool, ...]:
    """Tell which layers have a window: by a period, whose last layer has none, or by flags."""
    key = "attention.sliding_window_pattern"
    pattern = keys.get(key)
    if isinstance(pattern, tuple):
        if len(pattern) != n_layers or any(flag not in (0, 1) for flag in pattern):
            raise keys.fail(f"gemma3.{key} must hold one flag for each of {n_layers} layers")
        return tuple(bool(flag) for flag in pattern)
    period = keys.integer(key, _GEMMA_PATTERN)
    if period < 1:
        raise keys.fail(f"gemma3.{key} is {period}, but must be positive")
    return tuple((layer + 1) % period != 0 for layer in range(n_layers))


def _rope_scaling(keys: Keys, tensors: Mapping[str, Any], head_dim: int) -> RopeScaling | None:
    """Scaling of the rotary frequencies, by keys or by a tensor of divisors."""
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 0.0)
    # llama.cpp takes a factor without a type as linear, and a missing or zero factor as 1.
    kind = keys.get("rope.scaling.type") or "linear"
    original = keys.integer("rope.scaling.original_context_length", 0)
    stretch = keys.number("rope.scaling.attn_factor", 1.0)
    beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    factor = factor or 1.0
    scaling = None
    if kind == "yarn":
        growth = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        scaling = RopeScaling(
            type="yarn",
            factor=factor,
            original_context=original or keys.integer("context_length"),
            beta_fast=beta_fast,
            beta_slow=beta_slow,
            attention_factor=growth * stretch,
        )
    elif kind not in ("none", "linear"):
        raise keys.refuse(f"rope.scaling.type {brief(kind)} is not implemented")
    elif stretch != 1.0:
        raise keys.refuse(f"rope.scaling.attn_factor {stretch} without yarn is not implemented")
    elif kind == "linear" and factor != 1.0:
        scaling = RopeScaling(type="linear", factor=factor)

    if "rope_freqs.weight" in tensors and head_dim <= MAX_HEAD_DIM:  # a larger one is refused
        if scaling is not None:
            raise keys.refuse(
                f"rope_freqs.weight beside rope scaling {brief(kind)} is not implemented"
            )
        (length,) = _shape(tensors, "rope_freqs.weight", 1, keys)
        if length != head_dim // 2:
            raise keys.fail(
                f"tensor 'rope_freqs.weight' has {length} values, expected {head_dim // 2}: "
                "one for each pair of a head's dimensions"
            )
        divisors = tensors["rope_freqs.weight"].numpy()
        scaling = RopeScaling(type="divisors", divisors=tuple(float(value) for value in divisors))
    return scaling

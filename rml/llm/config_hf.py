"""Hugging Face ``config.json`` -> the fields of a `ModelConfig`.

What a file leaves out has the default of the family's configuration class in Transformers, because
a saved file omits what equals it. A key is read; or in `_HARMLESS`; or refused unless it is null,
false or empty: what nobody reads might change the arithmetic.

Source: configuration_*.py, modeling_*.py and modeling_rope_utils.py of Transformers, in the
spellings of versions 4 and 5.
"""

import math
from collections.abc import Mapping
from typing import Any

from rml.errors import CheckpointError, UnsupportedModel
from rml.llm.config_keys import Keys
from rml.llm.config_limits import MAX_LAYERS
from rml.llm.rope import RopeScaling

__all__ = ["fields_from_hf"]

# In this order: vocabulary, hidden size, feed-forward size, layers, heads, key heads, size of a
# head, positions, epsilon, theta, tied head. None: as many key heads as heads; an even share of
# the hidden size for each head.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "llama": (32000, 4096, 11008, 32, 32, None, None, 2048, 1e-6, 1e4, False),
    "mistral": (32000, 4096, 14336, 32, 32, 8, None, 131072, 1e-6, 1e4, False),
    "mixtral": (32000, 4096, 14336, 32, 32, 8, None, 131072, 1e-5, 1e6, False),
    "qwen2": (151936, 4096, 22016, 32, 32, 32, None, 32768, 1e-6, 1e4, False),
    "qwen3": (151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, 1e4, False),
    "qwen3_moe": (151936, 2048, 6144, 24, 32, 4, None, 32768, 1e-6, 1e4, False),
    "gemma3_text": (262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, 1e6, True),
    "olmoe": (50304, 2048, 2048, 16, 16, None, None, 4096, 1e-5, 1e4, False),
    "smollm3": (128256, 2048, 11008, 36, 16, 4, None, 32768, 1e-6, 2e6, True),
}
_EXPERTS = {"mixtral": (8, 2), "qwen3_moe": (128, 8), "olmoe": (64, 8)}  # in all, of a token
_WINDOWS = {"mistral": 4096, "gemma3_text": 4096}
_QK_NORMS = {"qwen3": "head", "qwen3_moe": "head", "gemma3_text": "head", "olmoe": "whole"}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_SLIDING = "sliding_attention"

# Without effect on the logits: bookkeeping, training, generation, the tokenizer, images.
_HARMLESS = frozenset({
    "architectures", "attn_implementation", "auto_map", "cache_implementation", "dtype", "id2label",
    "initializer_range", "is_decoder", "is_llama_config", "label2id", "max_sequence_length",
    "max_window_layers", "model_max_length", "model_type", "name_or_path", "output_router_logits",
    "pretraining_tp", "router_aux_loss_coef", "router_jitter_noise", "task_specific_params",
    "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version",
    "unsloth_fixed", "unsloth_version", "use_cache",
    # Settings of generation that older versions kept here.
    "chunk_size_feed_forward", "diversity_penalty", "encoder_no_repeat_ngram_size",
    "finetuning_task", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "problem_type", "repetition_penalty", "return_dict", "temperature",
    "top_k", "top_p", "typical_p",
})  # fmt: skip
_HARMLESS_ENDS = ("_token_id", "_token_index", "_dropout", "_pdrop")


def fields_from_hf(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Read the keyword arguments of `ModelConfig`; see `ModelConfig.from_hf`."""
    where = f"{path}: " if path else ""
    family = config.get("model_type")
    if not isinstance(family, str):
        raise CheckpointError(f"{where}model_type is missing; not the config.json of a model?")
    if family == "gemma3":
        return _text_part(config, path)
    if family not in _DEFAULTS:
        supported = ", ".join(sorted([*_DEFAULTS, "gemma3"]))
        raise UnsupportedModel(
            f"{where}model_type {family!r} is not supported; supported are {supported}"
        )
    keys = Keys(config, path)
    (vocab, hidden, ffn, layers, heads, kv_heads, head, positions, eps, theta, tied) = _DEFAULTS[
        family
    ]
    n_layers = keys.integer("num_hidden_layers", layers)
    if not 0 < n_layers <= MAX_LAYERS:
        raise keys.fail(f"num_hidden_layers is {n_layers}, but must be from 1 to {MAX_LAYERS}")
    d_model = keys.integer("hidden_size", hidden)
    n_heads = keys.integer("num_attention_heads", heads)
    head_dim = _head_dim(keys, d_model, n_heads, head)
    n_ctx = keys.integer("max_position_embeddings", positions)
    if kv_heads is None or "num_key_value_heads" in keys:
        kv_heads = n_heads  # what null means, whatever the class says of a missing key
    gemma = family == "gemma3_text"
    found = {
        "architecture": family,
        "n_layers": n_layers,
        "n_vocab": keys.integer("vocab_size", vocab),
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": keys.integer("num_key_value_heads", kv_heads),
        "head_dim": head_dim,
        "d_ffn": keys.integer("intermediate_size", ffn),
        "n_ctx_train": n_ctx,
        "norm_eps": keys.number("rms_norm_eps", eps),
        "activation": _activation(keys, "gelu_pytorch_tanh" if gemma else "silu"),
        "attention_scale": head_dim**-0.5,
        # Qwen 2 has the biases whatever the key says.
        "qkv_bias": keys.flag("attention_bias", default=False) or family == "qwen2",
        "qk_norm": _QK_NORMS.get(family, "none"),
        "tied_head": keys.flag("tie_word_embeddings", tied),
        "rope_pairing": "half",
    }
    found.update(_rope(keys, theta, n_ctx, two_sets=gemma))
    if family in _EXPERTS:
        found.update(_experts(keys, family, found["d_ffn"]))
    if gemma:
        scalar = keys.number("query_pre_attn_scalar", 256.0)
        if scalar <= 0:
            raise keys.fail(f"query_pre_attn_scalar is {scalar}, but must be positive")
        found["attention_scale"] = scalar**-0.5
        found["embedding_scale"] = math.sqrt(d_model)
        found["sandwich_norms"] = True
    if family == "smollm3":
        found["rope_layers"] = _rotated_layers(keys, n_layers)
    found["windows"] = _windows(keys, family, n_layers, found.get("rope_layers", ()))
    if keys.get("is_causal") is False:
        raise keys.refuse("is_causal = False is not implemented")
    keys.refuse_all({key: value for key, value in keys.unread() if _matters(key, value)})
    return found


def _text_part(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Gemma 3 with images: its text decoder alone."""
    outer = Keys(config, path)
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise outer.fail("a gemma3 model needs a text_config")
    if outer.get("quantization_config") is not None:
        raise outer.refuse("quantization_config is not implemented")
    inner = {"tie_word_embeddings": config.get("tie_word_embeddings"), **text}
    inner["model_type"] = "gemma3_text"
    return fields_from_hf(inner, f"{path}: text_config" if path else "text_config")


def _matters(key: str, value: object) -> bool:
    """Tell whether a key that nobody read may change the arithmetic."""
    if key in _HARMLESS or key.startswith("_") or key.endswith(_HARMLESS_ENDS):
        return False
    return value is not None and value is not False and value not in ((), {}, "")


def _head_dim(keys: Keys, d_model: int, n_heads: int, default: int | None) -> int:
    if n_heads < 1 or d_model < 1:
        raise keys.fail(f"the model has {n_heads} heads and a hidden_size of {d_model}")
    if keys.get("head_dim") is None and default is None and d_model % n_heads:
        raise keys.fail(f"{n_heads} heads do not divide a hidden_size of {d_model}")
    head_dim = keys.integer("head_dim", default or d_model // n_heads)
    if head_dim < 1:
        raise keys.fail(f"head_dim is {head_dim}, but must be positive")
    return head_dim


def _activation(keys: Keys, default: str) -> str:
    legacy = keys.get("hidden_act")
    name = keys.get("hidden_activation") or legacy or default
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise keys.refuse(
            f"activation {name!r} is not implemented; supported are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _experts(keys: Keys, family: str, d_ffn: int) -> dict[str, Any]:
    """Keys of a mixture of experts; every layer has them."""
    n_experts, n_used = _EXPERTS[family]
    local, plain = keys.get("num_local_experts"), keys.get("num_experts")
    if local is not None and plain is not None and local != plain:
        raise keys.fail(f"num_local_experts is {local}, but num_experts is {plain}")
    key = "num_experts" if local is None else "num_local_experts"
    found = {
        "n_experts": keys.integer(key, n_experts),
        "n_experts_used": keys.integer("num_experts_per_tok", n_used),
        "d_expert_ffn": d_ffn,
        "d_ffn": 0,
        "normalize_expert_weights": family == "mixtral",
    }
    if family != "mixtral":
        found["normalize_expert_weights"] = keys.flag("norm_topk_prob", default=False)
    if family == "qwen3_moe":
        found["d_expert_ffn"] = keys.integer("moe_intermediate_size", 768)
        if keys.integer("decoder_sparse_step", 1) != 1 or keys.get("mlp_only_layers"):
            raise keys.refuse(
                "decoder_sparse_step or mlp_only_layers mixes dense layers with layers of experts, "
                "which is not implemented"
            )
    return found


def _rotated_layers(keys: Keys, n_layers: int) -> tuple[bool, ...]:
    """SmolLM3: in spite of the key's name, a 1 in no_rope_layers means that a layer is rotated."""
    interval = keys.integer("no_rope_layer_interval", 4)
    flags = keys.get("no_rope_layers")
    if flags is None:
        if interval < 1:
            raise keys.fail(f"no_rope_layer_interval is {interval}, but must be positive")
        return tuple((layer + 1) % interval != 0 for layer in range(n_layers))
    if (
        not isinstance(flags, tuple)
        or len(flags) < n_layers
        or any(flag not in (0, 1) for flag in flags)
    ):
        raise keys.fail(f"no_rope_layers must hold 0 or 1 for each of {n_layers} layers")
    return tuple(bool(flag) for flag in flags[:n_layers])


def _windows(
    keys: Keys, family: str, n_layers: int, rotated: tuple[bool, ...]
) -> tuple[int | None, ...]:
    """Window of each layer, or () if none has one."""
    kinds = keys.get("layer_types")
    if kinds is not None and (not isinstance(kinds, tuple) or len(kinds) != n_layers):
        raise keys.fail(f"layer_types must hold one entry for each of {n_layers} layers")
    if other := sorted({str(kind) for kind in kinds or ()} - {"full_attention", _SLIDING}):
        raise keys.refuse(f"layer_types {', '.join(other)} is not implemented")
    window: int | None = _WINDOWS.get(family)
    if "sliding_window" in keys:
        window = None if keys.get("sliding_window") is None else keys.integer("sliding_window")
    used = keys.flag("use_sliding_window", default=False)
    if family.startswith("qwen"):
        # Their files carry a window that the model does not use.
        if used or _SLIDING in (kinds or ()):
            raise keys.refuse("use_sliding_window is not implemented for Qwen models")
        return ()
    if family == "smollm3" and not used:
        return ()
    pattern = _gemma_layers(keys, n_layers) if family == "gemma3_text" else ()
    if kinds is not None:
        local = tuple(kind == _SLIDING for kind in kinds)
    elif family == "smollm3":
        local = tuple(not flag for flag in rotated)
    else:
        local = pattern or (True,) * n_layers
    if window is None:
        if any(local) and (family == "gemma3_text" or kinds is not None):
            raise keys.fail("layers see a window, but sliding_window is null")
        return ()
    return tuple(window if flag else None for flag in local) if any(local) else ()


def _gemma_layers(keys: Keys, n_layers: int) -> tuple[bool, ...]:
    """Tell which layers have a window: all but the last of each period."""
    key = (
        "sliding_window_pattern" if "sliding_window_pattern" in keys else "_sliding_window_pattern"
    )
    period = keys.integer(key, 6)
    if period < 1:
        raise keys.fail(f"{key} is {period}, but must be positive")
    return tuple((layer + 1) % period != 0 for layer in range(n_layers))


def _rope(keys: Keys, theta: float, n_ctx: int, *, two_sets: bool) -> dict[str, Any]:
    """Rotary keys: one set of them, or (`two_sets`) another for layers with a window."""
    new, old = keys.get("rope_parameters"), keys.get("rope_scaling")
    if new and old and new != old:
        raise keys.fail("rope_parameters and rope_scaling contradict each other")
    far = keys.child("rope_parameters" if new else "rope_scaling")
    near = far.child(_SLIDING)
    if "full_attention" in far:
        both, far = far, far.child("full_attention")
        both.refuse_all(dict(both.unread()))
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.refuse("partial_rotary_factor is not implemented")
    found: dict[str, Any] = {
        "rope_theta": far.number("rope_theta", keys.number("rope_theta", theta)),
        "rope_scaling": _rope_scaling(far, n_ctx),
    }
    if two_sets:
        local_theta = keys.number("rope_local_base_freq", 10_000.0)
        found["rope_local_theta"] = near.number("rope_theta", local_theta)
        if _rope_scaling(near, n_ctx) is not None:
            raise keys.refuse("rope scaling of layers with a window is not implemented")
    elif len(near):
        raise keys.refuse("a second set of rotary parameters is not implemented for this family")
    return found


def _rope_scaling(keys: Keys, n_ctx: int) -> RopeScaling | None:
    """One set of rotary parameters; the original context is that of training if not said."""
    kind, legacy = keys.get("rope_type"), keys.get("type")
    if kind and legacy and kind != legacy:
        raise keys.fail(f"rope_type is {kind!r}, but type is {legacy!r}")
    kind = kind or legacy or "default"
    keys.get("rope_theta")
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.refuse("partial_rotary_factor is not implemented")
    scaling = None
    if kind == "linear":
        scaling = RopeScaling(type="linear", factor=keys.number("factor"))
    elif kind == "dynamic":
        scaling = RopeScaling(type="dynamic", factor=keys.number("factor"), original_context=n_ctx)
    elif kind == "llama3":
        scaling = RopeScaling(
            type="llama3",
            factor=keys.number("factor"),
            original_context=keys.integer("original_max_position_embeddings", n_ctx),
            low_freq_factor=keys.number("low_freq_factor"),
            high_freq_factor=keys.number("high_freq_factor"),
        )
    elif kind == "yarn":
        original = keys.integer("original_max_position_embeddings", n_ctx)
        scaling = RopeScaling(
            type="yarn",
            factor=keys.number("factor", n_ctx / original if original > 0 else None),
            original_context=original,
            beta_fast=keys.number("beta_fast", 32.0),
            beta_slow=keys.number("beta_slow", 1.0),
            truncate=keys.flag("truncate", default=True),
            attention_factor=keys.optional_number("attention_factor"),
            mscale=keys.optional_number("mscale"),
            mscale_all_dim=keys.optional_number("mscale_all_dim"),
        )
    elif kind != "default":
        raise keys.refuse(f"rope type {kind!r} is not implemented")
    keys.refuse_all(
        {
            key: value
            for key, value in keys.unread()
            if value is not None and key not in ("finetuned", "original_max_position_embeddings")
        }
    )
    return scaling

"""Hugging Face ``config.json`` -> the fields of a `ModelConfig`.

What a file leaves out has the default of the family's configuration class in Transformers, because
a saved file omits what equals it. A key is read; or in `_HARMLESS`; or has the value at which it
changes nothing (`_NEUTRAL`; null, false and empty are such values of every key); or is a text, of
which one warning tells; or else refused: what nobody reads might change the arithmetic.

Source: configuration_*.py and modeling_*.py of Transformers.
"""

import math
from collections.abc import Mapping
from typing import Any

from rml.errors import CheckpointError, UnsupportedModel
from rml.files.limits import MAX_LAYERS
from rml.files.strict_json import brief
from rml.llm.config_hf_rope import rope_fields
from rml.llm.config_keys import Keys, listed

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

# Without effect on the logits.
_HARMLESS = frozenset({
    # What the file is, and what wrote it.
    "architectures", "auto_map", "base_model_pp_plan", "base_model_tp_plan", "dtype",
    "is_llama_config", "model_type", "name_or_path", "torch_dtype", "transformers.js_config",
    "transformers_version",
    # How Transformers runs it.
    "attn_implementation", "cache_implementation", "chunk_size_feed_forward", "flash_attn",
    "gradient_checkpointing", "is_decoder", "output_attentions", "output_hidden_states",
    "output_router_logits", "pretraining_tp", "return_dict", "torchscript", "use_bfloat16",
    "use_cache", "use_flash_attention", "use_flash_attention_2", "use_flash_attn",
    # Training.
    "attention_probs_dropout_prob", "aux_loss_alpha", "classifier_activation", "dropout",
    "hidden_dropout_prob", "init_std", "initializer_factor", "initializer_range",
    "neftune_noise_alpha", "router_aux_loss_coef", "router_jitter_noise", "router_z_loss_coef",
    "seq_aux",
    # Heads of other tasks.
    "finetuning_task", "id2label", "label2id", "num_labels", "problem_type",
    "task_specific_params",
    # The encoder of an encoder and decoder, which these are not.
    "tf_legacy_loss", "tie_encoder_decoder",
    # Limits of a tokenizer and its names; sizes that only other kinds of layers or scaling read.
    "bos_token", "eos_token", "max_seq_length", "max_sequence_length", "max_window_layers",
    "model_max_length", "original_max_position_embeddings", "pad_token", "sep_token",
    "seq_length", "tokenizer_class", "unk_token",
    # Settings of generation that older versions kept here.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "output_logits", "output_scores", "penalty_alpha",
    "prefix", "remove_invalid_values", "renormalize_logits", "repetition_penalty",
    "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
})  # fmt: skip
_HARMLESS_STARTS = ("_", "unsloth_")
_HARMLESS_ENDS = ("_token_id", "_token_index", "_dropout", "_pdrop")

# Keys of other families that would change the arithmetic, and the values at which they do not. Of
# switches that are texts all are here that are known, since an unknown text counts as a note.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "activation_function": (),
    "attention_type": ("causal", "full"),
    "embedding_multiplier": (1,),
    "first_k_dense_replace": (0,),
    "interleave_moe_layer_step": (1,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "moe_layer_freq": (1,),
    "n_group": (0, 1),
    "n_shared_experts": (0,),
    "norm_type": ("rmsnorm", "rms_norm"),
    "normalization_type": ("rmsnorm", "RMSNorm"),
    "num_nextn_predict_layers": (0,),
    "num_shared_experts": (0,),
    "position_embedding_type": ("rope", "rotary"),
    "quant_method": (),
    "quantization": (),
    "quantize": (),
    "residual_multiplier": (1,),
    "rope_interleaved": (False,),
    "routed_scaling_factor": (1,),
    "scoring_func": ("softmax",),
    "shared_expert_intermediate_size": (0,),
    "topk_group": (0, 1),
    "topk_method": ("greedy",),
}


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
            f"{where}model_type {brief(family)} is not supported; supported are {supported}"
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
    found.update(rope_fields(keys, theta, n_ctx, two_sets=gemma))
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
    _refuse_unread(keys)
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


def _refuse_unread(keys: Keys) -> None:
    """Refuse what nobody read and might change the arithmetic; warn of what does not look so.

    That are texts: a switch that is one, of a family of which we know, is in `_NEUTRAL`.
    """
    unknown = {key: value for key, value in keys.unread() if not _is_harmless(key, value)}
    notes = {key for key in unknown if isinstance(unknown[key], str) and key not in _NEUTRAL}
    keys.refuse_all({key: unknown[key] for key in unknown if key not in notes})
    if notes:
        keys.warn(f"passed over, since they look like notes: {listed(notes)}")


def _is_harmless(key: str, value: object) -> bool:
    if key in _HARMLESS or key.startswith(_HARMLESS_STARTS) or key.endswith(_HARMLESS_ENDS):
        return True
    return value is None or value is False or value in ((), {}, "", *_NEUTRAL.get(key, ()))


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
            f"activation {brief(name)} is not implemented; supported are {', '.join(_ACTIVATIONS)}"
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
    if other := {str(kind) for kind in kinds or ()} - {"full_attention", _SLIDING}:
        raise keys.refuse(f"layer_types {listed(other)} is not implemented")
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

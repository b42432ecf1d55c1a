"""What a checkpoint's config asks for: sizes and switches of the reference model.

Facts come from Transformers' configuration and modelling code (config.json) and from llama.cpp's
loader (GGUF keys, and what it assumes where the format has no key). What is not implemented is
refused, so that a golden can not be wrong in silence.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Recipe", "recipe_of"]

HF_FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "olmoe",
    "smollm3",
)
GGUF_FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
    "olmoe": "olmoe",
    "smollm3": "smollm3",
}
GEMMA_27B_LAYERS = 62
SMOLLM3_NOPE_INTERVAL = 4
GEMMA_SLIDING_PERIOD = 6
GEMMA_LOCAL_THETA = 10000.0


@dataclass(kw_only=True)
class Recipe:
    """Sizes and switches. Every default is the plain Llama block.

    Attributes
    ----------
    windows : list of int or None
        For each layer how many positions it sees, its own included; None sees all before it.
    rope_scaling : dict
        ``type`` (linear, dynamic, yarn or llama3) and its numbers, named as in config.json.
    local_theta : float or None
        RoPE base of the layers with a window, which then are not scaled.
    rope_layers : list of bool
        Which layers rotate q and k at all.
    pairing : str
        ``half`` pairs dimension i with i + head_dim / 2, ``interleaved`` 2 i with 2 i + 1.
    """

    family: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ctx_train: int
    eps: float
    theta: float
    attention_scale: float
    activation: str = "silu"
    qkv_bias: bool = False
    qk_norm: str = "none"
    sandwich_norms: bool = False
    embedding_scale: float = 1.0
    tied_head: bool = False
    windows: list[int | None] = field(default_factory=list)
    rope_scaling: dict[str, Any] = field(default_factory=dict)
    local_theta: float | None = None
    rope_layers: list[bool] = field(default_factory=list)
    pairing: str = "half"
    n_experts: int = 0
    n_experts_used: int = 0
    normalize_expert_weights: bool = True


def recipe_of(weights: Any) -> Recipe:
    """Read the recipe of an opened checkpoint (see reference_weights)."""
    if hasattr(weights, "config"):
        return _from_hf(weights.config, weights)
    return _from_gguf(weights.metadata, weights)


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise NotImplementedError(f"the reference model has no {what}")


def _from_hf(config: dict[str, Any], weights: Any) -> Recipe:
    family = config["model_type"]
    _refuse(family not in HF_FAMILIES, f"family {family!r}")
    _refuse(bool(config.get("mlp_bias")), "bias in the FFN")
    _refuse(config.get("clip_qkv") is not None, "clip_qkv")
    _refuse(bool(config.get("use_sliding_window")), "use_sliding_window")
    _refuse(bool(config.get("attn_logit_softcapping")), "soft cap on attention")
    _refuse(bool(config.get("final_logit_softcapping")), "soft cap on logits")
    _refuse(config.get("partial_rotary_factor", 1.0) != 1.0, "partial rotation")
    _refuse(bool(config.get("use_bidirectional_attention")), "bidirectional attention")
    _refuse("blk.0.attn_output.bias" in weights, "bias after attention")
    _refuse("model.layers.0.self_attn.o_proj.bias" in weights, "bias after attention")
    gemma = family == "gemma3_text"
    n_layers, n_heads = config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
    theta, local_theta, scaling = _hf_rope(config, gemma)
    scale = head_dim**-0.5
    if gemma:
        scale = config.get("query_pre_attn_scalar", 256) ** -0.5
    default_eps = 1e-5 if family in ("mixtral", "olmoe") else 1e-6
    recipe = Recipe(
        family=family,
        n_layers=n_layers,
        d_model=config["hidden_size"],
        n_heads=n_heads,
        n_kv_heads=config.get("num_key_value_heads") or n_heads,
        head_dim=head_dim,
        n_ctx_train=config.get("max_position_embeddings", 0),
        eps=config.get("rms_norm_eps", default_eps),
        theta=theta,
        local_theta=local_theta,
        rope_scaling=scaling,
        attention_scale=scale,
        activation=_activation(config.get("hidden_activation") or config.get("hidden_act", "silu")),
        qkv_bias="blk.0.attn_q.bias" in weights,
        qk_norm={"olmoe": "whole", "qwen3": "head", "qwen3_moe": "head", "gemma3_text": "head"}.get(
            family, "none"
        ),
        sandwich_norms=gemma,
        embedding_scale=config["hidden_size"] ** 0.5 if gemma else 1.0,
        tied_head=config.get("tie_word_embeddings", gemma or family == "smollm3"),
        windows=_hf_windows(config, family, n_layers),
        rope_layers=_hf_rope_layers(config, family, n_layers),
    )
    if family in ("mixtral", "qwen3_moe", "olmoe"):
        _refuse(config.get("decoder_sparse_step", 1) != 1, "mix of dense and expert layers")
        _refuse(bool(config.get("mlp_only_layers")), "mix of dense and expert layers")
        recipe.n_experts = config.get("num_local_experts", config.get("num_experts", 0))
        recipe.n_experts_used = config["num_experts_per_tok"]
        recipe.normalize_expert_weights = family == "mixtral" or config.get("norm_topk_prob", False)
    return recipe


def _activation(name: str) -> str:
    names = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    _refuse(name not in names, f"activation {name!r}")
    return names[name]


def _hf_rope(config: dict[str, Any], gemma: bool) -> tuple[float, float | None, dict[str, Any]]:
    """Global base, local base and scaling, from any of the three ways configs spell them."""
    parameters = config.get("rope_parameters") or {}
    local_theta = config.get("rope_local_base_freq", GEMMA_LOCAL_THETA) if gemma else None
    if "full_attention" in parameters:
        local_theta = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    scaling = dict(parameters or config.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta", 10000.0)
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    scaling.pop("type", None)
    if kind == "default":
        return theta, local_theta, {}
    _refuse(kind not in ("linear", "dynamic", "yarn", "llama3"), f"rope_scaling {kind!r}")
    _refuse("mscale" in scaling or "mscale_all_dim" in scaling, "mscale of yarn")
    _refuse(scaling.get("truncate", True) is not True, "yarn without truncation")
    return theta, local_theta, {"type": kind} | scaling


def _hf_windows(config: dict[str, Any], family: str, n_layers: int) -> list[int | None]:
    window = config.get("sliding_window")
    if family in ("mistral", "mixtral"):
        return [window] * n_layers
    if family != "gemma3_text":
        return [None] * n_layers
    types = config.get("layer_types")
    if types is None:
        period = config.get("sliding_window_pattern", GEMMA_SLIDING_PERIOD)
        types = ["sliding_attention" if (i + 1) % period else "full" for i in range(n_layers)]
    return [window if kind == "sliding_attention" else None for kind in types]


def _hf_rope_layers(config: dict[str, Any], family: str, n_layers: int) -> list[bool]:
    if family != "smollm3":
        return [True] * n_layers
    flags = config.get("no_rope_layers")  # 1 where the layer does rotate, whatever the name says
    if flags is None:
        interval = config.get("no_rope_layer_interval", SMOLLM3_NOPE_INTERVAL)
        flags = [(i + 1) % interval for i in range(n_layers)]
    return [bool(flag) for flag in flags[:n_layers]]


def _from_gguf(metadata: dict[str, Any], weights: Any) -> Recipe:
    arch = metadata["general.architecture"]
    _refuse(arch not in GGUF_FAMILIES, f"architecture {arch!r}")
    family = GGUF_FAMILIES[arch]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    gemma = family == "gemma3_text"
    n_layers, n_heads, d_model = (
        get("block_count"),
        get("attention.head_count"),
        get("embedding_length"),
    )
    head_dim = get("attention.key_length", d_model // n_heads)
    _refuse(get("rope.dimension_count", head_dim) != head_dim, "partial rotation")
    _refuse(get("attention.value_length", head_dim) != head_dim, "values of another width")
    _refuse(get("attn_logit_softcapping", 0.0) != 0.0, "soft cap on attention")
    _refuse(get("final_logit_softcapping", 0.0) != 0.0, "soft cap on logits")
    _refuse(get("attention.clamp_kqv", 0.0) != 0.0, "clamp of q, k and v")
    _refuse("blk.0.attn_output.bias" in weights, "bias after attention")
    qk_norm = "none"
    if "blk.0.attn_q_norm.weight" in weights:
        per_head = weights.shape("blk.0.attn_q_norm.weight") == (head_dim,)
        qk_norm = "head" if per_head else "whole"
    scale = head_dim**-0.5
    if gemma and n_layers == GEMMA_27B_LAYERS:
        scale = (d_model / n_heads) ** -0.5
    n_experts = get("expert_count", 0)
    return Recipe(
        family=family,
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=get("attention.head_count_kv", n_heads),
        head_dim=head_dim,
        n_ctx_train=get("context_length", 0),
        eps=get("attention.layer_norm_rms_epsilon"),
        theta=get("rope.freq_base", 10000.0),
        local_theta=get("rope.freq_base_swa", GEMMA_LOCAL_THETA) if gemma else None,
        rope_scaling=_gguf_scaling(get, weights),
        attention_scale=get("attention.scale", scale),
        activation="gelu_tanh" if gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in weights,
        qk_norm=qk_norm,
        sandwich_norms=gemma,
        embedding_scale=d_model**0.5 if gemma else 1.0,
        tied_head="output.weight" not in weights,
        windows=_gguf_windows(get, arch, n_layers),
        rope_layers=[
            family != "smollm3" or bool((i + 1) % SMOLLM3_NOPE_INTERVAL) for i in range(n_layers)
        ],
        pairing="interleaved" if family in ("llama", "smollm3") else "half",
        n_experts=n_experts,
        n_experts_used=get("expert_used_count", 0),
        normalize_expert_weights=get("expert_weights_norm", family != "olmoe"),
    )


def _gguf_windows(get: Any, arch: str, n_layers: int) -> list[int | None]:
    window = get("attention.sliding_window") or None
    if arch != "gemma3":
        _refuse(window is not None and arch != "llama", f"sliding window of {arch}")
        return [window] * n_layers
    pattern = get("attention.sliding_window_pattern", GEMMA_SLIDING_PERIOD)
    if isinstance(pattern, list):
        return [window if flag else None for flag in pattern]
    return [window if (i + 1) % pattern else None for i in range(n_layers)]


def _gguf_scaling(get: Any, weights: Any) -> dict[str, Any]:
    if "rope_freqs.weight" in weights:
        return {"type": "factors", "factors": np.asarray(weights["rope_freqs.weight"])}
    kind = get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    _refuse(kind not in ("linear", "yarn"), f"rope scaling {kind!r}")
    _refuse(get("rope.scaling.yarn_log_multiplier", 0.0) != 0.0, "yarn_log_multiplier")
    scaling = {"type": kind, "factor": get("rope.scaling.factor")}
    if kind == "yarn":
        scaling |= {
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
            "beta_fast": get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": get("rope.scaling.yarn_beta_slow", 1.0),
        }
        for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
            _refuse(get(f"rope.scaling.{key}", 1.0) != 1.0, f"{key} of yarn in GGUF")
    return scaling

"""The weights of one layer, by their place in the recipe."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rml.llm.config import ModelConfig
from rml.llm.weight_source import Outline, WeightMatrix, WeightSource

__all__ = ["Experts", "FeedForward", "Layer", "LayerGroup", "layer_groups", "load_layer"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Weights of a gated feed-forward network."""

    gate: WeightMatrix
    up: WeightMatrix
    down: WeightMatrix


@dataclass(frozen=True, slots=True)
class Experts:
    """Weights of a mixture of experts: a matrix for each expert, and what chooses among them."""

    router: WeightMatrix
    gates: list[WeightMatrix]
    ups: list[WeightMatrix]
    downs: list[WeightMatrix]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; None where the recipe has no such part."""

    attn_norm: F32
    q: WeightMatrix
    k: WeightMatrix
    v: WeightMatrix
    biases: tuple[F32, F32, F32] | None
    q_norm: F32 | None
    k_norm: F32 | None
    attn_output: WeightMatrix
    post_attn_norm: F32 | None
    ffn_norm: F32
    ffn: FeedForward | Experts
    post_ffn_norm: F32 | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep keys and values of the same sizes, and so share pages.

    Attributes
    ----------
    layers : tuple of int
        Their numbers.
    n_kv_heads, head_dim : int
        What each keeps of a position.
    """

    layers: tuple[int, ...]
    n_kv_heads: int
    head_dim: int


def layer_groups(c: ModelConfig) -> tuple[LayerGroup, ...]:
    """Sort the layers by what they keep."""
    return (LayerGroup(tuple(range(c.n_layers)), c.n_kv_heads, c.head_dim),)


def load_layer(weights: WeightSource | Outline, c: ModelConfig, i: int) -> Layer:
    """Ask for every tensor that the configuration implies."""

    def matrix(name: str, rows: int, cols: int) -> WeightMatrix:
        return weights.matrix(f"blk.{i}.{name}.weight", rows, cols)

    def norm(name: str, size: int, *, wanted: bool = True) -> F32 | None:
        return weights.vector(f"blk.{i}.{name}.weight", size) if wanted else None

    def bias(name: str, size: int) -> F32:
        return weights.vector(f"blk.{i}.{name}.bias", size)

    whole, normed = c.qk_norm == "whole", c.qk_norm != "none"
    return Layer(
        attn_norm=weights.vector(f"blk.{i}.attn_norm.weight", c.d_model),
        q=matrix("attn_q", c.q_size, c.d_model),
        k=matrix("attn_k", c.kv_size, c.d_model),
        v=matrix("attn_v", c.kv_size, c.d_model),
        biases=(bias("attn_q", c.q_size), bias("attn_k", c.kv_size), bias("attn_v", c.kv_size))
        if c.qkv_bias
        else None,
        q_norm=norm("attn_q_norm", c.q_size if whole else c.head_dim, wanted=normed),
        k_norm=norm("attn_k_norm", c.kv_size if whole else c.head_dim, wanted=normed),
        attn_output=matrix("attn_output", c.d_model, c.q_size),
        post_attn_norm=norm("post_attention_norm", c.d_model, wanted=c.sandwich_norms),
        ffn_norm=weights.vector(f"blk.{i}.ffn_norm.weight", c.d_model),
        ffn=_load_experts(weights, c, i)
        if c.n_experts
        else FeedForward(
            gate=matrix("ffn_gate", c.d_ffn, c.d_model),
            up=matrix("ffn_up", c.d_ffn, c.d_model),
            down=matrix("ffn_down", c.d_model, c.d_ffn),
        ),
        post_ffn_norm=norm("post_ffw_norm", c.d_model, wanted=c.sandwich_norms),
    )


def _load_experts(weights: WeightSource | Outline, c: ModelConfig, i: int) -> Experts:
    def experts(name: str, rows: int, cols: int) -> list[WeightMatrix]:
        return weights.experts(f"blk.{i}.{name}.weight", c.n_experts, rows, cols)

    return Experts(
        router=weights.matrix(f"blk.{i}.ffn_gate_inp.weight", c.n_experts, c.d_model),
        gates=experts("ffn_gate_exps", c.d_expert_ffn, c.d_model),
        ups=experts("ffn_up_exps", c.d_expert_ffn, c.d_model),
        downs=experts("ffn_down_exps", c.d_model, c.d_expert_ffn),
    )

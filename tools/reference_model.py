"""The float64 forward pass that every number of rml is held against.

Written from Transformers' modelling code (what it computes, in float64 throughout) and sharing no
code with rml: weights are expanded to float64 first, products are plain matrix products, the
causal mask is an explicit table. Slow and large on purpose; small enough to check by eye.

    python tools/reference_model.py MODEL --ids 1,2,3 [-n 16]      top logits and a greedy text
    python tools/reference_model.py MODEL --check expected.json    against a case of the case bank

MODEL is a GGUF file or a Hugging Face folder of one of the families in reference_recipe.

Letters: T new tokens, S positions in the cache after them, H query heads, G key heads, D head
width, E experts.
"""

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from reference_recipe import Recipe, recipe_of
from reference_weights import GgufWeights, HuggingFaceWeights, open_weights

__all__ = ["Cache", "ReferenceModel", "inverse_frequencies"]


@dataclass
class Cache:
    """Keys and values of the positions seen so far, for each layer (S, G, D), keys rotated."""

    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    size: int = 0


class ReferenceModel:
    """A decoder-only language model in float64.

    Parameters
    ----------
    weights : Path or GgufWeights or HuggingFaceWeights
        Where to read from.
    n_ctx : int, optional
        Context length that fixes the factor of "dynamic" RoPE; the trained length by default.
    """

    def __init__(
        self, weights: Path | GgufWeights | HuggingFaceWeights, n_ctx: int | None = None
    ) -> None:
        if isinstance(weights, Path):
            weights = open_weights(weights)
        self.recipe = recipe = recipe_of(weights)
        self.embedding = weights["token_embd.weight"]
        self.final_norm = weights["output_norm.weight"]
        self.head = self.embedding if recipe.tied_head else weights["output.weight"]
        self.layers = [_layer(weights, recipe, i) for i in range(recipe.n_layers)]
        dims = (recipe.head_dim, n_ctx or recipe.n_ctx_train, recipe.n_ctx_train)
        self.global_rope = inverse_frequencies(recipe.theta, recipe.rope_scaling, *dims)
        self.local_rope = self.global_rope
        if recipe.local_theta is not None:
            self.local_rope = inverse_frequencies(recipe.local_theta, {}, *dims)

    def hidden(self, ids: list[int], cache: Cache | None = None) -> np.ndarray:
        """Output of the last norm for each of `ids`, which follow what is in `cache`.

        Returns
        -------
        ndarray
            (T, d_model) float64. `cache` is extended by T positions.
        """
        recipe = self.recipe
        cache = Cache() if cache is None else cache
        x = self.embedding[ids] * recipe.embedding_scale
        for i, layer in enumerate(self.layers):
            branch = self._attention(i, layer, rms_norm(x, layer["attn_norm"], recipe.eps), cache)
            if recipe.sandwich_norms:
                branch = rms_norm(branch, layer["post_attention_norm"], recipe.eps)
            x = x + branch
            branch = self._ffn(layer, rms_norm(x, layer["ffn_norm"], recipe.eps))
            if recipe.sandwich_norms:
                branch = rms_norm(branch, layer["post_ffw_norm"], recipe.eps)
            x = x + branch
        cache.size += len(ids)
        return rms_norm(x, self.final_norm, recipe.eps)

    def logits(self, ids: list[int], cache: Cache | None = None) -> np.ndarray:
        """Scores of the next token after each of `ids`: (T, n_vocab) float64."""
        return self.hidden(ids, cache) @ self.head.T

    def greedy(self, ids: list[int], n: int) -> tuple[list[int], list[float]]:
        """Choose the best next id n times; return the ids and how far each led the second."""
        cache = Cache()
        chosen: list[int] = []
        margins: list[float] = []
        new = ids
        for _ in range(n):
            scores = self.hidden(new, cache)[-1] @ self.head.T
            second, first = np.partition(scores, -2)[-2:]
            chosen.append(int(np.argmax(scores)))
            margins.append(float(first - second))
            new = chosen[-1:]
        return chosen, margins

    def _attention(
        self, i: int, layer: dict[str, np.ndarray], x: np.ndarray, cache: Cache
    ) -> np.ndarray:
        recipe = self.recipe
        n_new, width = len(x), recipe.head_dim
        q, k, v = (x @ layer[f"attn_{name}"].T for name in "qkv")
        if recipe.qkv_bias:
            q, k, v = q + layer["attn_q_bias"], k + layer["attn_k_bias"], v + layer["attn_v_bias"]
        if recipe.qk_norm == "whole":
            q = rms_norm(q, layer["attn_q_norm"], recipe.eps)
            k = rms_norm(k, layer["attn_k_norm"], recipe.eps)
        q = q.reshape(n_new, recipe.n_heads, width)
        k = k.reshape(n_new, recipe.n_kv_heads, width)
        v = v.reshape(n_new, recipe.n_kv_heads, width)
        if recipe.qk_norm == "head":
            q = rms_norm(q, layer["attn_q_norm"], recipe.eps)
            k = rms_norm(k, layer["attn_k_norm"], recipe.eps)
        window = recipe.windows[i]
        positions = cache.size + np.arange(n_new)
        if recipe.rope_layers[i]:
            rope = self.global_rope if window is None else self.local_rope
            q = rotate(q, positions, *rope, recipe.pairing)
            k = rotate(k, positions, *rope, recipe.pairing)
        if len(cache.keys) <= i:
            cache.keys.append(k)
            cache.values.append(v)
        else:
            cache.keys[i] = k = np.concatenate((cache.keys[i], k))
            cache.values[i] = v = np.concatenate((cache.values[i], v))
        seen = visible(positions, len(k), window)
        out = np.empty_like(q)
        group = recipe.n_heads // recipe.n_kv_heads
        for h in range(recipe.n_heads):
            scores = q[:, h] @ k[:, h // group].T * recipe.attention_scale
            out[:, h] = softmax(np.where(seen, scores, -np.inf)) @ v[:, h // group]
        return out.reshape(n_new, -1) @ layer["attn_output"].T

    def _ffn(self, layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        recipe = self.recipe
        activate = ACTIVATIONS[recipe.activation]
        if not recipe.n_experts:
            gate, up = x @ layer["ffn_gate"].T, x @ layer["ffn_up"].T
            return (activate(gate) * up) @ layer["ffn_down"].T
        shares = softmax(x @ layer["ffn_gate_inp"].T)  # (T, E), over all experts
        out = np.zeros_like(x)
        for t, row in enumerate(x):
            best = np.argsort(-shares[t], kind="stable")[: recipe.n_experts_used]
            total = shares[t, best].sum() if recipe.normalize_expert_weights else 1.0
            for e in best:
                gate, up = layer["ffn_gate_exps"][e] @ row, layer["ffn_up_exps"][e] @ row
                out[t] += shares[t, e] / total * (layer["ffn_down_exps"][e] @ (activate(gate) * up))
        return out


def _layer(weights: GgufWeights | HuggingFaceWeights, recipe: Recipe, i: int) -> dict:
    """Arrays of layer i under their GGUF names without ``blk.<i>.`` and ``.weight``."""
    names = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"]
    if recipe.qk_norm != "none":
        names += ["attn_q_norm", "attn_k_norm"]
    if recipe.sandwich_norms:
        names += ["post_attention_norm", "post_ffw_norm"]
    if recipe.n_experts:
        names += ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]
    else:
        names += ["ffn_gate", "ffn_up", "ffn_down"]
    layer = {name: weights[f"blk.{i}.{name}.weight"] for name in names}
    if recipe.qkv_bias:
        layer |= {f"attn_{name}_bias": weights[f"blk.{i}.attn_{name}.bias"] for name in "qkv"}
    return layer


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang, Sennrich 2019)."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    """Return exp(x) / sum(exp(x)) over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    """Return x * sigmoid(x), without overflow for large negative x."""
    power = np.exp(-np.abs(x))
    return x * np.where(x >= 0, 1.0, power) / (1.0 + power)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Return the tanh form of GELU of x (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


def visible(positions: np.ndarray, n_keys: int, window: int | None) -> np.ndarray:
    """Tell in a (T, S) table whether the query at positions[t] may look at key s."""
    distance = positions[:, None] - np.arange(n_keys)
    return (distance >= 0) & (distance < (window or n_keys))


def rotate(
    x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, magnitude: float, pairing: str
) -> np.ndarray:
    """Turn each pair of dimensions of x (T, H, D) by position times frequency (Su et al. 2021)."""
    angles = positions[:, None, None] * frequencies  # (T, 1, D / 2)
    cos, sin = magnitude * np.cos(angles), magnitude * np.sin(angles)
    out = np.empty_like(x)
    half = x.shape[-1] // 2
    first, second = {
        "half": (slice(0, half), slice(half, None)),
        "interleaved": (slice(0, None, 2), slice(1, None, 2)),
    }[pairing]
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def inverse_frequencies(
    theta: float, scaling: dict, head_dim: int, n_ctx: int, n_ctx_train: int
) -> tuple[np.ndarray, float]:
    """Radians a position for each pair of dimensions, and a factor on cos and sin.

    Parameters
    ----------
    theta : float
        RoPE base.
    scaling : dict
        See `Recipe.rope_scaling`. ``factors`` (GGUF) holds a divisor for each pair.
    head_dim, n_ctx, n_ctx_train : int
        Head width; context length of the session (for "dynamic"); of the training.
    """
    pairs = np.arange(0, head_dim, 2) / head_dim
    plain = theta**-pairs
    kind, factor = scaling.get("type"), scaling.get("factor", 1.0)
    original = scaling.get("original_max_position_embeddings") or n_ctx_train
    if kind is None:
        return plain, 1.0
    if kind == "factors":
        return plain / scaling["factors"], 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "dynamic":
        stretch = factor * max(n_ctx, original) / original - (factor - 1.0)
        return (theta * stretch ** (head_dim / (head_dim - 2))) ** -pairs, 1.0
    if kind == "llama3":
        turns = original * plain / (2.0 * math.pi)  # within the original context
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return keep * plain + (1.0 - keep) * plain / factor, 1.0
    # yarn (Peng et al. 2023): pairs that turn more often than beta_fast within the original
    # context are kept, those that turn less than beta_slow are stretched.
    bounds = [
        head_dim * math.log(original / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))
        for turns in (scaling.get("beta_fast") or 32.0, scaling.get("beta_slow") or 1.0)
    ]
    low, high = max(math.floor(bounds[0]), 0), min(math.ceil(bounds[1]), head_dim - 1)
    stretched = np.clip((np.arange(head_dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
    return stretched * plain / factor + (1.0 - stretched) * plain, magnitude


def _check(model: ReferenceModel, expected: dict) -> str:
    """Compare with an expected.json of the case bank; say how far it is."""
    ids = expected["tokens"]
    logits = model.logits(ids)
    cache = Cache()
    single = np.concatenate([model.logits([token], cache) for token in ids])
    errors = {
        "last position": np.abs(logits[-1] - expected["logits_last"]).max(),
        "one by one": np.abs(single - logits).max(),
    }
    same_argmax = logits.argmax(axis=1).tolist() == expected["argmax_per_position"]
    greedy, _ = model.greedy(ids, len(expected["greedy_next_12"]))
    words = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
    return f"{words}, argmax {same_argmax}, greedy {greedy == expected['greedy_next_12']}"


def main() -> None:
    parser = argparse.ArgumentParser(description="float64 logits of a model")
    parser.add_argument("model", type=Path)
    parser.add_argument("--ids", help="prompt, as ids with commas")
    parser.add_argument("-n", type=int, default=0, help="ids to continue greedily")
    parser.add_argument("--check", type=Path, help="an expected.json of the case bank")
    arguments = parser.parse_args()
    model = ReferenceModel(arguments.model)
    if arguments.check:
        print(_check(model, json.loads(arguments.check.read_text("utf-8"))))
    if arguments.ids:
        ids = [int(word) for word in arguments.ids.split(",")]
        scores = model.logits(ids)[-1]
        for token in np.argsort(-scores)[:8]:
            print(f"{token:8d} {scores[token]:12.6f}")
        if arguments.n:
            print(*model.greedy(ids, arguments.n), sep="\n")


if __name__ == "__main__":
    main()

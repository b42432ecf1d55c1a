"""What a model costs in memory, before anything is allocated.

The bill has three items: the weights (file pages, shared by all processes that map the file), the
KV cache, which grows with the context, and the scratch buffers of a step.
"""

from dataclasses import dataclass

import numpy as np

from rml._kernels.pages import KV_TYPES, PAGE_SIZE, pages_for, scale_group
from rml.errors import ArgumentError
from rml.llm.config import ModelConfig
from rml.llm.workspace import MAX_ROWS, outputs_of

__all__ = ["MemoryBill", "kv_bytes_per_token", "largest_context", "scratch_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBill:
    """Bytes that a session needs.

    Attributes
    ----------
    weights : int
        Of the tensors, as stored.
    kv_cache : int
        Of keys and values of all positions of the context, in whole pages.
    scratch : int
        Of the buffers of a step.
    """

    weights: int
    kv_cache: int
    scratch: int

    @classmethod
    def of(
        cls, config: ModelConfig, *, weights: int, n_ctx: int, kv_type: str, n_batch: int
    ) -> "MemoryBill":
        """Add up the bill of a context of `n_ctx` positions, filled `n_batch` tokens at a time.

        A step has no more than `MAX_ROWS` tokens, however large a batch is.
        """
        positions = pages_for(n_ctx) * PAGE_SIZE
        return cls(
            weights=weights,
            kv_cache=positions * kv_bytes_per_token(config, kv_type),
            scratch=scratch_bytes(config, min(n_batch, n_ctx, MAX_ROWS)),
        )

    @property
    def total(self) -> int:
        """All three together."""
        return self.weights + self.kv_cache + self.scratch


def kv_bytes_per_token(config: ModelConfig, kv_type: str) -> int:
    """Bytes that one position takes in the cache, keys and values of all layers.

    Parameters
    ----------
    config : ModelConfig
        The model.
    kv_type : str
        ``"f32"``, ``"f16"``, or ``"int8"``, which adds one f32 scale for each group of channels:
        the largest power of two that divides head_dim, at most 32.
    """
    if not isinstance(kv_type, str) or kv_type not in KV_TYPES:
        raise ArgumentError(f"kv_type is {kv_type!r}, but must be one of {', '.join(KV_TYPES)}")
    row = config.kv_size * np.dtype(KV_TYPES[kv_type]).itemsize
    if kv_type == "int8":
        row += 4 * (config.kv_size // scale_group(config.head_dim))
    return 2 * config.n_layers * row


def scratch_bytes(config: ModelConfig, n_tokens: int) -> int:
    """Bytes of the buffers for a step of `n_tokens` tokens, and of the logits that it can give.

    Counted are the residual stream and its normalized copy (twice, where branches are normalized
    before they are added), queries, keys, values and the attention's output, the gate, cosines and
    sines, all in f32, and the inputs of the widest product as 16-bit codes with a scale, a total
    and two sums for each 32 of them. With experts, a token has the router's scores, its choices and
    their weights, and for each choice a gate, an output and the codes of the wider of the two.
    """
    streams = 3 if config.sandwich_norms else 2
    tables = 1 if config.rope_local_theta is None else 2
    values = (
        streams * config.d_model + 2 * config.q_size + 2 * config.kv_size + tables * config.head_dim
    )
    widest = max(config.d_model, config.q_size)
    if config.n_experts:
        used = config.n_experts_used
        values += config.n_experts + used * (2 + config.d_expert_ffn + config.d_model)
        widest = max(widest, used * max(config.d_expert_ffn, config.d_model))
    else:
        values += config.d_ffn
        widest = max(widest, config.d_ffn)
    codes = 2 * widest + 16 * ((widest + 31) // 32)
    logits = 4 * config.n_vocab * outputs_of(config, n_tokens)
    return n_tokens * (4 * values + codes) + logits


def largest_context(
    config: ModelConfig,
    *,
    memory: int,
    weights: int,
    kv_type: str,
    n_batch: int,
    most: int | None = None,
) -> int:
    """Find the longest context that fits into `memory` bytes; 0 if none.

    Parameters
    ----------
    config : ModelConfig
        The model.
    memory : int
        Bytes that may be used.
    weights : int
        Bytes of the weights, as stored.
    kv_type : str
        Of the cache, see `kv_bytes_per_token`.
    n_batch : int
        Tokens of a prompt that are computed at a time, at least 1.
    most : int, optional
        Longest context to consider; that of training if not given.
    """
    # The bill grows with the context, in steps: pages, and below n_batch positions the scratch.
    low, high = 0, config.n_ctx_train if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        bill = MemoryBill.of(
            config, weights=weights, n_ctx=middle, kv_type=kv_type, n_batch=n_batch
        )
        low, high = (middle, high) if bill.total <= memory else (low, middle - 1)
    return low

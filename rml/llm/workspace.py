"""The arrays of a step of the decoder."""

import math

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml.llm.config import ModelConfig
from rml.llm.plan import Plan

__all__ = ["MAX_TOKENS", "Workspace"]

F32 = npt.NDArray[np.float32]

MAX_TOKENS = 512  # tokens of one plan; a longer prompt runs in pieces, with the same bits


def aligned(*shape: int) -> F32:
    """Zeros that begin at a cache line, so that no vector of a row straddles two of them."""
    n = math.prod(shape)
    memory = np.zeros(n + 15, np.float32)
    start = -memory.ctypes.data // 4 % 16
    return memory[start : start + n].reshape(shape)


class Workspace:
    """Arrays of a step and the plans that use them; belongs to one cache."""

    def __init__(self, config: ModelConfig, n_tokens: int) -> None:
        array = aligned
        self.n_tokens = n_tokens
        self.ids = np.zeros(n_tokens, np.int32)
        self.x = array(n_tokens, config.d_model)
        self.normed = array(n_tokens, config.d_model)
        self.q = array(n_tokens, config.n_heads, config.head_dim)
        self.k = array(n_tokens, config.n_kv_heads, config.head_dim)
        self.v = array(n_tokens, config.n_kv_heads, config.head_dim)
        self.mixed = array(n_tokens, config.n_heads, config.head_dim)
        self.branch = array(n_tokens if config.sandwich_norms else 0, config.d_model)
        self.hidden = array(n_tokens, 0 if config.n_experts else config.d_ffn)
        self.expert_scores = array(n_tokens, config.n_experts)
        self.expert_ids = np.zeros((n_tokens, config.n_experts_used), np.int32)
        self.expert_weights = array(n_tokens, config.n_experts_used)
        self.angles = [
            (array(n_tokens, config.head_dim // 2), array(n_tokens, config.head_dim // 2))
            for _ in range(2 if config.rope_local_theta is not None else 1)
        ]
        self.logits = array(1, config.n_vocab)
        self.next_logits: F32 = self.logits[0]
        self.scratch = _kernels.Scratch()
        self.plans: dict[tuple[int, bool], Plan] = {}

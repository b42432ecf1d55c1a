"""What a session costs: the cache to the byte, the bill, and the longest context that fits."""

import dataclasses

import pytest

from rml import _kernels
from rml.engine.pool import PagePool
from rml.errors import ArgumentError
from rml.llm.config import ModelConfig
from rml.llm.memory import (
    LIST_BYTES_PER_TOKEN,
    MemoryBill,
    kv_bytes_per_token,
    largest_context,
    scratch_bytes,
)
from rml.llm.workspace import Workspace

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
LLAMA_8B = dataclasses.replace(TOY, n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128)


@pytest.mark.parametrize(
    ("kv_type", "expected"),
    # 32 layers, keys and values, 1024 channels; int8 with 32 scales of 4 bytes for them.
    [("f32", 32 * 2 * 4096), ("f16", 32 * 2 * 2048), ("int8", 32 * 2 * (1024 + 128))],
)
def test_one_token_of_llama_8b(kv_type, expected):
    assert kv_bytes_per_token(LLAMA_8B, kv_type) == expected


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
@pytest.mark.parametrize("head_dim", [2, 6, 8, 12, 64, 80, 96, 256])
def test_the_bill_of_a_cache_is_what_the_cache_takes(kv_type, head_dim):
    config = dataclasses.replace(TOY, head_dim=head_dim)
    pool = PagePool(4, 2, head_dim, kv_type, budget=1 << 24)
    pages = [pool.take() for _ in range(3)]  # of 40 positions
    n_bytes = sum(array.nbytes for page in pages for array in pool.pages.page(page))
    bill = MemoryBill.of(config, weights=0, n_ctx=40, kv_type=kv_type, n_batch=8)

    assert kv_bytes_per_token(config, kv_type) == pool.pages.bytes_per_token
    assert bill.kv_cache == n_bytes


def test_unknown_cache_type():
    with pytest.raises(ArgumentError, match="kv_type is 'q4', but must be one of f32, f16, int8"):
        kv_bytes_per_token(TOY, "q4")


def workspace_bytes(config, n_rows=5):
    """As an outline and allocated; both count the same."""
    outline = Workspace(config, n_rows, allocate=False)
    assert outline.nbytes == Workspace(config, n_rows).nbytes
    return outline.nbytes


def test_a_workspace_counts_every_array():
    # Two streams of 64, queries and output of 64, keys and values of 16, gate 96, angles 2 x 4;
    # the logits; thirteen arrays that begin at a cache line.
    arrays = 5 * 4 * (2 * 64 + 2 * 64 + 2 * 16 + 96 + 2 * 4) + 5 * 400 + 13 * 60
    # Ids, positions, owners, outputs, two tables; an end more of the first rows; three counts.
    step = 5 * (4 + 8 + 4 + 4 + 8 + 8) + 6 * 8 + 3 * 8
    assert workspace_bytes(TOY) == arrays + step

    branch = dataclasses.replace(TOY, sandwich_norms=True)
    assert workspace_bytes(branch) - workspace_bytes(TOY) == 5 * 4 * 64
    local = dataclasses.replace(TOY, rope_local_theta=1e4)
    assert workspace_bytes(local) - workspace_bytes(TOY) == 5 * 4 * 8 + 2 * 60
    experts = dataclasses.replace(TOY, n_experts=7, n_experts_used=2, d_expert_ffn=96, d_ffn=0)
    # Seven scores; for two choices an id and a weight; no gate, which is in scratch memory.
    assert workspace_bytes(experts) - workspace_bytes(TOY) == 5 * 4 * (7 + 2 * 2 - 96)


def test_scratch_is_that_of_every_capacity():
    """A step of 17 rows has arrays for 32, and steps of one row have their own."""
    least = workspace_bytes(TOY, 1) + workspace_bytes(TOY, 32)
    found = scratch_bytes(TOY, 512, 17)

    assert found > least
    assert scratch_bytes(TOY, 17, 512) == found
    assert scratch_bytes(TOY, 1, 17) <= found - workspace_bytes(TOY, 32)
    assert scratch_bytes(TOY, 33, 64) > least + workspace_bytes(TOY, 512)
    if _kernels.TWINS is None:  # definitions have neither records nor scratch memory
        assert found == least + 4


def test_bill():
    bill = MemoryBill.of(TOY, weights=1000, n_ctx=17, kv_type="f32", n_batch=512)

    assert bill.weights == 1000
    assert bill.kv_cache == 32 * 4 * 2 * 16 * 4  # two pages of sixteen positions
    assert bill.scratch == scratch_bytes(TOY, 512, 17)
    assert bill.lists == 32 * LIST_BYTES_PER_TOKEN
    assert bill.total == bill.weights + bill.kv_cache + bill.lists + bill.scratch


@pytest.mark.parametrize("kv_type", ["f32", "f16", "int8"])
@pytest.mark.parametrize("memory", [10_000, 50_000, 300_000, 1_000_000])
def test_largest_context_is_the_last_that_fits(kv_type, memory):
    def total(n_ctx):
        return MemoryBill.of(TOY, weights=7000, n_ctx=n_ctx, kv_type=kv_type, n_batch=32).total

    found = largest_context(TOY, memory=memory, weights=7000, kv_type=kv_type, n_batch=32)

    assert found == max((n for n in range(1, 2049) if total(n) <= memory), default=0)


def test_largest_context_stays_within_that_of_training():
    limits = {"weights": 7000, "kv_type": "f16", "n_batch": 32}

    assert largest_context(TOY, memory=10**12, **limits) == 2048
    assert largest_context(TOY, memory=6999, **limits) == 0

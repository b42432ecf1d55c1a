"""What an operation costs, counted by hand; and a profile, which holds times against limits."""

from types import SimpleNamespace

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.block_formats import FORMATS
from rml._kernels.pages import Pages, PageTable
from rml._kernels.step import Step
from rml.errors import ArgumentError
from rml.limits import Limits
from rml.llm.operation import Operation
from rml.llm.plan import Plan

LIMITS = Limits(
    gigabytes_per_second=10.0,
    int8_gigaproducts_per_second=100.0,
    int8x2_gigaproducts_per_second=50.0,
    f32_gigaproducts_per_second=20.0,
    n_threads=1,
    isa="base",
)


def matrix(format_name, rows, cols):
    n_bytes = rows * FORMATS[format_name].row_bytes(cols)
    return SimpleNamespace(type=format_name, rows=rows, cols=cols, data=np.zeros(n_bytes, np.uint8))


def zeros(*shape):
    return np.zeros(shape, np.float32)


def product(*weights, n_tokens=3, compute="int8x2"):
    outs = [zeros(n_tokens, w.rows) for w in weights]
    return Operation(
        "matmul_many", "layer 7: query", (zeros(n_tokens, 64), list(weights), outs),
        {"compute": compute, "biases": None, "scratch": _kernels.Scratch()},
    )  # fmt: skip


@pytest.mark.parametrize("compute", ["int8x2", "int8", "f32"])
def test_quantized_weights(compute):
    operation = product(matrix("Q8_0", 10, 64), compute=compute)

    assert operation.kind == "query"
    assert operation.products == 3 * 10 * 64
    assert operation.products_by_kind == {"f32": 0} | {compute: 3 * 10 * 64}
    assert operation.n_bytes == 10 * 2 * 34


@pytest.mark.parametrize(("format_name", "size"), [("F32", 4), ("F16", 2), ("BF16", 2), ("F64", 8)])
def test_plain_weights_are_multiplied_in_float32(format_name, size):
    operation = product(matrix(format_name, 10, 64))

    assert operation.products_by_kind == {"int8x2": 0, "f32": 3 * 10 * 64}
    assert operation.n_bytes == 10 * 64 * size


def test_weights_of_both_kinds():
    operation = product(matrix("Q4_0", 10, 64), matrix("F16", 20, 64))

    assert operation.products == 3 * 30 * 64
    assert operation.products_by_kind == {"int8x2": 3 * 10 * 64, "f32": 3 * 20 * 64}


def test_experts_are_counted_as_often_as_they_are_chosen():
    gates, ups, downs = (
        [matrix("Q4_0", *shape) for _ in range(8)] for shape in ((32, 64), (32, 64), (64, 32))
    )
    ids = np.zeros((3, 2), np.int32)
    operation = Operation(
        "mix_experts", "layer 0: experts",
        (zeros(3, 64), gates, ups, downs, ids, zeros(3, 2), zeros(3, 64)), {"compute": "int8"},
    )  # fmt: skip

    assert operation.products_by_kind == {"int8": 3 * 2 * 3 * 32 * 64, "f32": 0}
    assert operation.n_bytes == 6 * 3 * 32 * 2 * 18  # six choices need six of the eight, at most


@pytest.mark.parametrize(("kv_type", "per_position"), [("f32", 512), ("f16", 256), ("int8", 144)])
@pytest.mark.parametrize(
    ("first", "n", "window", "keys", "read"),
    [(0, 1, 0, 1, 1), (9, 1, 0, 10, 10), (4, 3, 0, 5 + 6 + 7, 7), (20, 3, 8, 3 * 8, 10)],
)
def test_attention(kv_type, per_position, first, n, window, keys, read):
    pages = Pages(2, 2, 32, kv_type, n_pages=4, slab_pages=4)  # two kv heads of 32
    step = Step(n)
    step.add([0] * n, first, [PageTable([0, 1, 2, 3])])
    q = zeros(n, 4, 32)
    operation = Operation(
        "attend", "layer 1: attention", (q, pages, step, q),
        {"layer": 1, "scale": 1.0, "window": window},
    )  # fmt: skip

    assert operation.products == operation.products_by_kind["f32"] == 2 * 4 * 32 * keys
    assert operation.n_bytes == read * per_position
    assert operation.weight_bytes == 0


def test_embedding_reads_the_rows_of_its_tokens():
    ids, table = np.zeros(3, np.int32), matrix("Q8_0", 100, 64)
    operation = Operation("embed", "token embedding", (ids, table, zeros(3, 64)), {})

    assert (operation.n_bytes, operation.products) == (3 * 2 * 34, 0)


@pytest.fixture
def plan():
    """Two layers of a norm and a product."""
    plan = Plan(1)
    x, weight = zeros(1, 64) + 1, matrix("F32", 256, 64)
    for layer in range(2):
        at = f"layer {layer}: "
        plan.record("rms_norm", at + "norm", x, zeros(64), zeros(1, 64), eps=1e-5)
        plan.record(
            "matmul_many", at + "query", x, [weight], [zeros(1, 256)],
            compute="int8", scratch=_kernels.Scratch(),
        )  # fmt: skip
    return plan


def test_a_profile_is_a_list_of_timings(plan):
    profile = plan.profile(repeats=2)

    assert [t.operation for t in profile] == plan.operations
    assert all(t.seconds > 0 for t in profile)
    assert profile.seconds >= sum(t.seconds for t in profile)
    assert (profile[1].limit_seconds, profile[1].share, profile.share) == (None, None, None)
    assert "of the limit" not in str(profile)


def test_a_profile_with_limits(plan):
    profile = plan.profile(repeats=1, limits=LIMITS)

    norm, query = profile[:2]
    # 64 kB at 10 GB/s take longer than 16384 products at 20 G/s.
    assert query.limit_seconds == pytest.approx(256 * 64 * 4 / 10e9)
    assert query.share == query.limit_seconds / query.seconds
    assert (norm.limit_seconds, norm.share) == (0, 0)
    assert profile.limit_seconds == pytest.approx(2 * query.limit_seconds)
    assert profile.share == profile.limit_seconds / profile.seconds


def test_a_profile_prints_equal_operations_of_all_layers_as_one_line(plan):
    head, *rows, whole, outside, limit = str(plan.profile(1, LIMITS)).splitlines()

    assert head.split("  ")[0] == "kernel"
    assert [row.split()[:2] for row in rows] == [["rms_norm", "norm"], ["matmul_many", "query"]]
    assert rows[1].split()[2:4] == ["F32", "2"]
    assert rows[1].endswith("%")
    assert whole.split()[:2] == ["all", "4"]
    assert "outside the kernels" in outside
    assert limit == f"limit: {LIMITS}"


def test_no_run_is_no_profile(plan):
    with pytest.raises(ArgumentError, match="repeats=0 must be"):
        plan.profile(repeats=0)


def test_a_profile_does_not_end_at_the_abort_flag(plan):
    plan.abort[0] = 1

    assert all(t.seconds > 0 for t in plan.profile(repeats=1))

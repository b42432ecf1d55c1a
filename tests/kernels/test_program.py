"""A program runs its operations as they would run one by one."""

import threading

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.pages import Pages, PageTable
from rml._kernels.step import Step
from rml.selftest.problem import random_matrix


def step(module, n_threads, abort=None, n_tokens=5):
    """A small chain of operations on fixed arrays; the program, and the array it ends in."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_tokens, 48)).astype(np.float32)
    normed, branch = np.zeros_like(x), np.zeros_like(x)
    weight = rng.standard_normal(48).astype(np.float32)
    ops, operations = [], _kernels.operations_of(module)
    for _ in range(20):
        ops.append(operations["rms_norm"](x, weight, normed, eps=1e-5))
        ops.append(operations["rms_norm"](normed, weight, branch, eps=1e-5))
        ops.append(operations["add"](branch, x))
    abort = np.zeros(1, np.int32) if abort is None else abort
    return module.Program(ops, n_threads, abort), ops, x


@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("n_threads", [1, 2, 3, 16])
def test_program_equals_its_operations(twins, n_threads, n_tokens):
    program, _, x = step(twins.module, n_threads, n_tokens=n_tokens)
    _, ops, expected = step(twins.module, 1, n_tokens=n_tokens)
    for op in ops:
        op.run()

    assert program.run()

    assert np.array_equal(x, expected)


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_every_operation_has_its_time(twins, n_tokens):
    """Also those of a single item, which one thread runs one after another."""
    program, ops, _ = step(twins.module, 2, n_tokens=n_tokens)
    seconds = np.full(len(ops), -1.0)
    assert program.run(seconds)
    assert (seconds >= 0).all()


@pytest.mark.parametrize("n_tokens", [1, 5])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_abort_ends_a_run_and_the_program_runs_again(twins, n_threads, n_tokens):
    abort = np.ones(1, np.int32)
    program, ops, x = step(twins.module, n_threads, abort, n_tokens)
    before = x.copy()

    assert not program.run()
    assert np.array_equal(x, before)

    abort[0] = 0
    assert program.run()
    assert not np.array_equal(x, before)
    assert len(ops) == 60


def test_abort_from_another_thread(twins):
    abort = np.zeros(1, np.int32)
    program, _, _ = step(twins.module, 2, abort)
    timer = threading.Timer(0.05, lambda: abort.__setitem__(0, 1))
    timer.start()
    for _ in range(10_000_000):
        if not program.run():
            break
    timer.join()
    assert abort[0] == 1


def test_no_operations(twins):
    assert twins.module.Program([], 2, np.zeros(1, np.int32)).run()


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("n", [1, 3, 8, 9, 40])
@pytest.mark.parametrize("types", [("Q8_0", "Q4_K"), ("F16", "F32"), ("Q5_1", "BF16")])
def test_operations_need_what_they_say(twins, types, n, n_threads):
    """Asked before with the same arguments: bytes of records, and of scratch memory."""
    rng = np.random.default_rng(0)
    x = np.zeros((n, 256), np.float32)
    out, wide, stream = np.zeros((n, 40), np.float32), *np.zeros((2, n, 256), np.float32)
    a, b = (random_matrix(rng, name, 40, 256) for name in types)
    ups, downs = ([random_matrix(rng, name, 256, 256) for name in types] for _ in range(2))
    ids, weights = np.tile(np.int32([[1, 0]]), (n, 1)), np.ones((n, 2), np.float32)
    pages = Pages(1, 2, 16, "f16", n_pages=64, slab_pages=64)
    pages.reserve(0)
    step = Step(64)
    step.add([0] * n, 700, [PageTable(range(64))])
    q = np.zeros((n, 6, 16), np.float32)
    calls = [
        ("matmul_many", (x, [a, b], [out, out.copy()]), {}),
        ("matmul_glu", (x, a, b, out), {"compute": "int8"}),
        ("accumulate", (wide, ups[0], stream), {"compute": "f32"}),
        ("mix_experts", (x, ups, ups, downs, ids, weights, stream), {}),
        ("attend", (q, pages, step, q.copy()), {"layer": 0, "scale": 1.0}),
        ("attend", (q, pages, step, q.copy()), {"layer": 0, "scale": 1.0, "window": 300}),
        ("add", (x, stream), {}),
    ]
    ops = []
    for name, args, kwargs in calls:
        operation = twins.operations[name]
        scratch = {} if name == "add" else {"scratch": twins.module.Scratch()}
        records, shared, per_thread = operation.needs(n, *args, **kwargs)
        ops.append(operation(*args, **kwargs, **scratch))
        ops[-1].run(n_threads)
        assert ops[-1].nbytes == records
        if scratch:
            assert scratch["scratch"].nbytes == shared + n_threads * per_thread, name
        else:
            assert (records, shared, per_thread) == (0, 0, 0)
    program = twins.module.Program(ops, n_threads, np.zeros(1, np.int32))
    assert program.nbytes == twins.module.program_bytes(len(ops)) + sum(op.nbytes for op in ops)

"""A program runs its operations as they would run one by one."""

import threading

import numpy as np
import pytest

from rml import _kernels


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

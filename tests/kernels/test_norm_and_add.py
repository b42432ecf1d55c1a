"""RMSNorm and the addition of a branch."""

import numpy as np
import pytest

from rml.errors import ArgumentError

U = 2.0**-24


@pytest.mark.parametrize("d", [1, 2, 15, 16, 17, 64, 576, 1000])
def test_rms_norm_is_float64_within_its_roundings(kernels, d):
    rng = np.random.default_rng(d)
    x = (rng.standard_normal((4, d)) * np.array([[1], [1e-4], [1e4], [1e-12]])).astype(np.float32)
    weight = rng.standard_normal(d).astype(np.float32)
    out = np.empty_like(x)

    kernels.rms_norm(x, weight, out, eps=1e-6, n_threads=2)

    x64 = x.astype(np.float64)
    exact = (
        weight
        * x64
        / np.sqrt(np.mean(x64**2, axis=1, keepdims=True) + np.float64(np.float32(1e-6)))
    )
    # Half the relative error of the mean square (d terms), then root, division, two products.
    assert (np.abs(out - exact) <= (d / 2 + 6) * U * np.abs(exact)).all()


def test_rms_norm_in_place_and_threads(kernels):
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((7, 40)).astype(np.float32), np.ones(40, np.float32)
    out = np.empty_like(x)
    kernels.rms_norm(x, weight, out, eps=1e-5)

    for n_threads in (1, 2, 3):
        same = x.copy()
        kernels.rms_norm(same, weight, same, eps=1e-5, n_threads=n_threads)
        assert np.array_equal(same, out)


def test_rms_norm_of_zeros_is_zero(kernels):
    out = np.ones((1, 8), np.float32)
    kernels.rms_norm(np.zeros((1, 8), np.float32), np.ones(8, np.float32), out, eps=1e-6)
    assert not out.any()


def test_add(kernels):
    rng = np.random.default_rng(1)
    branch, x = rng.standard_normal((2, 5, 33)).astype(np.float32)
    expected = x + branch
    kernels.add(branch, x, n_threads=2)
    assert np.array_equal(x, expected)


def test_refused(kernels, definitions):
    x, w = np.zeros((2, 8), np.float32), np.ones(8, np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    calls = [
        ("rms_norm", (x, w[:4], x), {"eps": 1e-6}),
        ("rms_norm", (x, w, x), {"eps": 0.0}),
        ("rms_norm", (x, w, x), {"eps": float("nan")}),
        ("rms_norm", (x, w, frozen), {"eps": 1e-6}),
        ("rms_norm", (x[:, ::2], w[:4], x), {"eps": 1e-6}),
        ("add", (x[:1], x), {}),
        ("add", (x, frozen), {}),
    ]
    for name, args, kwargs in calls:
        with pytest.raises(ArgumentError) as defined:
            getattr(definitions, name)(*args, **kwargs)
        with pytest.raises(ArgumentError) as got:
            getattr(kernels, name)(*args, **kwargs)
        assert str(got.value) == str(defined.value)


def test_no_threads(twins):
    x = np.zeros((2, 8), np.float32)
    with pytest.raises(ArgumentError, match="n_threads is 0"):
        twins.add(x, x.copy(), n_threads=0)


def test_some_rows_of_many(kernels):
    x, weight = np.random.default_rng(1).standard_normal((2, 9, 33)).astype(np.float32)
    weight, whole = weight[0].copy(), np.empty_like(x)
    kernels.rms_norm(x, weight, whole, eps=1e-5)
    rows = np.int32([8, 0, 3, 3])
    for n_threads in (1, 2, 3):
        out = np.full((4, 33), np.nan, np.float32)
        kernels.rms_norm(x, weight, out, eps=1e-5, rows=rows, n_threads=n_threads)
        assert np.array_equal(out, whole[rows])


@pytest.mark.parametrize("rows", [np.int32([9]), np.int32([0, -1]), np.int64([0]), np.int32([[0]])])
def test_rows_that_are_not_there_are_refused(kernels, definitions, rows):
    x, out = np.ones((9, 4), np.float32), np.zeros((rows.size, 4), np.float32)
    messages = []
    for each in (kernels, definitions):
        with pytest.raises(ArgumentError) as refused:
            each.rms_norm(x, x[0], out, eps=1e-5, rows=rows)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert not out.any()

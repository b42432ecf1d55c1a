"""Rotary angles and rotation."""

import math

import numpy as np
import pytest

from rml.errors import ArgumentError

U = 2.0**-24


def frequencies(n, theta=10000.0):
    return theta ** (-np.arange(n) / n)


def angles(kernels, position, n_tokens, inv_freq, **kwargs):
    cos, sin = np.full((2, n_tokens, len(inv_freq)), np.nan, np.float32)
    kernels.rope_angles(position + np.arange(n_tokens), inv_freq, cos, sin, **kwargs)
    return cos, sin


@pytest.mark.parametrize("factor", [1.0, 1.2079441541679836])
@pytest.mark.parametrize("position", [0, 1, 4095, 100_000, 1_000_000])
@pytest.mark.parametrize("n", [1, 3, 32, 40, 256])
def test_angles_are_rounded_once(kernels, position, n, factor):
    inv_freq = frequencies(n)

    cos, sin = angles(kernels, position, 5, inv_freq, factor=factor, n_threads=2)

    for t in range(5):
        for i in range(n):
            angle = (position + t) * float(inv_freq[i])
            for got, exact in ((cos[t, i], math.cos(angle)), (sin[t, i], math.sin(angle))):
                # One rounding to float32, and those of float64: two products, the function.
                assert abs(got - exact * factor) <= (U + 4 * 2.0**-53) * abs(exact * factor)


def test_angles_do_not_depend_on_the_tokens_beside(kernels):
    inv_freq = frequencies(24)
    cos, sin = angles(kernels, 1000, 30, inv_freq)
    for n_threads in (1, 2, 3):
        again = angles(kernels, 1000, 30, inv_freq, n_threads=n_threads)
        assert np.array_equal(again, (cos, sin))
    for t in range(30):
        one = angles(kernels, 1000 + t, 1, inv_freq)
        assert np.array_equal(one, (cos[t : t + 1], sin[t : t + 1]))


def test_rows_have_positions_of_their_own(kernels):
    inv_freq, positions = frequencies(8), np.array([7, 100, 3, 3, 90_000])
    cos, sin = np.empty((2, 5, 8), np.float32)
    kernels.rope_angles(positions, inv_freq, cos, sin, n_threads=2)
    for t, position in enumerate(positions):
        one = angles(kernels, int(position), 1, inv_freq)
        assert np.array_equal(one, (cos[t : t + 1], sin[t : t + 1]))


def rotated(x, cos, sin, *, interleaved, dtype):
    """Pair by pair, in the given precision."""
    out, n = x.astype(dtype), x.shape[2] // 2
    for i in range(n):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + n)
        a, b = x[:, :, first].astype(dtype), x[:, :, second].astype(dtype)
        c, s = cos[:, i, None].astype(dtype), sin[:, i, None].astype(dtype)
        out[:, :, first], out[:, :, second] = a * c - b * s, b * c + a * s
    return out


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("d", [2, 6, 12, 32, 34, 64, 80, 128, 512])
@pytest.mark.parametrize(("n_tokens", "heads"), [(1, 1), (1, 9), (7, 3)])
def test_rotation_is_exact_to_the_last_bit(kernels, interleaved, d, n_tokens, heads):
    """Every operation is rounded once, in this order, at every level."""
    rng = np.random.default_rng(d)
    x = rng.standard_normal((n_tokens, heads, d)).astype(np.float32)
    cos, sin = angles(kernels, 77, n_tokens, frequencies(d // 2))
    cos.flags.writeable = sin.flags.writeable = False
    results = []
    for n_threads in (1, 2, 3):
        results.append(x.copy())
        kernels.rotate(cos, sin, results[-1], interleaved=interleaved, n_threads=n_threads)

    wanted = rotated(x, cos, sin, interleaved=interleaved, dtype=np.float32)
    exact = rotated(x, cos, sin, interleaved=interleaved, dtype=np.float64)
    for out in results:
        assert np.array_equal(out, wanted)
        # Two products and a sum, whose magnitudes are at most |x| of the pair together.
        assert (np.abs(out - exact) <= 3 * U * 2 * np.abs(x).max()).all()


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_score_depends_on_the_distance_alone(kernels, interleaved):
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 64)).astype(np.float32)
    scores = []
    for start in (0, 50, 5000):
        turned = []
        for x, position in ((q, start + 17), (k, start)):
            cos, sin = angles(kernels, position, 1, frequencies(32))
            turned.append(x.copy())
            kernels.rotate(cos, sin, turned[-1], interleaved=interleaved)
        scores.append(float(np.vdot(*(x.astype(np.float64) for x in turned))))
    assert np.ptp(scores) <= 12 * U * np.linalg.norm(q) * np.linalg.norm(k)


def refused_calls():
    """Kernel, changed arguments."""
    table = np.zeros((2, 4), np.float32)
    frozen = table.copy()
    frozen.flags.writeable = False
    x = np.zeros((2, 3, 8), np.float32)
    frozen_x = x.copy()
    frozen_x.flags.writeable = False
    yield "rope_angles", {"positions": np.zeros(2, np.int32)}
    yield "rope_angles", {"positions": np.zeros(1, np.int64)}
    yield "rope_angles", {"inv_freq": np.ones(4, np.float32)}
    yield "rope_angles", {"inv_freq": np.ones(5)}
    yield "rope_angles", {"cos": frozen}
    yield "rope_angles", {"sin": table[:1]}
    yield "rope_angles", {"sin": frozen}
    yield "rope_angles", {"factor": float("inf")}
    yield "rotate", {"x": np.zeros((2, 3, 7), np.float32)}
    yield "rotate", {"x": x.astype(np.float64)}
    yield "rotate", {"x": x[:, :, ::2]}
    yield "rotate", {"x": frozen_x}
    yield "rotate", {"x": x[:1]}
    yield "rotate", {"cos": table[:, :3].copy()}
    yield "rotate", {"sin": table[:1]}


@pytest.mark.parametrize(("name", "changed"), list(refused_calls()))
def test_refused(kernels, definitions, name, changed):
    cos, sin = np.zeros((2, 2, 4), np.float32)
    arguments = {
        "rope_angles": {"positions": np.zeros(2, np.int64), "inv_freq": np.ones(4)},
        "rotate": {"x": np.zeros((2, 3, 8), np.float32), "interleaved": True},
    }[name] | {"cos": cos, "sin": sin, **changed}
    with pytest.raises(ArgumentError) as defined:
        getattr(definitions, name)(**arguments)
    with pytest.raises(ArgumentError) as got:
        getattr(kernels, name)(**arguments)
    assert str(got.value) == str(defined.value)

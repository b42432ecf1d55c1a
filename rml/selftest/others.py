"""Norms, additions, rotations, routing, and the merging of tokens."""

import math
from collections.abc import Iterator

import numpy as np

from rml._kernels import DEFINITIONS
from rml._kernels.merge_tables import PairTable, TokenTable, code_points
from rml.selftest.problem import Kernels, Problem, U

__all__ = ["problems"]


def problems(kernels: Kernels, n_threads: int) -> Iterator[Problem]:
    """Problems of the small kernels of a step, of those of sampling, and of the merges."""
    rng = np.random.default_rng(4)
    yield _norm(kernels, rng, n_threads)
    yield _add(kernels, rng, n_threads)
    yield from _rotary(kernels, rng, n_threads)
    for normalize in (True, False):
        yield from _routing(kernels, rng, n_threads, normalize)
    yield from _vocabulary(kernels, rng, n_threads)
    yield _pairs(kernels, rng, n_threads)
    yield _pieces(kernels, rng, n_threads)


def _norm(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Problem:
    x = rng.standard_normal((5, 577)).astype(np.float32)
    weight = rng.standard_normal(577).astype(np.float32)
    out = np.full(x.shape, np.nan, np.float32)
    kernels["rms_norm"](x, weight, out, eps=1e-5, n_threads=n_threads)
    wide = x.astype(np.float64)
    eps = np.float64(np.float32(1e-5))
    exact = weight * wide / np.sqrt(np.mean(wide**2, axis=1, keepdims=True) + eps)
    # Half the relative error of the mean square, then a root, a division and two products.
    return Problem("rms_norm", "577 wide", out, exact, (577 / 2 + 6) * U * np.abs(exact))


def _add(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Problem:
    branch, x = rng.standard_normal((2, 5, 99)).astype(np.float32)
    exact = x + branch
    kernels["add"](branch, x, n_threads=n_threads)
    return Problem("add", "99 wide", x, exact)


def _rotary(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Iterator[Problem]:
    inv_freq = 10000.0 ** -(np.arange(32) / 32)
    positions = 100_000 + np.arange(7)
    cos, sin = np.full((2, 7, 32), np.nan, np.float32)
    kernels["rope_angles"](positions, inv_freq, cos, sin, n_threads=n_threads)
    angles = positions[:, None] * inv_freq
    exact = np.array([[math.cos(a), math.sin(a)] for a in angles.flat])
    # One rounding to float32, and those of the product and the function in float64.
    bound = (U + 4 * 2.0**-53) * np.abs(exact)
    got = np.stack([cos.reshape(-1), sin.reshape(-1)], axis=1)
    yield Problem("rope_angles", "position 100,000", got, exact, bound)

    x = rng.standard_normal((7, 3, 64)).astype(np.float32)
    c, s = cos[:, None].copy(), sin[:, None].copy()
    for interleaved in (True, False):
        first, second = (
            (slice(0, None, 2), slice(1, None, 2))
            if interleaved
            else (slice(0, 32), slice(32, None))
        )
        turned, out = np.empty_like(x), x.copy()
        turned[..., first] = x[..., first] * c - x[..., second] * s
        turned[..., second] = x[..., second] * c + x[..., first] * s
        kernels["rotate"](cos, sin, out, interleaved=interleaved, n_threads=n_threads)
        # Each operation is rounded by itself, in this order.
        yield Problem("rotate", "interleaved" if interleaved else "halves", out, turned)


def _routing(
    kernels: Kernels, rng: np.random.Generator, n_threads: int, normalize: bool
) -> Iterator[Problem]:
    n_experts, k = 60, 4
    scores = 2 * rng.standard_normal((9, n_experts)).astype(np.float32)
    ids = np.full((9, k), -1, np.int32)
    weights = np.full((9, k), np.nan, np.float32)
    kernels["route"](scores, ids, weights, normalize=normalize, n_threads=n_threads)
    wide = scores.astype(np.float64)
    best = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    p = np.exp(wide - wide.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    exact = np.take_along_axis(p, best, axis=1)
    # A probability: e^x with its argument, above and in the sum below; then the sum over k.
    roundings = 2 * (np.ptp(wide, axis=1, keepdims=True) + 4) + n_experts + 1
    if normalize:
        exact /= exact.sum(axis=1, keepdims=True)
        roundings = 2 * roundings + k + 1
    case = "normalized" if normalize else "plain"
    yield Problem("route", f"{case}, experts", ids, best)
    yield Problem("route", case, weights, exact, 1.01 * roundings * U * exact)


def _vocabulary(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Iterator[Problem]:
    logits = (4 * rng.standard_normal(3001)).astype(np.float32)
    logits[7::100] = logits[7]
    ids, values = np.full(50, -1, np.int64), np.full(50, np.nan, np.float32)
    kernels["largest"](logits, ids, values, n_threads=n_threads)
    best = np.argsort(-logits, kind="stable")[:50]
    yield Problem("largest", "50 of 3001, ids", ids, best)
    yield Problem("largest", "50 of 3001", values, logits[best])

    said, counts = np.arange(0, 3001, 7), np.arange(1, 430, dtype=np.float32)
    got, exact = logits.copy(), logits.copy()
    penalties = {"repeat": 1.3, "presence": 0.1, "frequency": 0.01}
    kernels["penalize"](said, counts, got, **penalties, n_threads=n_threads)
    factor = np.float32(penalties["repeat"])
    exact[said] = np.where(exact[said] > 0, exact[said] / factor, exact[said] * factor)
    exact[said] -= counts * np.float32(0.01) + np.float32(0.1)
    # Each operation is rounded by itself, in this order.
    yield Problem("penalize", "429 of 3001", got, exact)

    chances = np.arange(25) / 25
    drawn = np.full(25, -1, np.int64)
    settings = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05}
    for i, chance in enumerate(chances):
        one = drawn[i : i + 1]
        kernels["choose"](values, one, **settings, chance=float(chance), n_threads=n_threads)
    scaled = (values - values[0]).astype(np.float64) / np.float32(settings["temperature"])
    sums = np.cumsum(np.exp(scaled))
    n = 1 + int(np.searchsorted(sums[:-1], settings["top_p"] * sums[-1]))
    n = min(n, int((scaled >= math.log(settings["min_p"])).sum()))
    yield Problem(
        "choose", "25 draws", drawn, np.searchsorted(sums[:n], chances * sums[n - 1], "right")
    )

    out = np.full(2, np.nan)
    kernels["log_sum_exp"](logits, out, n_threads=n_threads)
    wide = logits.astype(np.float64)
    exact = np.array([wide.max(), math.log(math.fsum(np.exp(wide - wide.max())))])
    # Exponentials within four units, added in lanes of 376, and the logarithm.
    bound = np.array([0, (4 + 376 + 2) * 2.0**-53 * exact[1]])
    yield Problem("log_sum_exp", "3001 values", out, exact, bound)


def _pairs(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Problem:
    n = 40
    left, right = rng.integers(0, 8 + n // 2, (2, n)).astype(np.int32)
    table = PairTable(left, right, np.arange(8, 8 + n, dtype=np.int32))
    symbols = rng.integers(0, 8, 3000).astype(np.int32)
    borders = np.array([0, 1, 1, 40, 200, 3000], np.int64)
    exact = symbols.copy()
    kernels["bpe_merge"](symbols, borders, table, n_threads=n_threads)
    DEFINITIONS["bpe_merge"](exact, borders, table)
    return Problem("bpe_merge", "3000 symbols", symbols, exact)


def _pieces(kernels: Kernels, rng: np.random.Generator, n_threads: int) -> Problem:
    letters = "abcdé\u4e16"
    text = "".join(letters[i] for i in rng.integers(0, len(letters), 2000))
    pieces = {*letters[:-1], *(text[i : i + 2 + i % 4] for i in range(0, 400, 3))}
    vocab = {piece: i for i, piece in enumerate(sorted(pieces))}
    table = TokenTable(vocab, rng.standard_normal(len(vocab)).astype(np.float32))
    borders = np.array([0, 3, 3, 700, 2000], np.int64)
    got, exact = (np.full(2000, -1, np.int32) for _ in range(2))
    kernels["spm_merge"](code_points(text), borders, table, got, n_threads=n_threads)
    DEFINITIONS["spm_merge"](code_points(text), borders, table, exact)
    return Problem("spm_merge", "2000 characters", got, exact)

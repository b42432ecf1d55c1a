"""Keys and values: stored exactly as described, and attended to.

Bounds of attention, first order in u = 2^-24. A score is a sum of D products and a product with
the scale: off by (D + 3) u times the sum of the magnitudes, the rounding of an int8 number to
float32 included. e^x adds 4 u and the rounding of its argument, which is at most the spread of the
scores, twice; it is rescaled whenever a larger score appears, at most once a block of 32 and a span
of 256. Weighted values and weights are sums of n terms each; a division and two products remain.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rml._kernels import DEFINITIONS
from rml._kernels.checks import PAGE_SIZE, scale_group
from rml.selftest.problem import Kernels, Problem, U

__all__ = ["problems"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_DTYPES = {"f32": np.float32, "f16": np.float16, "int8": np.int8}
# Name, tokens, position of the first, query heads, kv heads, dimensions, window.
_SHAPES = (
    ("one token", 1, 330, 6, 2, 64, 0),
    ("a prompt", 21, 40, 4, 1, 80, 0),
    ("a window", 9, 300, 2, 2, 32, 77),
)


def problems(kernels: Kernels, n_threads: int) -> Iterator[Problem]:
    """Problems of store_kv and attend."""
    for kind in _DTYPES:
        rng = np.random.default_rng(3)
        yield _storing(kernels, kind, rng)
        for shape in _SHAPES:
            yield from _attending(kernels, kind, rng, *shape, n_threads)


class _Cache:
    """Pages in no order, of one layer of two."""

    def __init__(self, kind: str, n: int, n_kv_heads: int, d: int) -> None:
        entries = -(-n // PAGE_SIZE)
        lead = (entries + 1, 2, n_kv_heads)
        self.k = np.zeros((*lead, d, PAGE_SIZE), _DTYPES[kind])
        self.v = np.zeros((*lead, PAGE_SIZE, d), _DTYPES[kind])
        self.table = np.roll(np.arange(entries + 1, dtype=np.int32), 2)[:entries][::-1].copy()
        self.scales: dict[str, F32] = {}
        if kind == "int8":
            groups = d // scale_group(d)
            self.scales["k_scales"] = np.zeros((*lead, groups, PAGE_SIZE), np.float32)
            self.scales["v_scales"] = np.zeros((*lead, PAGE_SIZE, groups), np.float32)

    def store(self, kernels: Kernels, k: F32, v: F32) -> None:
        at = np.zeros(1, np.int64)
        kernels["store_kv"](k, v, self.k, self.v, self.table, at, layer=1, **self.scales)

    def bits(self) -> npt.NDArray[np.uint8]:
        arrays = (self.k, self.v, *self.scales.values())
        return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])

    def contents(self, n: int) -> tuple[F64, F64]:
        """Keys and values of the first n positions as float64, (n, G, D) each."""
        k = self.k[self.table, 1].astype(np.float64)
        v = self.v[self.table, 1].astype(np.float64)
        if self.scales:
            group = scale_group(v.shape[3])
            k *= np.repeat(self.scales["k_scales"][self.table, 1], group, axis=2)
            v *= np.repeat(self.scales["v_scales"][self.table, 1], group, axis=3)
        # (entries, G, D, 16) and (entries, G, 16, D) to (positions, G, D)
        k = k.transpose(0, 3, 1, 2).reshape(-1, k.shape[1], k.shape[2])
        v = v.transpose(0, 2, 1, 3).reshape(-1, v.shape[1], v.shape[3])
        return k[:n], v[:n]


def _random_kv(rng: np.random.Generator, n: int, n_kv_heads: int, d: int) -> tuple[F32, F32]:
    k, v = rng.standard_normal((2, n, n_kv_heads, d)).astype(np.float32)
    return k, v


def _storing(kernels: Kernels, kind: str, rng: np.random.Generator) -> Problem:
    k, v = _random_kv(rng, 37, 3, 48)
    k *= np.exp(4 * rng.standard_normal(k.shape)).astype(np.float32)
    got, exact = _Cache(kind, 40, 3, 48), _Cache(kind, 40, 3, 48)
    got.store(kernels, k, v)
    exact.store(Kernels(DEFINITIONS), k, v)
    return Problem("store_kv", kind, got.bits(), exact.bits())


def _attending(
    kernels: Kernels,
    kind: str,
    rng: np.random.Generator,
    name: str,
    n_tokens: int,
    position: int,
    n_heads: int,
    n_kv_heads: int,
    d: int,
    window: int,
    n_threads: int,
) -> Iterator[Problem]:
    n = position + n_tokens
    cache = _Cache(kind, n, n_kv_heads, d)
    cache.store(Kernels(DEFINITIONS), *_random_kv(rng, n, n_kv_heads, d))
    q = rng.standard_normal((n_tokens, n_heads, d)).astype(np.float32)
    results = []
    for threads in (1, n_threads):
        results.append(np.full(q.shape, np.nan, np.float32))
        kernels["attend"](
            q, cache.k, cache.v, cache.table, np.array([position]), results[-1],
            layer=1, scale=d**-0.5, window=window, n_threads=threads, **cache.scales,
        )  # fmt: skip
    exact, bound = _exact_attention(q, *cache.contents(n), position, window)
    yield Problem("attend", f"{kind}, {name}", results[0], exact, bound)
    yield Problem("attend", f"{kind}, {name}, in threads", results[1], results[0])


def _exact_attention(q: F32, k: F64, v: F64, position: int, window: int) -> tuple[F64, F64]:
    n_tokens, n_heads, d = q.shape
    shared = n_heads // k.shape[1]
    exact, bound = np.empty(q.shape), np.empty(q.shape)
    for t, h in np.ndindex(n_tokens, n_heads):
        stop = position + t + 1
        seen = slice(max(0, stop - window) if window else 0, stop)
        keys, values = k[seen, h // shared], v[seen, h // shared]
        n = len(keys)
        products = keys * q[t, h].astype(np.float64) * np.float64(np.float32(d**-0.5))
        scores = products.sum(axis=1)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        exact[t, h] = weights @ values
        spread = scores.max() - scores.min()
        rescalings = n // 32 + n // 256 + 4
        relative = (d + 3) * np.abs(products).sum(axis=1) + 2 * spread + 4 + 5 * rescalings
        total = relative + weights @ relative + 2 * n + 5
        bound[t, h] = 1.001 * U * (weights * total) @ np.abs(values)
    return exact, bound

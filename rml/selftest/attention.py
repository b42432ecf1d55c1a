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
from rml._kernels.pages import KV_TYPES, Pages, PageTable, pages_for, scale_group
from rml._kernels.step import Step
from rml.selftest.problem import Kernels, Problem, U

__all__ = ["problems"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# Name, tokens, position of the first, query heads, kv heads, dimensions, window.
_SHAPES = (
    ("one token", 1, 330, 6, 2, 64, 0),
    ("a prompt", 21, 40, 4, 1, 80, 0),
    ("a window", 9, 300, 2, 2, 32, 77),
)


def problems(kernels: Kernels, n_threads: int) -> Iterator[Problem]:
    """Problems of store_kv and attend."""
    for kind in KV_TYPES:
        rng = np.random.default_rng(3)
        yield _storing(kernels, kind, rng)
        for shape in _SHAPES:
            yield from _attending(kernels, kind, rng, *shape, n_threads)


class _Cache:
    """Pages in no order, of one layer of two."""

    def __init__(self, kind: str, n: int, n_kv_heads: int, d: int) -> None:
        entries = pages_for(n)
        self.pages = Pages(2, n_kv_heads, d, kind, n_pages=entries + 1, slab_pages=4)
        for slab in range(len(self.pages.slabs)):
            self.pages.reserve(slab)
        self.table = PageTable(np.roll(np.arange(entries + 1), 2)[:entries][::-1])

    def step(self, n: int, position: int) -> Step:
        """Make a step of `n` tokens of one sequence."""
        step = Step(n)
        step.add([0] * n, position, [self.table])
        return step

    def store(self, kernels: Kernels, k: F32, v: F32) -> None:
        kernels["store_kv"](k, v, self.pages, self.step(len(k), 0), layer=1)

    def bits(self) -> npt.NDArray[np.uint8]:
        arrays = [array for slab in self.pages.slabs if slab for array in slab.arrays()]
        return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])

    def contents(self, n: int) -> tuple[F64, F64]:
        """Keys and values of the first n positions as float64, (n, G, D) each."""
        found = [self.pages.page(self.table[entry]) for entry in range(len(self.table))]
        k, v, *scales = (np.stack([x[1] for x in part]) for part in zip(*found, strict=True))
        k, v = k.astype(np.float64), v.astype(np.float64)
        if scales:
            group = scale_group(v.shape[3])
            k *= np.repeat(scales[0], group, axis=2)
            v *= np.repeat(scales[1], group, axis=3)
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
            q, cache.pages, cache.step(n_tokens, position), results[-1],
            layer=1, scale=d**-0.5, window=window, n_threads=threads,
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

"""A paged cache written slot by slot, as its layout is described, for tests to compare with."""

import numpy as np

from rml._kernels.pages import Pages, PageTable, Slab
from rml._kernels.step import Step

PAGE = 16
SLAB = 4  # pages of a slab
DTYPES = {"f32": np.float32, "f16": np.float16, "int8": np.int8}


def group_of(d):
    """Dimensions that share a scale: the largest power of two that divides d, at most 32."""
    return next(g for g in (32, 16, 8, 4, 2) if d % g == 0)


class Paged:
    """Pages full of NaN (int8: of scales that are NaN) and a table that mixes them up.

    `k` and `v` are the float64 values of the positions that were put, (n, G, D). All pages lie in
    one array, of which the slabs are parts.
    """

    def __init__(self, n, n_kv_heads, d, kind="f32", *, seed=0, n_layers=2, layer=1, spare=2):
        rng = np.random.default_rng(seed)
        n_entries = -(-n // PAGE)
        lead = (n_entries + spare, n_layers, n_kv_heads)
        self.kind, self.layer, self.d = kind, layer, d
        self.table = rng.permutation(n_entries + spare)[:n_entries].astype(np.int32)
        blank = np.nan if kind != "int8" else 77
        self.k_pages = np.full((*lead, d, PAGE), blank, DTYPES[kind])
        self.v_pages = np.full((*lead, PAGE, d), blank, DTYPES[kind])
        self.scales = {}
        if kind == "int8":
            n_groups = d // group_of(d)
            self.scales["k_scales"] = np.full((*lead, n_groups, PAGE), np.nan, np.float32)
            self.scales["v_scales"] = np.full((*lead, PAGE, n_groups), np.nan, np.float32)
        self.k = np.full((n, n_kv_heads, d), np.nan)
        self.v = np.full((n, n_kv_heads, d), np.nan)

    def arrays(self):
        """All arrays of the pages, in a fixed order."""
        return [self.k_pages, self.v_pages, *self.scales.values()]

    @property
    def pages(self):
        """The arrays as they are now, in slabs."""
        n_pages, n_layers, n_kv_heads = self.k_pages.shape[:3]
        pages = Pages(n_layers, n_kv_heads, self.d, self.kind, n_pages=n_pages, slab_pages=SLAB)
        for i in range(len(pages.slabs)):
            part = slice(i * SLAB, (i + 1) * SLAB)
            pages.put(i, Slab(*(array[part] for array in self.arrays())))
        return pages

    def step(self, n, position):
        """A step of n tokens of the one sequence; none for n = 0."""
        step = Step(n)
        if n:
            step.add([0] * n, position, [PageTable(self.table)])
        return step

    def put(self, start, k, v):
        """Write float32 keys and values, (n, G, D), at the positions from `start` on."""
        for t, (key, value) in enumerate(zip(k, v, strict=True)):
            p = start + t
            page, slot = self.table[p // PAGE], p % PAGE
            for head in range(k.shape[1]):
                codes, scales, self.k[p, head] = self.encode(key[head])
                self.k_pages[page, self.layer, head, :, slot] = codes
                if scales is not None:
                    self.scales["k_scales"][page, self.layer, head, :, slot] = scales
                codes, scales, self.v[p, head] = self.encode(value[head])
                self.v_pages[page, self.layer, head, slot] = codes
                if scales is not None:
                    self.scales["v_scales"][page, self.layer, head, slot] = scales
        return self

    def encode(self, x):
        """Stored numbers, scales, and the float64 values that they mean, of one head."""
        if self.kind != "int8":
            with np.errstate(over="ignore"):
                stored = x.astype(DTYPES[self.kind])
            return stored, None, stored.astype(np.float64)
        codes, scales = np.zeros(x.shape, np.int8), []
        for first in range(0, x.size, group_of(x.size)):
            group = slice(first, first + group_of(x.size))
            scale = np.float32(max(abs(float(value)) for value in x[group])) / np.float32(127)
            if scale > 0:
                codes[group] = [round(float(np.float32(value) / scale)) for value in x[group]]
            scales.append(scale)
        return codes, scales, codes * np.repeat(np.float64(scales), group_of(x.size))

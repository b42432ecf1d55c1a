"""Attention of one layer of Llama 3 8B for one new token, by what the cache stores.

32 query heads over 8 kv heads of 128. Seconds a layer and step; multiply by 32 layers.
"""

import numpy as np

from benchmarks.common import THREADS, check_close, n_threads_of, seconds_per_call

HEADS, KV_HEADS, WIDTH = 32, 8, 128
WITHIN = {"f32": 1e-5, "f16": 2e-3, "int8": 3e-2}


class AttentionDecode:
    """The attend kernel with a full cache behind one query."""

    params = [[512, 4096], ["f32", "f16", "int8"], THREADS]
    param_names = ["cached_tokens", "kv_type", "threads"]
    timeout = 120

    def setup(self, n_tokens, kv_type, threads):
        from rml import _kernels
        from rml._kernels.pages import Pages, PageTable

        rng = np.random.default_rng(0)
        k = rng.standard_normal((n_tokens, KV_HEADS, WIDTH), np.float32)
        v = rng.standard_normal((n_tokens, KV_HEADS, WIDTH), np.float32)
        self.q = rng.standard_normal((1, HEADS, WIDTH), np.float32)
        self.out = np.empty_like(self.q)
        self.kernels = _kernels
        self.pages = Pages(
            1, KV_HEADS, WIDTH, kv_type, n_pages=n_tokens // 16, slab_pages=n_tokens // 16
        )
        self.pages.reserve(0)
        table = PageTable(range(n_tokens // 16))
        everything, self.step = _kernels.Step(n_tokens), _kernels.Step(1)
        everything.add([0] * n_tokens, 0, [table])
        self.step.add([0], n_tokens - 1, [table])  # the query is the last token's
        _kernels.store_kv(k, v, self.pages, everything, layer=0)
        self.n_threads = n_threads_of(threads)
        self.options = {"layer": 0, "scale": WIDTH**-0.5, "scratch": _kernels.Scratch()}
        self.run()
        check_close(self.out[0], self.truth(k, v), WITHIN[kv_type])

    def truth(self, k, v):
        """Softmax over every score, in float64: (H, D)."""
        rows = []
        for h in range(HEADS):
            keys, values = (x[:, h // (HEADS // KV_HEADS)].astype(np.float64) for x in (k, v))
            scores = keys @ self.q[0, h].astype(np.float64) * WIDTH**-0.5
            weights = np.exp(scores - scores.max())
            rows.append(weights / weights.sum() @ values)
        return np.array(rows)

    def run(self):
        self.kernels.attend(
            self.q, self.pages, self.step, self.out, n_threads=self.n_threads, **self.options
        )

    def time_attend(self, *params):
        self.run()

    def track_cache_read(self, *params):
        n_bytes = sum(array.nbytes for array in self.pages.slabs[0].arrays())
        return round(n_bytes / seconds_per_call(self.run) / 1e9, 2)

    track_cache_read.unit = "GB of cache/s"

"""Kernels: gigabytes of weights read a second; of the small ones, seconds a call.

One token (as in decode) and 64 tokens (as in prefill), matrices of 2048 x 2048: small enough for
a last-level cache, so that the figure is the kernel's and not the memory's (decoder.py has that,
and how one thread compares with all). Formats are those that the installed rml multiplies;
``tools/kernel_table.py`` shows all of them with weights from memory, beside the machine's limits.
"""

import numpy as np

from benchmarks.common import check_close, n_threads_of, seconds_per_call
from benchmarks.synthetic import FORMATS, PLAIN, random_matrix
from rml import _kernels

SIZE = 2048
CHECKED_ROWS = 32
# Error of a product against float64, as a part of its largest value: inputs rounded to 8 bits,
# to 8 bits twice, or not at all.
WITHIN = {"int8": 2e-2, "int8x2": 1e-4, "f32": 1e-5}
STORED = [name for name in FORMATS if name in _kernels.WEIGHT_FORMATS]
# Format and way to multiply: plain numbers know only f32.
WEIGHTS = [
    f"{name} {compute}"
    for name in STORED
    for compute in (("f32",) if name in PLAIN else ("int8x2", "int8", "f32"))
]
# The way that is taken if nobody says. The kernels share their loops, so for all but the first this
# is enough to see what each adds.
DEFAULTS = [f"{name} {'f32' if name in PLAIN else 'int8x2'}" for name in STORED]


class _Weights:
    """A matrix in the benchmark's format, with what is needed to check products with it."""

    def make(self, weights: str, n_tokens: int, threads: str) -> None:
        format_name, compute = weights.split()
        rng = np.random.default_rng(0)
        self.weight = random_matrix(rng, format_name, SIZE, SIZE)
        self.x = rng.standard_normal((n_tokens, SIZE), np.float32)
        self.out = np.zeros((n_tokens, SIZE), np.float32)
        self.options = {
            "compute": compute,
            "n_threads": n_threads_of(threads),
            "scratch": _kernels.Scratch(),
        }
        self.within = WITHIN[compute]

    def truth(self) -> np.ndarray:
        """The first rows' products in float64."""
        n_bytes = self.weight.data.nbytes // SIZE * CHECKED_ROWS
        values = np.empty(CHECKED_ROWS * SIZE, np.float32)
        _kernels.dequantize(self.weight.data[:n_bytes], self.weight.type, values)
        rows = values.reshape(CHECKED_ROWS, SIZE).astype(np.float64)
        return self.x.astype(np.float64) @ rows.T

    def gigabytes_per_second(self, call, n_matrices: int = 1) -> float:
        return round(n_matrices * self.weight.data.nbytes / seconds_per_call(call) / 1e9, 2)


class _Product(_Weights):
    params = [DEFAULTS, [1], ["all"]]
    param_names = ["weights", "tokens", "threads"]
    timeout = 120


class MatmulMany(_Product):
    """One input times one matrix."""

    params = [WEIGHTS, [1, 64], ["all"]]

    def setup(self, *params):
        self.make(*params)
        self.run()
        check_close(self.out[:, :CHECKED_ROWS], self.truth(), self.within)

    def run(self):
        _kernels.matmul_many(self.x, [self.weight], [self.out], **self.options)

    def track_matmul_many(self, *params):
        return self.gigabytes_per_second(self.run)

    track_matmul_many.unit = "GB of weights/s"


class MatmulGlu(_Product):
    """Gate and up products, the same matrix for both, with SiLU."""

    def setup(self, *params):
        self.make(*params)
        self.run()
        gate = self.truth()
        want = gate / (1.0 + np.exp(-gate)) * gate
        check_close(self.out[:, :CHECKED_ROWS], want, 2 * self.within)

    def run(self):
        _kernels.matmul_glu(self.x, self.weight, self.weight, self.out, **self.options)

    def track_matmul_glu(self, *params):
        return self.gigabytes_per_second(self.run, 2)

    track_matmul_glu.unit = "GB of weights/s, the second read from the cache where it fits"


class Accumulate(_Product):
    """One product added to the residual stream."""

    def setup(self, *params):
        self.make(*params)
        self.out[:] = 1.0
        self.run()
        check_close(self.out[:, :CHECKED_ROWS], 1.0 + self.truth(), self.within)

    def run(self):
        _kernels.accumulate(self.x, self.weight, self.out, **self.options)

    def track_accumulate(self, *params):
        return self.gigabytes_per_second(self.run)

    track_accumulate.unit = "GB of weights/s"


class Dequantize(_Weights):
    """Blocks to float32, 4 million values."""

    params = [STORED]
    param_names = ["format"]

    def setup(self, format_name):
        self.make(f"{format_name} f32", 1, "all")
        self.values = np.empty(SIZE * SIZE, np.float32)
        self.run()
        if not np.isfinite(self.values).all() or not self.values.any():
            raise AssertionError("values are not finite, or all zero")

    def run(self):
        n_threads = self.options["n_threads"]
        weight = self.weight
        _kernels.dequantize(weight.data, weight.type, self.values, n_threads=n_threads)

    def track_dequantize(self, *params):
        return self.gigabytes_per_second(self.run)

    track_dequantize.unit = "GB of blocks/s"


class Rows:
    """The small kernels on one token's vectors: calls whose overhead counts."""

    params = [[1, 64]]
    param_names = ["tokens"]

    def setup(self, n_tokens):
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((n_tokens, SIZE), np.float32)
        self.weight = np.ones(SIZE, np.float32)
        self.out = np.empty_like(self.x)
        self.heads = rng.standard_normal((n_tokens, 32, 64), np.float32)
        self.positions = np.arange(n_tokens)
        self.inv_freq = 10000.0 ** (-np.arange(32) / 32)
        self.cos = np.empty((n_tokens, 32), np.float32)
        self.sin = np.empty((n_tokens, 32), np.float32)
        self.time_rms_norm(n_tokens)
        mean_square = np.mean(self.x.astype(np.float64) ** 2, axis=1, keepdims=True)
        check_close(self.out, self.x / np.sqrt(mean_square + 1e-5), 1e-5)
        self.time_rope_angles(n_tokens)
        check_close(self.cos, np.cos(np.outer(np.arange(n_tokens), self.inv_freq)), 1e-6)

    def time_rms_norm(self, n_tokens):
        _kernels.rms_norm(self.x, self.weight, self.out, eps=1e-5)

    def time_rope_angles(self, n_tokens):
        _kernels.rope_angles(self.positions, self.inv_freq, self.cos, self.sin)

    def time_rotate(self, n_tokens):
        _kernels.rotate(self.cos, self.sin, self.heads, interleaved=True)

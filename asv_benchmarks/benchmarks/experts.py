"""Mixtures of experts: seconds a layer, and gigabytes of the chosen experts' weights read a second.

One token (as in decode) and 64 tokens (as in prefill), each with experts of its own choice. Two
shapes: few large experts, as in Mixtral, and many small ones, as in OLMoE and Qwen3-MoE.
"""

import numpy as np

from benchmarks.common import THREADS, check_close, n_threads_of, seconds_per_call
from benchmarks.synthetic import Matrix, random_matrix
from rml import _kernels
from rml.llm.plan import Plan

SIZE = 1024
# Experts, how many a token uses, their width.
SHAPES = {"8 large": (8, 2, 3584), "64 small": (64, 8, 512)}
WEIGHTS = ["Q4_0 int8x2", "Q4_0 int8", "Q8_0 int8x2", "Q8_0 int8", "F16 f32"]
# Error against float64, as a part of the largest value. Inputs are rounded twice, the second time
# behind a product of two.
WITHIN = {"int8": 6e-2, "int8x2": 3e-4, "f32": 3e-5}


def exact(weight: Matrix) -> np.ndarray:
    """Values of a matrix, float64."""
    values = np.empty(weight.rows * weight.cols, np.float32)
    _kernels.dequantize(weight.data, weight.type, values)
    return values.reshape(weight.rows, weight.cols).astype(np.float64)


class MixExperts:
    """Route every token, then add what its experts give to the residual stream.

    The two run as a recorded plan, as in a decoder's step: their arguments are checked once.
    """

    params = [list(SHAPES), WEIGHTS, [1, 64], THREADS]
    param_names = ["experts", "weights", "tokens", "threads"]
    timeout = 180

    def setup(self, experts, weights, n_tokens, threads):
        n_experts, k, width = SHAPES[experts]
        format_name, compute = weights.split()
        rng = np.random.default_rng(0)
        gates, ups, downs = (
            [random_matrix(rng, format_name, *shape) for _ in range(n_experts)]
            for shape in ((width, SIZE), (width, SIZE), (SIZE, width))
        )
        self.x = rng.standard_normal((n_tokens, SIZE), np.float32)
        self.scores = rng.standard_normal((n_tokens, n_experts), np.float32)
        self.ids = np.zeros((n_tokens, k), np.int32)
        self.weights = np.zeros((n_tokens, k), np.float32)
        self.out = np.zeros((n_tokens, SIZE), np.float32)
        self.matrices = (gates, ups, downs)
        self.plan = Plan(n_threads_of(threads))
        self.plan.record("route", "", self.scores, self.ids, self.weights, normalize=True)
        self.plan.record(
            "mix_experts", "", self.x, *self.matrices, self.ids, self.weights, self.out,
            compute=compute, scratch=_kernels.Scratch(),
        )  # fmt: skip
        self.plan.run()
        check_close(self.out[0], self.truth(), WITHIN[compute])
        n_read = len(np.unique(self.ids))
        self.n_bytes = n_read * sum(part[0].data.nbytes for part in self.matrices)

    def truth(self) -> np.ndarray:
        """The first token's result in float64."""
        p = np.exp(self.scores[0].astype(np.float64))
        chosen = np.argsort(-p)[: self.ids.shape[1]]
        x, result = self.x[0].astype(np.float64), np.zeros(SIZE)
        for expert in chosen:
            gate, up, down = (exact(part[expert]) for part in self.matrices)
            g = gate @ x
            result += p[expert] / p[chosen].sum() * (down @ (g / (1.0 + np.exp(-g)) * (up @ x)))
        return result

    def time_mix_experts(self, *params):
        self.plan.run()

    def track_mix_experts(self, *params):
        return round(self.n_bytes / seconds_per_call(self.plan.run) / 1e9, 2)

    track_mix_experts.unit = "GB of weights/s"

"""Stored weights: their values, and products with them.

Bounds. A sum of n float32 terms in one order is off by at most n roundings of the sum of the
magnitudes, and each term brings the roundings of its factors. A product of quantized weights is
compared with float64 on inputs that are rounded to 8 bits as the kernel rounds them.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rml._kernels.block_formats import FORMATS
from rml._kernels.checks import ACTIVATIONS, COMPUTE_MODES, FLOAT_FORMATS, QUANTIZED_FORMATS
from rml._kernels.product_py import quantize_inputs
from rml.selftest.problem import Kernels, Matrix, Problem, U, exact_weights, random_matrix

__all__ = ["problems"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_ROWS = 37  # two groups of sixteen and a rest
_TOKENS = 19  # more than the twins compute at once, and no multiple of it


def problems(kernels: Kernels, n_threads: int) -> Iterator[Problem]:
    """Problems of dequantize, embed, matmul_many, accumulate, matmul_glu and mix_experts."""
    for type_name in (*FLOAT_FORMATS, *QUANTIZED_FORMATS):
        rng = np.random.default_rng(FORMATS[type_name].id)
        n = 768 if FORMATS[type_name].length > 32 else 352
        matrix = random_matrix(rng, type_name, _ROWS, n)
        exact = exact_weights(matrix)
        yield _values(kernels, matrix, exact)
        yield _rows(kernels, matrix, exact)
        x = _inputs(rng, _TOKENS, matrix.cols)
        yield _worst([_product(kernels, matrix, exact, x, mode) for mode in COMPUTE_MODES])
        yield _company(kernels, matrix, x, n_threads)
    yield from _with_ends(kernels)
    yield _experts(kernels)


def _inputs(rng: np.random.Generator, n_tokens: int, n: int) -> F32:
    x = rng.standard_normal((n_tokens, n)).astype(np.float32)
    x[n_tokens // 2] *= np.exp(2 * rng.standard_normal(n)).astype(np.float32)  # outliers
    return x


def _values(kernels: Kernels, matrix: Matrix, exact: F64) -> Problem:
    out = np.full(exact.size, np.nan, np.float32)
    kernels["dequantize"](matrix.data, matrix.type, out)
    return Problem("dequantize", matrix.type, out.reshape(exact.shape), exact)


def _rows(kernels: Kernels, matrix: Matrix, exact: F64) -> Problem:
    ids = np.array([3, matrix.rows - 1, 0, 3], np.int32)
    out = np.full((len(ids), matrix.cols), np.nan, np.float32)
    kernels["embed"](ids, matrix, out, scale=0.5)
    return Problem("embed", matrix.type, out, 0.5 * exact[ids])


def _multiply(kernels: Kernels, matrix: Matrix, x: F32, mode: str, n_threads: int = 1) -> F32:
    out = np.full((len(x), matrix.rows), np.nan, np.float32)
    kernels["matmul_many"](x, [matrix], [out], compute=mode, n_threads=n_threads)
    return out


def _seen(x: F32, matrix: Matrix, mode: str) -> F64:
    """Round inputs as the kernel does."""
    if mode == "f32" or matrix.type in FLOAT_FORMATS:
        return x.astype(np.float64)
    codes, scales = quantize_inputs(x, mode)
    seen: F64 = (codes * scales[..., None]).reshape(x.shape)
    return seen


def _product_bound(x: F64, matrix: Matrix, exact: F64, mode: str) -> F64:
    size = np.abs(x)
    magnitude = size @ np.abs(exact).T
    if mode == "f32" or matrix.type in FLOAT_FORMATS:
        # Sixteen lanes, a tree of four additions, and the rounding of each product.
        plain: F64 = (matrix.cols / 16 + 6) * U * magnitude
        return plain
    # A unit of 16 or 32 weights adds a dot product (its scale is rounded twice, the sum once) and
    # a minimum (three roundings and the sum). Code times scale and the minimum alone can be larger
    # than their sum: by less than three times the largest weight.
    alone = size.sum(axis=1, keepdims=True) * 3 * np.abs(exact).max()
    quantized: F64 = (2 * matrix.cols / 16 + 6) * U * np.maximum(magnitude, alone)
    return quantized


def _product(kernels: Kernels, matrix: Matrix, exact: F64, x: F32, mode: str) -> Problem:
    seen = _seen(x, matrix, mode)
    return Problem(
        "matmul_many",
        matrix.type,
        _multiply(kernels, matrix, x, mode),
        seen @ exact.T,
        _product_bound(seen, matrix, exact, mode),
    )


def _worst(found: list[Problem]) -> Problem:
    """All modes of one format as one problem."""
    return Problem(
        found[0].kernel,
        found[0].case,
        np.stack([problem.got for problem in found]),
        np.stack([problem.exact for problem in found]),
        np.stack([np.asarray(problem.bound) for problem in found]),
    )


def _company(kernels: Kernels, matrix: Matrix, x: F32, n_threads: int) -> Problem:
    """Compare a token alone, and all tokens in several threads, with all in one: the same bits."""
    got, exact = [], []
    for mode in COMPUTE_MODES:
        whole = _multiply(kernels, matrix, x, mode)
        alone = [_multiply(kernels, matrix, x[t : t + 1], mode) for t in range(0, len(x), 6)]
        got += [np.concatenate(alone), _multiply(kernels, matrix, x, mode, n_threads)]
        exact += [whole[::6], whole]
    return Problem(
        "matmul_many",
        f"{matrix.type}, alone and in threads",
        np.concatenate(got),
        np.concatenate(exact),
    )


def _with_ends(kernels: Kernels) -> Iterator[Problem]:
    """Add a product to something; gate it by another one."""
    rng = np.random.default_rng(1)
    gate, up = (random_matrix(rng, "F32", _ROWS, 64) for _ in range(2))
    x = _inputs(rng, _TOKENS, 64)
    before = rng.standard_normal((_TOKENS, _ROWS)).astype(np.float32)
    out = before.copy()
    kernels["accumulate"](x, gate, out, compute="f32")
    product = _multiply(kernels, gate, x, "f32").astype(np.float64)
    exact = before + product
    yield Problem("accumulate", "F32", out, exact, U * np.abs(exact))
    other = _multiply(kernels, up, x, "f32").astype(np.float64)
    for activation in ACTIVATIONS:
        out = np.full((_TOKENS, _ROWS), np.nan, np.float32)
        kernels["matmul_glu"](x, gate, up, out, activation=activation, compute="f32")
        exact = _activated(product, activation) * other
        # e^z: four roundings, and in GELU six of its argument, at most 100 where it is no zero or
        # one; then four more. A sigmoid below the smallest normal number may be zero.
        relative = (8 + (600 if activation == "gelu_tanh" else 0)) * U * np.abs(exact)
        absolute = 2.0**-126 * (1 + np.abs(product * other))
        yield Problem("matmul_glu", activation, out, exact, relative + absolute)


def _activated(z: F64, activation: str) -> F64:
    # (1 + tanh(a)) / 2 is the sigmoid of 2 a.
    gelu = activation == "gelu_tanh"
    argument = 2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3) if gelu else z
    with np.errstate(over="ignore"):
        result: F64 = z / (1 + np.exp(-argument))
    return result


def _experts(kernels: Kernels) -> Problem:
    """Each expert's network by `matmul_glu`, then float64: only the last product is new."""
    rng = np.random.default_rng(2)
    n_experts, k, cols, hidden, rows = 5, 2, 64, 96, 40
    gates, ups = (
        [random_matrix(rng, "Q8_0", hidden, cols) for _ in range(n_experts)] for _ in range(2)
    )
    downs = [random_matrix(rng, "Q4_1", rows, hidden) for _ in range(n_experts)]
    x = rng.standard_normal((_TOKENS, cols)).astype(np.float32) / 64
    ids = np.argsort(rng.random((_TOKENS, n_experts)), axis=1)[:, :k].astype(np.int32)
    weights = rng.random((_TOKENS, k)).astype(np.float32)
    out = rng.standard_normal((_TOKENS, rows)).astype(np.float32)
    exact, bound = out.astype(np.float64), np.abs(out) * U
    for t in range(_TOKENS):
        for expert, weight in zip(ids[t], weights[t].astype(np.float64), strict=True):
            inner = np.empty((1, hidden), np.float32)
            kernels["matmul_glu"](x[t : t + 1], gates[expert], ups[expert], inner)
            down = exact_weights(downs[expert])
            seen = _seen(inner, downs[expert], "int8x2")
            part = weight * (seen @ down.T)[0]
            exact[t] += part
            bound[t] += weight * _product_bound(seen, downs[expert], down, "int8x2")[0]
            bound[t] += (k + 3) * U * np.abs(part)
    kernels["mix_experts"](x, gates, ups, downs, ids, weights, out)
    return Problem("mix_experts", "Q8_0, Q4_1", out, exact, 1.01 * bound)

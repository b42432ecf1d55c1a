"""The products with stored weights, against float64 and against each other.

Bounds are sums of roundings, u = 2^-24 each: a sum of n float32 terms in one order is off by at
most (n - 1) u times the sum of the magnitudes, and each term adds the roundings of its factors.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blocks import QUANTIZED, Matrix, extreme_matrix, random_matrix

from rml._kernels import checks
from rml._kernels.block_formats import FORMATS as FORMATS_TABLE
from rml._kernels.product_py import quantize_inputs
from rml.errors import ArgumentError

U = 2.0**-24
MODES = checks.COMPUTE_MODES
FORMATS = (*checks.FLOAT_FORMATS, *checks.QUANTIZED_FORMATS)
# rows, units of 32 columns: one group of rows and less, whole and odd groups of 16 and 32 rows,
# several panels of units; formats with longer blocks get as many blocks
SHAPES = [(1, 1), (5, 2), (16, 3), (37, 2), (48, 33), (100, 18)]
# One quantized format of each kind: a bias or minima, one scale a unit or two, factors of integers,
# units in a block. Formats of the same kind share all loops and differ in how a unit is unpacked.
KINDS = ("Q8_0", "Q4_1", "Q6_K", "Q2_K", "Q3_K", "NVFP4", "Q1_0")


def cases(shapes, few):
    """Format, mode and shape: all of them for one format of each kind, a few for the others."""
    return [
        (format_name, compute, *shape)
        for format_name in FORMATS
        for compute in MODES
        for shape in (
            shapes
            if format_name in (*KINDS, *checks.FLOAT_FORMATS)
            else few[: 1 if compute == "f32" else None]
        )
    ]


def columns_of(format_name, units):
    """As many columns as units of 32, in whole blocks."""
    length = max(32, FORMATS_TABLE[format_name].length)
    return -(-units * 32 // length) * length


def multiply(kernels, x, weight, compute, **kwargs):
    out = np.full((len(x), weight.rows), np.nan, np.float32)
    kernels.matmul_many(x, [weight], [out], compute=compute, **kwargs)
    return out


def summation_bound(x, exact, weight, compute):
    """How far a float32 result may be from float64 on the same rounded inputs."""
    magnitude = np.abs(x.astype(np.float64)) @ np.abs(exact).T
    if compute == "f32" or weight.type in checks.FLOAT_FORMATS:
        # ceil(K / 16) products in a lane, 4 levels of the tree, 1 rounding of a product.
        return (weight.cols / 16 + 6) * U * magnitude
    # A unit adds a dot product (2 roundings of its scale, 1 sum) and a minimum (3 and 1). The
    # magnitude of code * scale and of the minimum alone can exceed that of their sum.
    spread = np.abs(x.astype(np.float64)) @ np.ones((weight.cols, weight.rows))
    largest = np.abs(exact).max() * 3
    n_units = weight.cols / 16
    return (2 * n_units + 6) * U * np.maximum(magnitude, spread * largest)


def rounded_inputs(x, compute):
    """What the inputs are after their rounding to 8 or 16 bits, float64."""
    codes, scales = quantize_inputs(x, compute)
    return (codes * scales[..., None]).reshape(x.shape)


@pytest.mark.parametrize(
    ("format_name", "compute", "rows", "units"), cases(SHAPES, [(5, 2), (48, 33)])
)
def test_product_is_float64_within_its_roundings(kernels, format_name, compute, rows, units):
    cols = columns_of(format_name, units)
    rng = np.random.default_rng(rows * cols)
    weight, exact = random_matrix(rng, format_name, rows, cols)
    x = rng.standard_normal((3, cols)).astype(np.float32)
    x[1] *= np.exp(rng.standard_normal(cols) * 2)  # outliers

    got = multiply(kernels, x, weight, compute)

    plain = compute == "f32" or format_name in checks.FLOAT_FORMATS
    seen = x.astype(np.float64) if plain else rounded_inputs(x, compute)
    error = np.abs(got - seen @ exact.T)
    assert (error <= summation_bound(x, exact, weight, compute)).all()


@pytest.mark.parametrize("format_name", QUANTIZED)
@pytest.mark.parametrize("compute", ["int8", "int8x2"])
@pytest.mark.parametrize("n_tokens", [1, 5])
def test_the_largest_codes_scales_and_inputs_fit(kernels, format_name, compute, n_tokens):
    """No integer sum overflows, and no code with its factor is outside the bytes it is kept in."""
    cols = columns_of(format_name, 16)
    weight, exact = extreme_matrix(format_name, cols)
    x = np.ones((n_tokens, cols), np.float32)
    x[0, :] = -1
    x[-1, ::2] = -1  # a single token: half of the sum is negative
    got = multiply(kernels, x, weight, compute)
    seen = rounded_inputs(x, compute)
    error = np.abs(got - seen @ exact.T)
    assert (error <= summation_bound(x, exact, weight, compute)).all()


@pytest.mark.parametrize("format_name", KINDS)
@pytest.mark.parametrize(("compute", "steps"), [("int8", 127), ("int8x2", 127 * 256)])
def test_rounding_of_inputs_is_half_a_step(definitions, format_name, compute, steps):
    rng = np.random.default_rng(5)
    weight, exact = random_matrix(rng, format_name, 20, columns_of(format_name, 10))
    x = rng.standard_normal((4, weight.cols)).astype(np.float32)

    got = multiply(definitions, x, weight, compute)

    # Each input is off by half a step of its unit: max|x| / 127 / 2, and 256 times finer.
    largest = np.abs(x).reshape(4, -1, 32).max(axis=2).astype(np.float64)
    step = np.repeat(largest / steps, 32, axis=1)
    bound = (step / 2) @ np.abs(exact).T + summation_bound(x, exact, weight, compute)
    assert (np.abs(got - x.astype(np.float64) @ exact.T) <= bound * (1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("format_name", "compute", "rows", "units"), cases(SHAPES, [(5, 2), (48, 33)])
)
def test_twin_equals_definition_but_for_fusing(
    twins, definitions, format_name, compute, rows, units
):
    cols = columns_of(format_name, units)
    rng = np.random.default_rng(rows + cols)
    weight, exact = random_matrix(rng, format_name, rows, cols)
    x = rng.standard_normal((7, cols)).astype(np.float32)

    difference = np.abs(
        multiply(twins, x, weight, compute) - multiply(definitions, x, weight, compute)
    )

    assert (difference <= 2 * summation_bound(x, exact, weight, compute)).all()


@pytest.mark.parametrize(
    ("format_name", "compute", "rows", "units"), cases([(5, 2), (77, 33)], [(77, 33)])
)
def test_bits_do_not_depend_on_company(kernels, format_name, compute, rows, units):
    cols = columns_of(format_name, units)
    rng = np.random.default_rng(11)
    weight, _ = random_matrix(rng, format_name, rows, cols)
    x = rng.standard_normal((14, cols)).astype(np.float32)

    whole = multiply(kernels, x, weight, compute)

    for n_threads in (2, 3):
        assert np.array_equal(whole, multiply(kernels, x, weight, compute, n_threads=n_threads))
    for size in (1, 2, 3, 4, 5, 7, 13):
        pieces = [
            multiply(kernels, x[start : start + size].copy(), weight, compute)
            for start in range(0, len(x), size)
        ]
        assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.compiled
@pytest.mark.parametrize("format_name", checks.QUANTIZED_FORMATS)
def test_long_rows_of_one_token(twins, format_name):
    # Rows of half a page and more are taken in another order.
    table = FORMATS_TABLE[format_name]
    cols = columns_of(format_name, -(-2048 // table.n_bytes) * table.length // 32)
    rng = np.random.default_rng(15)
    weight, _ = random_matrix(rng, format_name, 70, cols)
    assert len(weight.data) >= 70 * 2048
    x = rng.standard_normal((2, cols)).astype(np.float32)

    for compute in ("int8", "int8x2"):
        together = multiply(twins, x, weight, compute)
        for n_threads in (1, 2):
            alone = multiply(twins, x[1:].copy(), weight, compute, n_threads=n_threads)
            assert np.array_equal(together[1:], alone)


@pytest.mark.compiled
@pytest.mark.parametrize("compute", MODES)
def test_more_tokens_than_one_pass(twins, compute):
    rng = np.random.default_rng(3)
    weight, _ = random_matrix(rng, "Q4_1", 40, 64)
    x = rng.standard_normal((1100, 64)).astype(np.float32)

    whole = multiply(twins, x, weight, compute, n_threads=2)

    for t in (0, 511, 512, 1023, 1024, 1099):
        assert np.array_equal(whole[t : t + 1], multiply(twins, x[t : t + 1], weight, compute))


def test_several_matrices_of_different_formats_share_an_input(kernels):
    rng = np.random.default_rng(4)
    weights = [random_matrix(rng, f, r, 64)[0] for f, r in (("Q4_1", 33), ("F16", 5), ("Q8_0", 64))]
    x = rng.standard_normal((3, 64)).astype(np.float32)
    bias = rng.standard_normal(5).astype(np.float32)
    outs = [np.empty((3, w.rows), np.float32) for w in weights]

    kernels.matmul_many(x, weights, outs, biases=[None, bias, None], n_threads=2)

    for weight, out, b in zip(weights, outs, (None, bias, None), strict=True):
        alone = multiply(kernels, x, weight, "int8x2")
        assert np.array_equal(out, alone if b is None else alone + b)


@pytest.mark.parametrize("compute", MODES)
def test_accumulate_adds_the_product(kernels, compute):
    rng = np.random.default_rng(6)
    weight, _ = random_matrix(rng, "Q5_1", 45, 96)
    h = rng.standard_normal((5, 96)).astype(np.float32)
    x = rng.standard_normal((5, 45)).astype(np.float32)
    expected = x + multiply(kernels, h, weight, compute)

    kernels.accumulate(h, weight, x, compute=compute, n_threads=2)

    assert np.array_equal(x, expected)


def silu64(x):
    return x / (1 + np.exp(-x))


def gelu64(x):
    # (1 + tanh(z)) / 2 is 1 / (1 + e^-2z), without the cancellation near -1.
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("activation", "exact_activation"), [("silu", silu64), ("gelu_tanh", gelu64)]
)
def test_glu_gates_like_float64(kernels, activation, exact_activation):
    rng = np.random.default_rng(7)
    gate, _ = random_matrix(rng, "F32", 50, 64, scale=1.0)
    up, _ = random_matrix(rng, "F32", 50, 64)
    x = rng.standard_normal((6, 64)).astype(np.float32)
    out = np.empty((6, 50), np.float32)

    kernels.matmul_glu(x, gate, up, out, activation=activation, compute="f32", n_threads=2)

    g = multiply(kernels, x, gate, "f32").astype(np.float64)
    u = multiply(kernels, x, up, "f32").astype(np.float64)
    assert np.abs(g).max() > 15  # saturated on both sides
    # e^x: 4 u, and its argument in GELU: 6 u of at most |z| < 100; then 4 roundings.
    relative = (4 + 4) * U if activation == "silu" else (4 + 4 + 6 * 100) * U
    assert np.allclose(out, exact_activation(g) * u, rtol=relative, atol=1e-30)


@pytest.mark.parametrize("activation", checks.ACTIVATIONS)
def test_glu_of_extreme_gates_is_finite(kernels, activation):
    # A gate of 3e4 and one of -3e4: the sigmoid saturates to 1 and to 0.
    gate = Matrix("F32", 2, 1, np.array([3e4, -3e4], np.float32).view(np.uint8))
    up = Matrix("F32", 2, 1, np.array([2.0, 2.0], np.float32).view(np.uint8))
    out = np.empty((1, 2), np.float32)

    kernels.matmul_glu(np.ones((1, 1), np.float32), gate, up, out, activation=activation)

    assert out.tolist() == [[6e4, 0.0]]


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(kernels, compute, bad):
    weight, _ = random_matrix(np.random.default_rng(8), "Q4_1", 20, 96)
    x = np.ones((2, 96), np.float32)
    x[1, 40] = bad

    with np.errstate(invalid="ignore", over="ignore"):
        out = multiply(kernels, x, weight, compute)

    assert np.isfinite(out[0]).all()
    assert not np.isfinite(out[1]).any()


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e-36, 1e30])
def test_tiny_and_huge_inputs(kernels, compute, size):
    weight, exact = random_matrix(np.random.default_rng(9), "Q8_0", 20, 64)
    x = np.full((1, 64), size, np.float32)

    out = multiply(kernels, x, weight, compute)

    expected = x.astype(np.float64) @ exact.T
    # Below the smallest normal scale the codes are zero: off by 127 * 2^-126 for each input.
    smallest = 64 * 2.0**-119 * np.abs(exact).max()
    assert np.allclose(out, expected, rtol=1e-2, atol=smallest + 1e-3 * size)


def test_input_codes_are_equal_at_every_level(twins):
    # With one weight of 1 in a row and 0 elsewhere, a product shows the rounded input itself.
    k = 64
    identity = Matrix("Q8_0", k, k, _identity_q8_0(k))
    x = np.random.default_rng(10).standard_normal((5, k)).astype(np.float32)
    for compute in ("int8", "int8x2"):
        assert np.array_equal(
            multiply(twins, x, identity, compute),
            rounded_inputs_f32(x, compute),
        )


def _identity_q8_0(k):
    blocks = np.zeros((k, k // 32, 34), np.uint8)
    blocks[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
    for row in range(k):
        blocks[row, row // 32, 2 + row % 32] = 1
    return blocks.reshape(-1)


def rounded_inputs_f32(x, compute):
    codes, scales = quantize_inputs(x, compute)
    return (codes.astype(np.float32) * scales[..., None]).reshape(x.shape)


def test_read_only_weights_at_odd_addresses(kernels, tmp_path):
    rng = np.random.default_rng(12)
    weight, _ = random_matrix(rng, "Q4_1", 33, 64)
    x = rng.standard_normal((2, 64)).astype(np.float32)
    expected = multiply(kernels, x, weight, "int8x2")
    path = tmp_path / "weights"
    path.write_bytes(b"abc" + weight.data.tobytes())
    mapped = np.memmap(path, np.uint8, "r", offset=0)[3:]
    x.flags.writeable = False

    assert np.array_equal(multiply(kernels, x, Matrix("Q4_1", 33, 64, mapped), "int8x2"), expected)


def _refused():
    rng = np.random.default_rng(13)
    weight, _ = random_matrix(rng, "Q4_1", 8, 64)
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 8), np.float32)
    short = Matrix("Q4_1", 8, 64, weight.data[:-1])
    odd = Matrix("Q4_1", 8, 48, weight.data)
    unknown = Matrix("I8", 8, 64, weight.data)
    frozen = out.copy()
    frozen.flags.writeable = False
    return {
        "float64 input": ((x.astype(float), [weight], [out]), {}),
        "transposed input": ((np.zeros((64, 2), np.float32).T, [weight], [out]), {}),
        "a list": (([[0.0] * 64], [weight], [out]), {}),
        "one dimension": ((x[0], [weight], [out]), {}),
        "other width": ((x[:, :32].copy(), [weight], [out]), {}),
        "small out": ((x, [weight], [out[:1]]), {}),
        "read-only out": ((x, [weight], [frozen]), {}),
        "no weights": ((x, [], []), {}),
        "outs missing": ((x, [weight], []), {}),
        "mode": ((x, [weight], [out]), {"compute": "int4"}),
        "short data": ((x, [short], [out]), {}),
        "part of a block": ((x[:, :48].copy(), [odd], [out]), {}),
        "integers": ((x, [unknown], [out]), {}),
        "biases": ((x, [weight], [out]), {"biases": [np.zeros(7, np.float32)]}),
        "number of biases": ((x, [weight], [out]), {"biases": []}),
    }


@pytest.mark.parametrize("case", _refused())
def test_refused_arguments(kernels, definitions, case):
    args, kwargs = _refused()[case]
    with pytest.raises(ArgumentError) as defined:
        definitions.matmul_many(*args, **kwargs)
    with pytest.raises(ArgumentError) as got:
        kernels.matmul_many(*args, **kwargs)

    assert str(got.value) == str(defined.value)


def test_glu_and_accumulate_refuse(kernels):
    rng = np.random.default_rng(14)
    a, b = random_matrix(rng, "Q4_1", 8, 64)[0], random_matrix(rng, "Q4_1", 9, 64)[0]
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(ArgumentError, match="gate has 8 rows and up 9"):
        kernels.matmul_glu(x, a, b, np.zeros((2, 8), np.float32))
    with pytest.raises(ArgumentError, match="relu"):
        kernels.matmul_glu(x, a, a, np.zeros((2, 8), np.float32), activation="relu")
    with pytest.raises(ArgumentError, match=r"x has shape \(2, 9\), but \(2, 8\)"):
        kernels.accumulate(x, a, np.zeros((2, 9), np.float32))


GUARDED = """
import ctypes, mmap, sys
import numpy as np
from rml import _kernels
from rml._kernels import checks
from rml._kernels.block_formats import FORMATS
sys.path.insert(0, sys.argv[2])
from blocks import Matrix

module = _kernels.load_level(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
for name in sorted(checks.WEIGHT_FORMATS):
    rows, cols = 17, max(32, FORMATS[name].length)
    n_bytes = rows * FORMATS[name].row_bytes(cols)
    size = -(-n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    address = ctypes.c_void_p(pages.ctypes.data + size)
    assert libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    weight = Matrix(name, rows, cols, pages[size - n_bytes : size])
    for x in np.ones((1, cols), np.float32), np.ones((3, cols), np.float32):
        for compute in checks.COMPUTE_MODES:
            out = np.empty((len(x), rows), np.float32)
            module.matmul_many(x, [weight], [out], compute=compute)
    print(name)
"""


def test_nothing_is_read_beyond_the_weights(twins):
    """The last block ends where a page ends that is followed by one which nobody may read."""
    folder = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, twins.name, folder],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == sorted(checks.WEIGHT_FORMATS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("compute", MODES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_no_tokens(kernels, format_name, compute):
    """As a step without outputs asks it of the head."""
    rng = np.random.default_rng(0)
    weight, _ = random_matrix(rng, format_name, 5, columns_of(format_name, 2))
    assert multiply(kernels, np.empty((0, weight.cols), np.float32), weight, compute).size == 0


@pytest.mark.parametrize("format_name", ["F32", "Q4_K", "Q6_K"])
def test_an_operation_follows_the_number_of_rows(twins, format_name):
    """A program multiplies the rows that are counted, with the bits of a call with those alone."""
    rng = np.random.default_rng(1)
    weight, _ = random_matrix(rng, format_name, 37, columns_of(format_name, 8))
    x = rng.standard_normal((70, weight.cols)).astype(np.float32)
    counts, out = np.zeros(2, np.int64), np.empty((70, 37), np.float32)
    op = twins.operations["matmul_many"](x, [weight], [out])
    program = twins.module.Program([op], 2, np.zeros(1, np.int32), [(counts, 1, 2)])
    for n in (35, 1, 0, 17, 2):
        counts[:] = 99, n
        out[...] = 7
        assert program.run()
        assert np.array_equal(out[: 2 * n], multiply(twins, x[: 2 * n], weight, "int8x2"))
        assert (out[2 * n :] == 7).all()

"""Dequantization: bit for bit what the gguf package reads."""

import gguf
import numpy as np
import pytest
from blocks import Matrix, exact_values, random_matrix

from rml._kernels import checks, dequant_py
from rml._kernels.block_formats import FORMATS, FORMATS_BY_ID
from rml.errors import ArgumentError


def random_blocks(format_name, n, seed=0):
    """Random bytes; scales are finite but for a few."""
    entry = FORMATS[format_name]
    return np.random.default_rng(seed).integers(0, 256, n * entry.n_bytes, np.uint8)


def same_bits(a, b):
    """Equal bits, where any NaN equals any other."""
    nan = np.isnan(a) & np.isnan(b)
    return (
        np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])
        and nan.sum() == np.isnan(a).sum()
    )


@pytest.mark.parametrize("format_name", sorted(checks.WEIGHT_FORMATS))
@pytest.mark.parametrize("n", [1, 97, 2500])
def test_random_blocks(kernels, format_name, n):
    data = random_blocks(format_name, n)
    out = np.empty(n * FORMATS[format_name].length, np.float32)

    with np.errstate(invalid="ignore", over="ignore"):
        kernels.dequantize(data, format_name, out)

    assert same_bits(out, exact_values(data, format_name))
    again = np.empty_like(out)
    with np.errstate(invalid="ignore", over="ignore"):
        kernels.dequantize(data, format_name, again, n_threads=3)
    assert same_bits(out, again)


@pytest.mark.parametrize("format_name", ["F16", "BF16"])
def test_every_sixteen_bit_number(kernels, format_name):
    data = np.arange(65536, dtype=np.uint16).view(np.uint8)
    out = np.empty(65536, np.float32)

    kernels.dequantize(data, format_name, out)

    assert same_bits(out, exact_values(data, format_name))


def test_hand_computed_blocks(kernels):
    half = np.array([0.5], np.float16).tobytes()
    minus_two = np.array([-2.0], np.float16).tobytes()
    nibbles = bytes([0xF0, 0x21] + [0x88] * 14)  # low: 0, 1, 8..; high: 15, 2, 8..
    cases = {
        "Q4_0": (half + nibbles, [-4.0, -3.5], [3.5, -3.0]),
        "Q4_1": (half + minus_two + nibbles, [-2.0, -1.5], [5.5, -1.0]),
        # Fifth bits of codes 1 and 17.
        "Q5_0": (half + bytes([2, 0, 2, 0]) + nibbles, [-8.0, 0.5], [-0.5, 1.0]),
        "Q5_1": (half + minus_two + bytes([2, 0, 2, 0]) + nibbles, [-2.0, 6.5], [5.5, 7.0]),
        "Q8_0": (
            half + bytes([0x80, 0x7F] + [0] * 14 + [1, 0xFF] + [0] * 14),
            [-64.0, 63.5],
            [0.5, -0.5],
        ),
    }
    for format_name, (block, low, high) in cases.items():
        out = np.empty(32, np.float32)
        kernels.dequantize(np.frombuffer(block, np.uint8), format_name, out)
        assert out[:2].tolist() == low, format_name
        assert out[16:18].tolist() == high, format_name


def test_hand_computed_blocks_of_few_bits(kernels):
    half = np.array([0.5], np.float16).tobytes()
    bits = np.empty(128, np.float32)
    kernels.dequantize(
        np.frombuffer(half + bytes([0b00000110, 0x80] + [0] * 13 + [0x40]), np.uint8), "Q1_0", bits
    )
    assert np.flatnonzero(bits == 0.5).tolist() == [1, 2, 15, 126]
    assert np.flatnonzero(bits == -0.5).size == 124

    pairs = np.empty(64, np.float32)
    kernels.dequantize(
        np.frombuffer(half + bytes([0b11_10_01_00] + [0x55] * 14 + [0xC0]), np.uint8), "Q2_0", pairs
    )
    assert pairs[:4].tolist() == [-0.5, 0, 0.5, 1]
    assert not pairs[4:60].any()
    assert pairs[60:].tolist() == [-0.5, -0.5, -0.5, 1]


def test_hand_computed_block_of_four_bit_floats(kernels):
    # E4M3 scales 1, 2^-9 (subnormal), NaN, which stands for zero, and 448.
    scales = bytes([0x38, 0x01, 0x7F, 0x7E])
    out = np.empty(64, np.float32)

    kernels.dequantize(
        np.frombuffer(scales + bytes([0xF1, 0x72] + [0x88] * 6) * 4, np.uint8), "NVFP4", out
    )

    # Of a scale's 16 values, the first two and the ninth and tenth; E2M1: 0.5, 1, -6, 6.
    for i, scale in enumerate([1, 2**-9, 0, 448]):
        part = out[16 * i : 16 * i + 16]
        assert part[[0, 1, 8, 9]].tolist() == [0.5 * scale, scale, -6 * scale, 6 * scale]
        assert not part[2:8].any()
        assert not part[10:].any()


def test_case_bank(kernels, cases_dir):
    import json

    cases = json.loads((cases_dir / "quant_blocks.json").read_text())["cases"]
    for case in cases:
        data = np.frombuffer(bytes.fromhex(case["hex"]), np.uint8)
        out = np.empty(len(case["values"]), np.float32)
        kernels.dequantize(data, case["type"], out)
        assert np.array_equal(out, np.array(case["values"], np.float32), equal_nan=True), case["id"]
    # What the bank lacks has hand-computed blocks above.
    tried = {case["type"] for case in cases}
    assert set(checks.QUANTIZED_FORMATS) - tried == {"NVFP4", "Q1_0", "Q2_0"}


@pytest.mark.parametrize("format_name", sorted(checks.WEIGHT_FORMATS))
def test_embed_gathers_rows(kernels, format_name):
    rows, cols = 9, 512
    weight, exact = random_matrix(np.random.default_rng(1), format_name, rows, cols)
    ids = np.array([8, 0, 8, 3], np.int32)
    out = np.empty((4, cols), np.float32)

    kernels.embed(ids, weight, out, scale=2.5, n_threads=2)

    assert np.array_equal(out, exact.astype(np.float32)[ids] * np.float32(2.5))


def test_refused(kernels, definitions):
    data, out = np.zeros(40, np.uint8), np.zeros(64, np.float32)
    table = Matrix("Q4_1", 2, 32, data)
    row = np.zeros((1, 32), np.float32)
    calls = [
        ("dequantize", (data, "Q9_9", out)),
        ("dequantize", (data, "I8", out)),
        ("dequantize", (data[:-1], "Q4_1", out)),
        ("dequantize", (data, "Q4_1", out[:-1])),
        ("dequantize", (data, "Q4_1", out.astype(np.float64))),
        ("dequantize", (data.view(np.int8), "Q4_1", out)),
        ("embed", (np.array([2], np.int32), table, row)),
        ("embed", (np.array([-1], np.int32), table, row)),
        ("embed", (np.array([0], np.int64), table, row)),
        ("embed", (np.array([0, 1], np.int32), table, row)),
    ]
    for name, args in calls:
        with pytest.raises(ArgumentError) as defined:
            getattr(definitions, name)(*args)
        with pytest.raises(ArgumentError) as got:
            getattr(kernels, name)(*args)
        assert str(got.value) == str(defined.value)


def test_table_is_that_of_the_format():
    for kind, (length, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        entry = FORMATS_BY_ID.get(int(kind))
        if entry is None or entry.name == "Q8_1":  # only ever in memory; the package pads it
            continue
        assert (entry.name, entry.length, entry.n_bytes) == (kind.name, length, n_bytes)


def test_every_weight_format_has_a_definition_and_a_twin(twins):
    """A loader accepts what `checks` lists, so each list has to be that one."""
    only_in_memory = {"Q8_1", "Q8_K"}
    weights = {entry.name for entry in FORMATS.values() if entry.kind != "integer"}
    assert weights - only_in_memory == checks.WEIGHT_FORMATS
    assert set(dequant_py.UNPACK) == set(checks.QUANTIZED_FORMATS)
    assert {
        name: (FORMATS[name].id, FORMATS[name].length, FORMATS[name].n_bytes)
        for name in checks.QUANTIZED_FORMATS
    } == twins.module.QUANTIZED

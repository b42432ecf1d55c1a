"""Rotary tables against computations of their own: one pair at a time, in Python's floats.

Each reference below follows the words of its source (given there), not the vectorised code: the
Llama 3.1 one thinks in wavelengths, the YaRN one in rotations over the original context.
"""

import json
import math

import numpy as np
import pytest

from rml._kernels import rope_py
from rml.llm.rope import Rope, RopeScaling

# Far beyond any original context here; and where float32 angles would be wrong.
POSITIONS = (0, 1, 511, 8191, 20_000, 131_071)


def plain(pair, head_dim, theta):
    return 1.0 / math.pow(theta, 2 * pair / head_dim)


def linear(pair, head_dim, theta, scaling):
    """Positions divided by the factor (arXiv:2306.15595)."""
    return plain(pair, head_dim, theta) / scaling.factor


def llama3(pair, head_dim, theta, scaling):
    """The three ranges of wavelengths that Meta's Llama 3.1 code tells apart."""
    frequency = plain(pair, head_dim, theta)
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_context / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_context / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def yarn(pair, head_dim, theta, scaling):
    """Equations 13 to 17 of arXiv:2309.00071, with the ramp over pairs that all engines use."""

    def pair_of(rotations):
        length = scaling.original_context / (2 * math.pi * rotations)
        return head_dim * math.log(length) / (2 * math.log(theta))

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    ramp = min(max((pair - first) / (last - first), 0.0), 1.0)
    frequency = plain(pair, head_dim, theta)
    return frequency * (1 - ramp) + frequency / scaling.factor * ramp


def dynamic(pair, head_dim, theta, scaling, n_ctx):
    """The NTK-aware base, grown with the length (Transformers' `dynamic`)."""
    ratio = scaling.factor * n_ctx / scaling.original_context - (scaling.factor - 1)
    return plain(pair, head_dim, theta * math.pow(ratio, head_dim / (head_dim - 2)))


LLAMA31 = RopeScaling(type="llama3", factor=8.0, original_context=8192)
LLAMA32 = RopeScaling(type="llama3", factor=32.0, original_context=8192)
QWEN = RopeScaling(type="yarn", factor=4.0, original_context=32768)
QWEN_EXACT = RopeScaling(type="yarn", factor=4.0, original_context=32768, truncate=False)
SHARP = RopeScaling(type="yarn", factor=16.0, original_context=4096, beta_fast=8.0, beta_slow=2.0)

CASES = {
    "linear": (linear, 128, 1e6, RopeScaling(type="linear", factor=8.0)),
    "llama 3.1": (llama3, 128, 5e5, LLAMA31),
    "llama 3.2": (llama3, 64, 5e5, LLAMA32),
    "yarn": (yarn, 128, 1e6, QWEN),
    "yarn, not truncated": (yarn, 128, 1e6, QWEN_EXACT),
    "yarn, other limits": (yarn, 64, 1e4, SHARP),
}


@pytest.mark.parametrize("name", CASES)
def test_frequencies(name):
    reference, head_dim, theta, scaling = CASES[name]
    rope = Rope.create(head_dim, theta, scaling)

    expected = [reference(pair, head_dim, theta, scaling) for pair in range(head_dim // 2)]
    assert rope.inv_freq.dtype == np.float64
    np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-14)


@pytest.mark.parametrize("head_dim", [2, 8, 64, 128, 256])
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6])
def test_unscaled_frequencies(head_dim, theta):
    rope = Rope.create(head_dim, theta)

    expected = [plain(pair, head_dim, theta) for pair in range(head_dim // 2)]
    np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-14)
    assert rope.attention_factor == 1.0


@pytest.mark.parametrize("n_ctx", [4096, 8192, 65536])
def test_dynamic_frequencies(n_ctx):
    scaling = RopeScaling(type="dynamic", factor=2.0, original_context=4096)
    rope = Rope.create(64, 1e4, scaling, n_ctx=n_ctx)

    expected = [dynamic(pair, 64, 1e4, scaling, n_ctx) for pair in range(32)]
    np.testing.assert_allclose(rope.inv_freq, expected, rtol=1e-14)


def test_dynamic_within_the_original_context_is_unscaled():
    scaling = RopeScaling(type="dynamic", factor=2.0, original_context=4096)

    for n_ctx in (None, 1, 4096):
        rope = Rope.create(64, 1e4, scaling, n_ctx=n_ctx)
        np.testing.assert_array_equal(rope.inv_freq, Rope.create(64, 1e4).inv_freq)


def test_truncation_moves_the_ramp():
    truncated, exact = Rope.create(128, 1e6, QWEN), Rope.create(128, 1e6, QWEN_EXACT)

    assert (truncated.inv_freq != exact.inv_freq).any()


def test_a_ramp_of_no_width_is_a_step():
    scaling = RopeScaling(
        type="yarn",
        factor=4.0,
        original_context=512,
        beta_fast=4.0,
        beta_slow=4.0,
        truncate=False,
    )
    kept = 16 * math.log(512 / (8 * math.pi)) / (2 * math.log(1e3))  # pair 3.49 turns 4 times
    divisors = Rope.create(16, 1e3).inv_freq / Rope.create(16, 1e3, scaling).inv_freq

    assert 3 < kept < 4
    np.testing.assert_allclose(divisors, [1.0] * 4 + [4.0] * 4, rtol=1e-14)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 0.1 * math.log(4.0) + 1.0),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.25}, 1.25),
        ({"attention_factor": 1.25, "mscale": 0.7, "mscale_all_dim": 0.3}, 1.25),
        (
            {"mscale": 0.7, "mscale_all_dim": 0.3},
            (0.07 * math.log(4.0) + 1.0) / (0.03 * math.log(4.0) + 1.0),
        ),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        # As in Transformers, one alone or a zero counts as neither.
        ({"mscale": 0.7}, 0.1 * math.log(4.0) + 1.0),
        ({"mscale": 0.7, "mscale_all_dim": 0.0}, 0.1 * math.log(4.0) + 1.0),
    ],
)
def test_yarn_attention_factor(more, expected):
    scaling = RopeScaling(**({"type": "yarn", "factor": 4.0, "original_context": 64} | more))

    assert Rope.create(8, 1e4, scaling).attention_factor == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("name", CASES)
def test_angles_far_out(name):
    """Cosines and sines at and beyond position 20,000, rounded once from exact angles."""
    reference, head_dim, theta, scaling = CASES[name]
    rope = Rope.create(head_dim, theta, scaling)
    frequencies = [reference(pair, head_dim, theta, scaling) for pair in range(head_dim // 2)]
    cos, sin = np.empty((2, 1, head_dim // 2), np.float32)

    for position in POSITIONS:
        rope_py.rope_angles(
            np.array([position]), rope.inv_freq, cos, sin, factor=rope.attention_factor
        )
        # Half an ulp of float32 at the attention factor, and what 1e-14 relative error of a
        # frequency makes of the angle.
        bound = rope.attention_factor * (2.0**-24 + position * 1e-14)
        for pair, frequency in enumerate(frequencies):
            angle = position * frequency
            assert abs(cos[0, pair] - rope.attention_factor * math.cos(angle)) <= bound
            assert abs(sin[0, pair] - rope.attention_factor * math.sin(angle)) <= bound


def test_ignoring_the_scaling_shows_at_position_20000():
    scaled, unscaled = Rope.create(128, 5e5, LLAMA31), Rope.create(128, 5e5)

    assert abs(20_000 * (scaled.inv_freq - unscaled.inv_freq)).max() > 1.0


def test_table_of_llama_32(cases_dir):
    """Published divisors and frequencies of Llama 3.2 1B, given to nine digits."""
    data = json.loads((cases_dir / "bugs" / "B51.json").read_text())["data"]
    rope = Rope.create(data["head_dim"], data["theta"], LLAMA32)
    base = Rope.create(data["head_dim"], data["theta"])
    divisors = base.inv_freq / rope.inv_freq

    np.testing.assert_allclose(rope.inv_freq, data["inv_freq"], rtol=2e-8)
    np.testing.assert_allclose(divisors, data["rope_freqs_divisor"], rtol=2e-8)
    assert [i for i, d in enumerate(divisors) if d == 1.0] == data["unchanged"]
    assert [i for i, d in enumerate(divisors) if 1.0 < d < 31.9] == data["interpolated"]
    assert [i for i, d in enumerate(divisors) if d >= 31.9] == data["divided_by_32"]


def test_divisors_of_a_gguf_file_are_llama_32s_scaling(cases_dir):
    data = json.loads((cases_dir / "bugs" / "B51.json").read_text())["data"]
    stored = RopeScaling(type="divisors", divisors=tuple(data["rope_freqs_divisor"]))
    rope = Rope.create(data["head_dim"], data["theta"], stored)

    np.testing.assert_allclose(
        rope.inv_freq, Rope.create(data["head_dim"], data["theta"], LLAMA32).inv_freq, rtol=2e-8
    )


def test_example_of_a_wavelength_of_4096_positions():
    """Halfway between the two limits in wavelengths: two thirds slowed, one third original."""
    frequency = 2 * math.pi / 4096
    theta = frequency**-2.0  # head_dim 4: pair 1 turns with theta ** -0.5
    rope = Rope.create(4, theta, LLAMA31)

    assert rope.inv_freq[1] == pytest.approx(frequency * (2 / 3 / 8 + 1 / 3), rel=1e-14)


def test_tables_cannot_be_changed():
    for scaling in (None, LLAMA31, QWEN):
        with pytest.raises(ValueError, match="read-only"):
            Rope.create(64, 1e4, scaling).inv_freq[0] = 2.0

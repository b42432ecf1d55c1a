"""The machine's limits: the work is really done, and what is measured makes sense.

No test says how fast a machine is; that is what the loops are for.
"""

import numpy as np
import pytest

import rml
from rml import _kernels, limits
from rml.limits import Limits, measure

LEVELS = [] if _kernels.BACKEND == "python" else _kernels.runnable_levels()
each_level = pytest.mark.parametrize(
    "twins", [pytest.param(level, marks=pytest.mark.compiled) for level in LEVELS], indirect=True
)
compiled = pytest.mark.skipif(not LEVELS, reason="nothing is compiled, or reference mode")

SIMPLE = Limits(
    gigabytes_per_second=10.0,
    int8_gigaproducts_per_second=100.0,
    int8x2_gigaproducts_per_second=50.0,
    f32_gigaproducts_per_second=20.0,
    n_threads=2,
    isa="base",
)


@pytest.fixture
def twins(request):
    return _kernels.load_level(request.param)


@each_level
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("n_bytes", [0, 3, 4, 507, 40_000, 200_003])
def test_every_word_is_read(twins, n_bytes, n_threads):
    data = np.random.default_rng(n_bytes).integers(0, 256, n_bytes + 1, np.uint8)[1:]
    words = data[: n_bytes // 4 * 4].copy().view(np.uint32)

    assert twins.read_words(data, n_threads=n_threads) == int(words.sum(dtype=np.uint64)) % 2**32


@each_level
@pytest.mark.parametrize("name", ["multiply_int8", "multiply_f32"])
def test_products_are_counted_by_their_sum(twins, name):
    multiply = getattr(twins, name)
    one = multiply(1)

    assert one >= 12 * 4  # at least four lanes of twelve chains
    # 999 to 1001: sums are taken out of the registers after every thousand rounds.
    for rounds in (0, 7, 999, 1000, 1001, 12_345):
        assert multiply(rounds) == rounds * one
        assert multiply(rounds, n_threads=2) == 2 * rounds * one


@each_level
def test_wider_levels_multiply_more_in_a_round(twins):
    level = twins.__name__.split("_isa_")[1]
    lanes = {"avx2": 8, "avx512vnni": 16}.get(level, 4)

    assert twins.multiply_f32(1) % lanes == 0
    # A dot product of bytes adds four products to a lane, others two.
    assert (2 if level in {"avx512vnni", "dotprod"} else 1) == twins.INT8X2_PRODUCTS
    assert twins.multiply_int8(1) // twins.multiply_f32(1) == 2 * twins.INT8X2_PRODUCTS


@compiled
def test_limits_of_a_file(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(256)) * 4096)

    found = measure(1, file)

    assert found.n_threads == 1
    assert found.isa == rml.info()["isa"]
    rates = (
        found.gigabytes_per_second,
        found.int8_gigaproducts_per_second,
        found.int8x2_gigaproducts_per_second,
        found.f32_gigaproducts_per_second,
    )
    assert min(rates) > 0
    assert "1 thread, " in str(found)


@compiled
def test_the_temporary_file_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(limits.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(limits, "READ_AT_MOST", 5_000_000)

    assert measure(1).gigabytes_per_second > 0
    assert not list(tmp_path.iterdir())


@compiled
def test_refusals(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(rml.ArgumentError, match="with something in it"):
        measure(path=tmp_path / "empty")
    with pytest.raises(rml.ArgumentError, match="no such"):
        measure(path=tmp_path / "no such")
    with pytest.raises(rml.ArgumentError, match="n_threads is 0"):
        measure(0)


def test_reference_mode_has_no_limits(monkeypatch):
    monkeypatch.setattr(_kernels, "TWINS", None)
    with pytest.raises(rml.RmlError, match="unset RML_PURE"):
        measure()


def test_seconds_are_those_of_the_longer_of_reading_and_multiplying():
    assert SIMPLE.seconds(20e9, {}) == pytest.approx(2.0)
    assert SIMPLE.seconds(20e9, {"int8": 100e9}) == pytest.approx(2.0)
    assert SIMPLE.seconds(20e9, {"int8": 300e9}) == pytest.approx(3.0)
    assert SIMPLE.seconds(20e9, {"int8x2": 300e9, "f32": 0}) == pytest.approx(6.0)
    # An operation with matrices of both kinds makes one kind of products after the other.
    assert SIMPLE.seconds(20e9, {"int8": 300e9, "f32": 20e9}) == pytest.approx(4.0)


def test_the_largest_cache_is_the_last():
    cache = limits.cache_bytes()

    assert cache is None or cache >= 1 << 15

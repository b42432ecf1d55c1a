"""Storing keys and values: exactly the numbers, and nothing but the slots, that are described."""

import numpy as np
import pytest
from paged import PAGE, Paged, group_of

from rml._kernels.pages import PageTable
from rml._kernels.step import Step
from rml.errors import ArgumentError

KINDS = ("f32", "f16", "int8")


def store(kernels, pages, start, k, v, **kwargs):
    step = pages.step(len(k), start)
    kernels.store_kv(k, v, pages.pages, step, layer=pages.layer, **kwargs)


def random_kv(n, n_kv_heads, d, seed=0):
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-6, 4, (2, n, n_kv_heads, 1))
    return (rng.standard_normal((2, n, n_kv_heads, d)) * sizes).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("start", "n", "n_kv_heads", "d"),
    [
        (0, 0, 1, 4),
        (0, 1, 1, 2),
        (15, 2, 3, 6),
        (0, 40, 2, 12),
        (31, 1, 1, 80),
        (5, 37, 3, 64),
        (3, 2, 1, 512),
    ],
)
def test_every_slot_and_only_those(kernels, kind, n_threads, start, n, n_kv_heads, d):
    k, v = random_kv(n, n_kv_heads, d)
    expected = Paged(start + n + 5, n_kv_heads, d, kind).put(start, k, v)
    pages = Paged(start + n + 5, n_kv_heads, d, kind)
    k.flags.writeable = v.flags.writeable = False

    store(kernels, pages, start, k, v, n_threads=n_threads)

    for got, wanted in zip(pages.arrays(), expected.arrays(), strict=True):
        assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f")


def float16_edges():
    """Every float16, its neighbours in float32, and the ties between two float16."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    values = halves[np.isfinite(halves)].astype(np.float32)
    middles = (values[:-1] + values[1:]) / 2
    exact = np.concatenate([values, middles, np.float32([65519.9, 65520, 1e30, np.inf, np.nan])])
    edges = [
        exact,
        np.nextafter(exact, np.float32(np.inf)),
        np.nextafter(exact, np.float32(-np.inf)),
    ]
    return np.resize(np.concatenate([*edges, *(-e for e in edges)]), (2, 400, 1, 512))


def test_float16_rounds_to_nearest_even(kernels):
    k, v = float16_edges()
    pages = Paged(400, 1, 512, "f16")
    store(kernels, pages, 0, k, v)

    p = np.arange(400)
    stored_k = pages.k_pages[pages.table[p // PAGE], 1, :, :, p % PAGE]
    stored_v = pages.v_pages[pages.table[p // PAGE], 1, :, p % PAGE]
    with np.errstate(over="ignore"):
        wanted_k, wanted_v = k.astype(np.float16), v.astype(np.float16)
    for got, wanted in ((stored_k, wanted_k), (stored_v, wanted_v)):
        same_bits = got.view(np.uint16) == wanted.view(np.uint16)
        assert (same_bits | (np.isnan(got) & np.isnan(wanted))).all()


def one_group(kernels, values):
    """Codes and scale that a group of 32 numbers is stored with."""
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, : len(values)] = values
    pages = Paged(1, 1, 32, "int8", n_layers=1, layer=0, spare=0)
    store(kernels, pages, 0, x, x)
    codes, scale = pages.v_pages[0, 0, 0, 0], pages.scales["v_scales"][0, 0, 0, 0, 0]
    assert np.array_equal(pages.k_pages[0, 0, 0, :, 0], codes)
    assert np.array_equal(pages.scales["k_scales"][0, 0, 0, 0, 0], scale, equal_nan=True)
    return codes[: len(values)].tolist(), scale


def test_int8_rounds_halves_to_even(kernels):
    codes, scale = one_group(kernels, [254, 1, 3, 5, -1, -3, -254, 2])
    assert scale == 2
    assert codes == [127, 0, 2, 2, 0, -2, -127, 1]


def test_int8_of_zeros(kernels):
    assert one_group(kernels, [0.0, -0.0]) == ([0, 0], 0)


@pytest.mark.parametrize("largest", [190, 63, 64])
def test_int8_of_the_smallest_numbers_stays_in_range(kernels, largest):
    tiny = np.float32(2**-149)  # the scale of a group of them is a whole number of these, or zero
    codes, scale = one_group(kernels, [tiny * largest, -tiny * largest])
    assert scale == np.float32(tiny * largest) / np.float32(127)
    assert codes == ([0, 0] if scale == 0 else [min(127, largest), -min(127, largest)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_group_with_a_bad_number_reads_as_nan(kernels, bad):
    codes, scale = one_group(kernels, [1, bad, 2])
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.array(codes) * scale).all()


@pytest.mark.parametrize("d", [2, 6, 12, 48, 64, 80, 96, 512])
def test_int8_is_within_half_a_step(kernels, d):
    k, v = random_kv(20, 2, d, seed=d)
    pages = Paged(20, 2, d, "int8")
    store(kernels, pages, 0, k, v)

    p = np.arange(20)
    codes = pages.v_pages[pages.table[p // PAGE], 1, :, p % PAGE].astype(np.float64)
    scales = pages.scales["v_scales"][pages.table[p // PAGE], 1, :, p % PAGE].astype(np.float64)
    steps = np.repeat(scales, group_of(d), axis=2)
    # x / step is rounded once to float32 before it is rounded to an integer: 127 * 2^-24.
    assert (np.abs(codes * steps - v) <= (0.5 + 127 * 2.0**-24) * steps).all()
    assert np.allclose(np.abs(v).reshape(20, 2, -1, group_of(d)).max(axis=3), scales * 127)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_rows_go_to_the_pages_of_their_own_sequences(kernels, kind, n_threads):
    """Two sequences in turns of the same pages, as a step of both and one after the other."""
    k, v = random_kv(12, 2, 12)
    tables = [PageTable([2, 0]), PageTable([1, 4])]
    parts = [(0, 9, 7, tables[0]), (9, 12, 15, tables[1])]
    together, apart = Paged(48, 2, 12, kind), Paged(48, 2, 12, kind)
    step = Step(15)
    for first, stop, position, table in parts:
        step.add([0] * (stop - first), position, [table])
        alone = Step(12)
        alone.add([0] * (stop - first), position, [table])
        kernels.store_kv(k[first:stop], v[first:stop], apart.pages, alone, layer=1)

    kernels.store_kv(k, v, together.pages, step, layer=1, n_threads=n_threads)

    for got, wanted in zip(together.arrays(), apart.arrays(), strict=True):
        assert np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f")


def test_an_operation_is_built_once_and_follows_the_step(twins):
    k, v = random_kv(3, 2, 16)
    pages, step = Paged(64, 2, 16), Step(3)
    op = twins.operations["store_kv"](k, v, pages.pages, step, layer=1)
    for p, n in ((0, 1), (17, 3), (63, 1)):
        step.clear()
        step.add([0] * n, p, [PageTable(pages.table)])
        op.run(1)
        for i in range(n):
            page, slot = pages.table[(p + i) // PAGE], (p + i) % PAGE
            assert np.array_equal(pages.v_pages[page, 1, :, slot], v[i])


def refused_calls():
    """Name, changed arguments."""
    k, pages = np.zeros((2, 2, 8), np.float32), Paged(40, 2, 8)
    frozen = Paged(40, 2, 8)
    frozen.k_pages.flags.writeable = False
    frozen_scales = Paged(40, 2, 8, "int8")
    frozen_scales.scales["v_scales"].flags.writeable = False

    def leading(table, position):
        step = Step(2)
        step.add([0, 0], 0, [PageTable(table)])
        step.positions[:2] = position, position + 1
        return {"step": step}

    yield "k float64", {"k": k.astype(np.float64)}
    yield "v shorter", {"v": k[:1]}
    yield "shorter than the step", {"k": k[:1], "v": k[:1]}
    yield "other heads", {"k": k[:, :1].copy(), "v": k[:, :1].copy()}
    yield "other D", {"k": k[..., :6].copy(), "v": k[..., :6].copy()}
    yield "frozen pages", {"pages": frozen.pages}
    yield "frozen scales", {"pages": frozen_scales.pages}
    yield "layer", {"layer": 2}
    yield "negative position", leading(pages.table, -1)
    yield "past the table", leading(pages.table, 47)
    yield "no page", leading([0, -1, 0], 31)
    yield "page out of range", leading([0, 5, 0], 31)


@pytest.mark.parametrize(("name", "changed"), [pytest.param(*c, id=c[0]) for c in refused_calls()])
def test_refused(kernels, definitions, name, changed):
    pages = Paged(40, 2, 8)
    arguments = {
        "k": np.ones((2, 2, 8), np.float32),
        "v": np.ones((2, 2, 8), np.float32),
        "pages": pages.pages,
        "step": pages.step(2, 31),
        "layer": 1,
    } | changed
    before = [array.copy() for array in pages.arrays()]
    with pytest.raises(ArgumentError) as defined:
        definitions.store_kv(**arguments)
    with pytest.raises(ArgumentError) as got:
        kernels.store_kv(**arguments)
    assert str(got.value) == str(defined.value)
    for array, old in zip(pages.arrays(), before, strict=True):
        assert np.array_equal(array, old, equal_nan=old.dtype.kind == "f")

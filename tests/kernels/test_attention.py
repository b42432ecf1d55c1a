"""Attention over pages, against float64 and against itself.

`exact_attention` is softmax(scale * q k) v in float64 on the numbers that the pages hold, with an
error bound beside it. With u = 2^-24, first order in u:

- a score is a sum of D products and a product with the scale: off by (D + 2) u times the sum of
  the magnitudes; a stored int8 number is code * scale, rounded: (D + 3) u;
- e^(s - m) has the rounding of s - m, and 4 u for the function itself;
- whenever a later maximum is larger, what came before is multiplied by e^(m - m') and rounded,
  which happens at most once a block of 32 or span of 256, over a range of at most max s - min s;
- these are relative errors of the weights, and move the result by themselves and through the sum
  of weights that it is divided by;
- the sums of n weighted values and of n weights are off by n u of the sums of the magnitudes each,
  and division, the product with it and an int8 value add 5 u.
"""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from paged import PAGE, Paged

from rml import _kernels
from rml._kernels.pages import Pages, PageTable
from rml._kernels.step import Step
from rml.errors import ArgumentError

U = 2.0**-24
KINDS = ("f32", "f16", "int8")


def exact_attention(q, pages, position, scale, window):
    """Result in float64, (T, H, D), and how far a float32 result may be off."""
    n_tokens, n_heads, d = q.shape
    shared = n_heads // pages.k.shape[1]
    out, bound = np.empty(q.shape), np.empty(q.shape)
    for t in range(n_tokens):
        p = position + t
        seen = [j for j in range(p + 1) if not window or j > p - window]
        for h in range(n_heads):
            k, v = pages.k[seen, h // shared], pages.v[seen, h // shared]
            products = k * q[t, h].astype(np.float64) * np.float64(np.float32(scale))
            s = products.sum(axis=1)
            w = np.exp(s - s.max())
            w /= w.sum()
            out[t, h] = w @ v
            spread = s.max() - s.min()
            rescalings = len(seen) // 32 + len(seen) // 256 + 4
            weight_error = (d + 3) * U * np.abs(products).sum(axis=1) + (2 * spread + 4) * U
            weight_error += rescalings * 5 * U
            total = weight_error + w @ weight_error + (2 * len(seen) + 5) * U
            bound[t, h] = 1.001 * (w * total) @ np.abs(v)
    return out, bound


def random_pages(n, n_kv_heads, d, kind="f32", seed=0, **kwargs):
    rng = np.random.default_rng(seed + 1)
    k, v = rng.standard_normal((2, n, n_kv_heads, d)).astype(np.float32)
    return Paged(n, n_kv_heads, d, kind, seed=seed, **kwargs).put(0, k, v)


def random_queries(n, n_heads, d, seed=0):
    return np.random.default_rng(seed + 2).standard_normal((n, n_heads, d)).astype(np.float32)


def attend(kernels, q, pages, position, window=0, scale=None, **kwargs):
    out = np.full(q.shape, np.nan, np.float32)
    kernels.attend(
        q, pages.pages, pages.step(len(q), position), out,
        layer=pages.layer, scale=scale or q.shape[2] ** -0.5, window=window, **kwargs,
    )  # fmt: skip
    return out


@cache
def known_case(kind, n, position, heads, kv_heads, d, window):
    """Pages and queries with their float64 result and its bound, for all kernels to share."""
    pages, q = random_pages(position + n, kv_heads, d, kind), random_queries(n, heads, d)
    for array in (q, pages.table, *pages.arrays()):
        array.flags.writeable = False
    return pages, q, *exact_attention(q, pages, position, d**-0.5, window)


# n_tokens, position, query heads, kv heads, D, window
SHAPES = {
    "first token": (1, 0, 1, 1, 2, 0),
    "page edge": (1, 15, 2, 1, 6, 0),
    "second page": (1, 16, 3, 3, 12, 0),
    "decode, group of 3": (1, 70, 9, 3, 64, 0),
    "decode, spans": (1, 600, 4, 1, 80, 0),
    "few queries, spans": (3, 300, 6, 2, 96, 0),
    "across the edge of a span": (5, 254, 2, 2, 16, 0),
    "prompt, group of 3": (40, 0, 9, 3, 64, 0),
    "prompt, group of 16": (19, 5, 16, 1, 12, 0),
    "prompt, group of 71": (9, 5, 71, 1, 64, 0),
    "prompt, group of 1": (37, 11, 2, 2, 34, 0),
    "prompt, group of 5": (33, 250, 5, 1, 20, 0),
    "widest head": (2, 33, 2, 1, 512, 0),
    "wide heads, tiles": (14, 100, 4, 1, 256, 0),
    "window of one": (20, 3, 2, 1, 16, 1),
    "window below a page": (21, 30, 4, 2, 64, 7),
    "window of a page": (3, 47, 2, 1, 48, 16),
    "window of a block": (40, 20, 2, 1, 32, 32),
    "window longer than the past": (9, 4, 2, 1, 16, 100),
    "window across spans": (30, 500, 3, 1, 16, 257),
    "decode in a window": (1, 777, 4, 1, 128, 512),
}
CASES = [pytest.param(*shape, id=name) for name, shape in SHAPES.items()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "position", "heads", "kv_heads", "d", "window"), CASES)
def test_attention_is_float64_within_its_roundings(
    kernels, kind, n, position, heads, kv_heads, d, window
):
    pages, q, exact, bound = known_case(kind, n, position, heads, kv_heads, d, window)

    out = attend(kernels, q, pages, position, window)

    assert (np.abs(out - exact) <= bound).all(), np.max(np.abs(out - exact) / bound)
    assert bound.max() < 1e-5 * d  # the bound is worth something


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "position", "heads", "kv_heads", "d", "window"), CASES)
def test_twin_is_the_definition_within_their_roundings(
    twins, definitions, kind, n, position, heads, kv_heads, d, window
):
    pages, q, _, bound = known_case(kind, n, position, heads, kv_heads, d, window)

    defined = attend(definitions, q, pages, position, window)
    out = attend(twins, q, pages, position, window)

    assert (np.abs(out - defined) <= 2 * bound).all()


@pytest.mark.parametrize("growing", [True, False])
def test_large_scores_do_not_overflow(kernels, growing):
    # Scores from 0 to 2000, so that every block's maximum is far from the last one's.
    n, d = 300, 8
    ramp = np.linspace(0, 250, n) if growing else np.linspace(250, 0, n)
    keys = np.repeat(ramp[:, None, None], d, axis=2).astype(np.float32)
    values = np.random.default_rng(0).standard_normal((n, 1, d)).astype(np.float32)
    pages = Paged(n, 1, d).put(0, keys, values)
    q = np.ones((1, 2, d), np.float32)
    exact, bound = exact_attention(q, pages, n - 1, 1.0, 0)

    out = attend(kernels, q, pages, n - 1, scale=1.0)

    assert (np.abs(out - exact) <= bound).all()


def cuts_of(n):
    """Ways to divide n tokens into calls."""
    yield [0, n]
    yield [0, 1, n]
    yield [0, n // 2, n - 1, n]
    yield [*range(0, n, 7), n]
    yield list(range(n + 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "position", "heads", "kv_heads", "d", "window"),
    [
        (70, 0, 9, 3, 64, 0),
        (70, 0, 9, 3, 64, 19),
        (50, 240, 4, 1, 20, 0),
        (50, 500, 2, 2, 12, 250),
        (45, 10, 16, 1, 32, 33),
    ],
)
def test_same_bits_however_a_prompt_is_cut(twins, kind, n, position, heads, kv_heads, d, window):
    pages, q = random_pages(position + n, kv_heads, d, kind), random_queries(n, heads, d)
    whole = attend(twins, q, pages, position, window)

    for cuts in cuts_of(n):
        for start, stop in pairwise(cuts):
            part = attend(twins, q[start:stop], pages, position + start, window)
            assert np.array_equal(part, whole[start:stop]), (start, stop)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "position", "heads", "kv_heads", "d", "window"),
    [(1, 1500, 9, 3, 16, 0), (1, 1000, 4, 1, 64, 700), (3, 900, 2, 1, 32, 0), (50, 3, 9, 3, 64, 0)],
)
def test_same_bits_for_any_number_of_threads(
    kernels, kind, n, position, heads, kv_heads, d, window
):
    pages, q = random_pages(position + n, kv_heads, d, kind), random_queries(n, heads, d)
    one = attend(kernels, q, pages, position, window, n_threads=1)

    for n_threads in (2, 3, 8):
        assert np.array_equal(attend(kernels, q, pages, position, window, n_threads=n_threads), one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 1, 40])
def test_same_bits_whatever_else_lies_in_the_pages(kernels, kind, window):
    """Later tokens of the same call, slots not in use and other layers may even be NaN."""
    n, position, kv_heads, d = 9, 290, 2, 32
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, position + n, kv_heads, d)).astype(np.float32)
    q = random_queries(n, 4, d)
    full = Paged(position + n, kv_heads, d, kind, seed=1).put(0, k, v)
    whole = attend(kernels, q, full, position, window)
    for array in full.arrays():
        array[:, 0] = 0  # the other layer
    assert np.array_equal(attend(kernels, q, full, position, window), whole)

    for t in range(n):
        start = max(0, position + t - window + 1) if window else 0
        seen = slice(start, position + t + 1)
        bare = Paged(position + n, kv_heads, d, kind, seed=2).put(start, k[seen], v[seen])
        out = attend(kernels, q, bare, position, window)
        assert np.array_equal(out[t], whole[t])


@pytest.mark.parametrize("window", [1, 3, 10, 20, 40])
def test_a_window_needs_no_pages_before_it(kernels, window):
    pages, q = random_pages(100, 1, 16), random_queries(2, 2, 16)
    whole = attend(kernels, q, pages, 98, window)
    pages.table[: (98 - window + 1) // PAGE] = 1 << 30  # no page at all

    assert np.array_equal(attend(kernels, q, pages, 98, window), whole)


def test_the_exponential(kernels):
    """Two keys with scores 0 and -x: the second value is weighted with e^-x / (1 + e^-x)."""
    x = np.linspace(0, 87, 4001).astype(np.float32)
    k, v = np.zeros((2, 2, 1, 2), np.float32)
    k[1, 0, 0] = v[1, 0, 0] = 1
    q = np.zeros((1, x.size, 2), np.float32)
    q[0, :, 0] = -x

    out = attend(kernels, q, Paged(2, 1, 2).put(0, k, v), 1, scale=1.0)

    exact = 1 / (1 + np.exp(x.astype(np.float64)))
    # Scores are exact; two units in the last place of e^-x, and a sum, a division, a product.
    assert (np.abs(out[0, :, 0] - exact) <= 8 * U * exact).all()


def test_only_itself_in_sight(kernels):
    """With a window of one, the weight is 1 and every stored number comes back as it is."""
    codes = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(128, 1, 512)
    pages = Paged(128, 1, 512, "f16")
    rest = np.arange(128)
    pages.k_pages[pages.table[rest // PAGE], pages.layer, :, :, rest % PAGE] = 0
    pages.v_pages[pages.table[rest // PAGE], pages.layer, :, rest % PAGE] = codes

    with np.errstate(invalid="ignore"):  # infinity times nothing in other lanes, signalling NaN
        out = attend(kernels, np.ones((128, 1, 512), np.float32), pages, 0, 1)
        exact = codes.astype(np.float32)

    assert np.array_equal(out, exact, equal_nan=True)


def test_visible_nan_is_not_hidden(kernels):
    for where in ("k", "v"):
        k, v = np.ones((2, 20, 1, 4), np.float32)
        (k if where == "k" else v)[7, 0, 2] = np.nan
        pages = Paged(20, 1, 4).put(0, k, v)
        out = attend(kernels, np.ones((1, 1, 4), np.float32), pages, 19)
        assert np.isnan(out[0, 0, 2])


def test_read_only_files_and_the_result_over_the_queries(kernels, tmp_path):
    pages, q = random_pages(30, 2, 16, "int8"), random_queries(4, 4, 16)
    expected = attend(kernels, q, pages, 26)
    for name in ("k_pages", "v_pages", "table"):
        np.save(tmp_path / name, getattr(pages, name))
        setattr(pages, name, np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    for name in list(pages.scales):
        np.save(tmp_path / name, pages.scales[name])
        pages.scales[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    frozen = q.copy()
    frozen.flags.writeable = False
    assert np.array_equal(attend(kernels, frozen, pages, 26), expected)

    kernels.attend(q, pages.pages, pages.step(4, 26), q, layer=1, scale=0.25)
    assert np.array_equal(q, expected)


def batch(rng, sizes, kv_heads, heads, d, kind, slab_pages=4):
    """Sequences of (rows, position) in the same pages; their pages, step, tables and queries."""
    entries = [-(-(position + n) // PAGE) for n, position in sizes]
    order = rng.permutation(sum(entries)).tolist()
    pages = Pages(2, kv_heads, d, kind, n_pages=sum(entries), slab_pages=slab_pages)
    for slab in range(len(pages.slabs)):
        pages.reserve(slab)
    tables = [PageTable([order.pop() for _ in range(n)]) for n in entries]
    step = Step(sum(n for n, _ in sizes) + 3)
    for (n, position), table in zip(sizes, tables, strict=True):
        past = Step(position + n)
        past.add([0] * (position + n), 0, [table])
        k, v = rng.standard_normal((2, position + n, kv_heads, d)).astype(np.float32)
        _kernels.DEFINITIONS["store_kv"](k, v, pages, past, layer=1)
        step.add([0] * n, position, [table])
    return pages, step, tables, random_queries(step.capacity, heads, d)


BATCHES = {
    "decode": [(1, 0), (1, 700), (1, 15), (1, 256)],
    "decode beside a prompt": [(1, 300), (40, 0), (1, 3), (25, 500)],
    "drafts": [(3, 254), (8, 60), (9, 60), (1, 511)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [0, 33])
@pytest.mark.parametrize("sizes", BATCHES.values(), ids=BATCHES)
def test_same_bits_in_any_company(kernels, kind, window, sizes):
    pages, step, tables, q = batch(np.random.default_rng(5), sizes, 2, 6, 20, kind)
    for n_threads in (1, 2, 3):
        out = np.full(q.shape, 7, np.float32)
        kernels.attend(q, pages, step, out, layer=1, scale=0.25, window=window, n_threads=n_threads)

        assert (out[step.n_rows :] == 7).all()
        for s, ((n, position), table) in enumerate(zip(sizes, tables, strict=True)):
            rows = step.rows_of(s)
            alone = Step(n)
            alone.add([0] * n, position, [table])
            wanted = np.empty((n, 6, 20), np.float32)
            kernels.attend(q[rows].copy(), pages, alone, wanted, layer=1, scale=0.25, window=window)
            assert np.array_equal(out[rows], wanted)


def test_a_swapped_page_table_shows(kernels):
    """The control of the test above: it would not pass if sequences were mixed up."""
    pages, step, tables, q = batch(np.random.default_rng(5), [(1, 40), (1, 40)], 2, 6, 20, "f32")
    swapped = Step(2)
    for table in reversed(tables):
        swapped.add([0], 40, [table])
    outs = np.empty((2, *q.shape), np.float32)
    for out, each in zip(outs, (step, swapped), strict=True):
        kernels.attend(q, pages, each, out, layer=1, scale=0.25)

    assert not np.array_equal(outs[0, :2], outs[1, :2])


def test_an_operation_is_built_once_and_follows_the_step(twins):
    pages, q = random_pages(600, 1, 16), random_queries(20, 3, 16)
    table, step, out = PageTable(pages.table), Step(20), np.empty_like(q)
    op = twins.operations["attend"](q, pages.pages, step, out, layer=1, scale=0.25, window=0)
    for p, n in ((0, 1), (15, 2), (16, 20), (255, 1), (256, 9), (599, 1)):
        step.clear()
        step.add([0] * n, p, [table])
        op.run(2)
        assert np.array_equal(out[:n], attend(twins, q[:n], pages, p))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 16, 20])
def test_no_tokens(kernels, kind, position):
    pages, q = random_pages(20, 1, 8, kind), random_queries(0, 2, 8)
    assert attend(kernels, q, pages, position).shape == (0, 2, 8)


def refused_calls():
    """Name, changed arguments."""
    q, pages = random_queries(2, 4, 8), random_pages(40, 2, 8)
    frozen = np.zeros_like(q)
    frozen.flags.writeable = False

    def leading(table, position):
        return {"step": one_sequence(2, position, np.int32(table))}

    yield "q float64", {"q": q.astype(np.float64)}
    yield "q flat", {"q": q.reshape(2, 32)}
    yield "q shorter than the step", {"q": q[:1], "out": np.zeros((1, 4, 8), np.float32)}
    yield "heads", {"q": q[:, :3].copy(), "out": np.zeros((2, 3, 8), np.float32)}
    yield "no heads", {"q": q[:, :0].copy(), "out": np.zeros((2, 0, 8), np.float32)}
    yield "other D", {"q": q[..., :6].copy()}
    yield "list of pages", {"pages": [1]}
    yield "no step", {"step": np.array([30])}
    yield "negative position", leading(pages.table, -1)
    yield "far position", leading(pages.table, 2**62)
    yield "past the table", leading(pages.table, 47)
    yield "no such page", leading([0, 5, 0], 30)
    yield "no page", leading([-1, 0, 0], 30)
    yield "another group", {"pages": with_group(pages.pages, 1)}
    yield "out shape", {"out": np.zeros((1, 4, 8), np.float32)}
    yield "out frozen", {"out": frozen}
    yield "layer", {"layer": 2}
    yield "negative layer", {"layer": -1}
    yield "scale nan", {"scale": float("nan")}
    yield "window", {"window": -1}


def one_sequence(n, position, table):
    step = Step(n)
    step.add([0] * n, 0, [PageTable(table)])
    step.positions[:n] = position + np.arange(n)
    return step


def with_group(pages, group):
    pages.group = group
    return pages


@pytest.mark.parametrize(("name", "changed"), [pytest.param(*c, id=c[0]) for c in refused_calls()])
def test_refused(kernels, definitions, name, changed):
    pages = random_pages(40, 2, 8)
    arguments = {
        "q": random_queries(2, 4, 8),
        "pages": pages.pages,
        "step": pages.step(2, 30),
        "out": np.full((2, 4, 8), 7, np.float32),
        "layer": 1,
        "scale": 0.5,
    } | changed
    with pytest.raises(ArgumentError) as defined:
        definitions.attend(**arguments)
    with pytest.raises(ArgumentError) as got:
        kernels.attend(**arguments)
    assert str(got.value) == str(defined.value)
    if "out" not in changed:
        assert (arguments["out"] == 7).all()

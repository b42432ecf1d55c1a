"""What a step holds, what pages hold, and what both refuse."""

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.pages import KV_TYPES, Pages, PageTable, Slab
from rml._kernels.step import Step
from rml.errors import ArgumentError


def make(n_pages=6, slab_pages=4, kv_type="f32", **kwargs):
    return Pages(2, 3, 8, kv_type, n_pages=n_pages, slab_pages=slab_pages, **kwargs)


def reserved(**kwargs):
    pages = make(**kwargs)
    for slab in range(len(pages.slabs)):
        pages.reserve(slab)
    return pages


# ---- steps ----


def test_rows_of_several_sequences():
    step, tables = Step(8), [PageTable([5, 0]), PageTable([1])]
    assert step.add([7, 8, 9], 14, [tables[0]]) == (0, 3)
    assert step.add([4], 2, [tables[1]]) == (3, 4)

    assert (step.n_rows, step.n_sequences, step.n_outputs) == (4, 2, 0)
    assert step.ids[:4].tolist() == [7, 8, 9, 4]
    assert step.positions[:4].tolist() == [14, 15, 16, 2]
    assert step.owners[:4].tolist() == [0, 0, 0, 1]
    assert [step.rows_of(s) for s in (0, 1)] == [slice(0, 3), slice(3, 4)]
    assert [step.table(0, s).tolist() for s in (0, 1)] == [[5, 0], [1]]

    assert [step.want(2), step.want(3)] == [0, 1]
    assert step.outputs[:2].tolist() == [2, 3]

    step.clear()
    assert (step.n_rows, step.n_sequences, step.n_outputs) == (0, 0, 0)


def test_a_step_that_is_full():
    step = Step(3, n_outputs=1)
    with pytest.raises(ArgumentError, match="4 tokens do not fit a step that holds 0 of 3"):
        step.add([1] * 4, 0, [PageTable([0])])
    with pytest.raises(ArgumentError, match="0 tokens"):
        step.add([], 0, [PageTable([0])])
    step.add([1, 2], 0, [PageTable([0])])
    with pytest.raises(ArgumentError, match="2 tokens do not fit a step that holds 2 of 3"):
        step.add([1, 2], 0, [PageTable([0])])
    step.want(0)
    with pytest.raises(ArgumentError, match="at most 1 outputs"):
        step.want(1)


def test_tables_of_several_groups():
    step = Step(2, n_groups=2)
    step.add([0], 20, [PageTable([0, 1]), PageTable([-1, 3])])
    whole, windowed = reserved(), reserved(group=1)
    for check in (Step.check, _kernels.check_step):
        check(step, whole)
        check(step, windowed, 4)
        with pytest.raises(ArgumentError, match=r"page_table\[0\] is -1"):
            check(step, windowed, 6)
        with pytest.raises(ArgumentError, match="of group 2, but the step has 2"):
            check(step, make(group=2))


def test_the_checks_agree():
    """Whatever is wrong, the quick way says what the definition says."""
    rng = np.random.default_rng(0)
    pages = reserved()
    refused = 0
    for _ in range(300):
        step = Step(40)
        for _ in range(rng.integers(1, 4)):
            n, position = int(rng.integers(1, 12)), int(rng.integers(-1, 40))
            table = rng.integers(-1 if rng.random() < 0.2 else 0, 7, 3)
            step.add(rng.integers(0, 5, n).tolist(), position, [PageTable(table)])
        window = int(rng.integers(0, 30))
        said = []
        for check in (Step.check, _kernels.check_step):
            try:
                check(step, pages, window)
            except ArgumentError as error:
                said.append(str(error))
        assert len(said) in (0, 2)
        assert len(set(said)) == len(said) // 2
        refused += bool(said)
    assert 50 < refused < 250


@pytest.mark.parametrize("token", [-1, 100])
def test_ids_outside_the_vocabulary(token):
    step = Step(3)
    step.add([99, token, 0], 0, [PageTable([0])])
    for check in (Step.check_ids, _kernels.check_ids):
        check(step, 101) if token > 0 else None
        with pytest.raises(ArgumentError, match=f"token id {token} is outside the vocabulary of"):
            check(step, 100)


# ---- tables ----


def test_a_table_grows_and_shrinks():
    table = PageTable()
    for page in range(100):
        table.append(page * 3)
        assert table.address == table.entries.ctypes.data
        assert len(table) == page + 1
    assert [table[i] for i in (0, 57, 99, -1)] == [0, 171, 297, 297]
    other = table.copy()
    assert table.pop() == 297
    assert (len(table), len(other)) == (99, 100)
    table[3] = 1000
    assert (table[3], other[3]) == (1000, 9)
    with pytest.raises(IndexError):
        table[99]


# ---- pages ----


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_slabs_come_and_go(kv_type):
    pages = make(kv_type=kv_type)
    assert len(pages.slabs) == 2
    assert [list(pages.slab_range(i)) for i in (0, 1)] == [[0, 1, 2, 3], [4, 5]]
    assert not pages.addresses.any()
    with pytest.raises(ArgumentError, match="there is no page 5"):
        pages.page(5)

    pages.reserve(1)
    sizes = [array.shape for array in pages.page(5)]
    assert sizes[:2] == [(2, 3, 8, 16), (2, 3, 16, 8)]
    assert sizes[2:] == ([(2, 3, 1, 16), (2, 3, 16, 1)] if kv_type == "int8" else [])
    assert sum(array.nbytes for array in pages.page(4)) == pages.page_bytes
    kept = pages.slabs[1]
    pages.reserve(1)  # it is there already
    assert pages.slabs[1] is kept

    for array in pages.page(4):
        array[...] = 3
    pages.copy_page(4, 5)
    assert all((array == 3).all() for array in pages.page(5))

    pages.drop(1)
    assert not pages.addresses.any()
    assert repr(pages) == f"<Pages {kv_type}, 2 layers, 3 heads of 8, 0 of 2 slabs>"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_kv_heads": -1}, "n_kv_heads is -1"),
        ({"n_pages": 0}, "n_pages is 0"),
        ({"slab_pages": 0}, "slab_pages is 0"),
        ({"slab_pages": 6}, "slab_pages is 6, but must be a power of two"),
        ({"head_dim": 7}, "head_dim is 7, but an even number from 2 to 512 is needed"),
        ({"head_dim": 514}, "head_dim is 514"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"kv_type": "q4"}, "kv_type is 'q4', but must be one of f32, f16, int8"),
    ],
)
def test_sizes_that_are_refused(arguments, message):
    sizes = {"n_layers": 1, "n_kv_heads": 1, "head_dim": 8, "kv_type": "f16"}
    sizes |= {"n_pages": 4, "slab_pages": 4} | arguments
    with pytest.raises(ArgumentError, match=message):
        Pages(**sizes)


def slab_changes():
    good = reserved(kv_type="int8").slabs[1]
    yield "type", {"k": good.k.astype(np.float32)}, "k is float32"
    yield "v as k", {"v": good.k}, "v is int8 of shape"
    yield "fewer pages", {"k": good.k[:1]}, "k is int8 of shape"
    yield "strided", {"k": np.asfortranarray(good.k)}, "C-contiguous"
    yield "no scales", {"k_scales": None}, "k_scales is NoneType"
    yield "no array", {"v_scales": [1.0]}, "v_scales is list"


@pytest.mark.parametrize(("name", "changed", "message"), list(slab_changes()))
def test_arrays_that_are_no_slab(name, changed, message):
    pages, good = make(kv_type="int8"), reserved(kv_type="int8").slabs[1]
    arrays = {x: getattr(good, x) for x in ("k", "v", "k_scales", "v_scales")} | changed
    with pytest.raises(ArgumentError, match=message):
        pages.put(1, Slab(**arrays))
    assert not pages.addresses.any()


def test_scales_that_nobody_reads():
    f32, scales = reserved().slabs[1], reserved(kv_type="int8").slabs[1].k_scales
    with pytest.raises(ArgumentError, match="f32 pages have no scales, but k_scales is given"):
        make().put(1, Slab(f32.k, f32.v, scales))

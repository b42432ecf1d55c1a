"""The paged cache: what it holds, what it refuses, and what forks share."""

import numpy as np
import pytest

from rml import _kernels
from rml._kernels.pages import KV_TYPES, Pages
from rml._kernels.step import Step
from rml.errors import ArgumentError, ClosedError, ContextOverflow, OutOfMemory
from rml.llm import kv_cache
from rml.llm.kv_cache import KVCache
from rml.memory_room import Room

LAYERS, HEADS, D = 2, 2, 8


def make(n_ctx=64, kv_type="f32", **kwargs):
    return KVCache(LAYERS, HEADS, D, n_ctx, kv_type, **kwargs)


def numbers(first, n):
    """Keys and values of positions, recognizable, (2, n, G, D)."""
    k = np.arange(first, first + n)[:, None, None] + np.zeros((n, HEADS, D))
    return np.stack([k + 0.25, -k]).astype(np.float32)


def write(cache, k, v):
    """What a forward pass does with new tokens."""
    cache.reserve(len(k))
    for layer in range(LAYERS):
        _kernels.store_kv(k, v, cache.pages, step_of(cache, len(k), cache.size), layer=layer)
    cache.commit(len(k))


def memory(cache):
    """All arrays of the pages."""
    return [array for slab in cache.pages.slabs for array in slab.arrays()]


def entries(cache):
    return [cache.table[i] for i in range(len(cache.table))]


def step_of(cache, n, position):
    step = Step(max(n, 1))
    if n:
        step.add([0] * n, position, [cache.table])
    return step


def append(cache, n):
    write(cache, *numbers(cache.size, n))


def read(cache):
    """Attention of a window of one at every position gives back the values."""
    q = np.ones((cache.size, HEADS, D), np.float32)
    out = np.empty((LAYERS, *q.shape), np.float32)
    for layer in range(LAYERS):
        _kernels.attend(
            q, cache.pages, step_of(cache, cache.size, 0), out[layer],
            layer=layer, scale=1.0, window=1,
        )  # fmt: skip
    assert np.array_equal(out[0], out[1])
    return out[0]


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_what_is_written_is_read(kv_type):
    cache = make(kv_type=kv_type)
    for n in (1, 14, 1, 1, 30, 17):
        append(cache, n)
    assert cache.size == 64
    assert np.array_equal(read(cache), numbers(0, 64)[1])


def test_int8_is_read_within_half_a_step():
    cache = make(kv_type="int8")
    append(cache, 40)
    wanted = numbers(0, 40)[1]
    assert (np.abs(read(cache) - wanted) <= np.abs(wanted) / 254 * 1.001).all()


# The table of bytes in the module's docstring.
@pytest.mark.parametrize(
    ("sizes", "f32", "f16", "int8"),
    [
        ((30, 3, 64), 46080, 23040, 12960),
        ((18, 1, 256), 36864, 18432, 10368),
        ((32, 8, 128), 262144, 131072, 73728),
    ],
)
def test_bytes_of_a_token(sizes, f32, f16, int8):
    caches = [KVCache(*sizes, 32, kv_type) for kv_type in ("f32", "f16", "int8")]
    assert [c.bytes_per_token for c in caches] == [f32, f16, int8]
    for cache in caches:
        assert sum(a.nbytes for a in memory(cache)) == 32 * cache.bytes_per_token


def test_a_new_cache():
    cache = make(40)
    assert (cache.size, cache.n_ctx, cache.nbytes, cache.kv_type) == (0, 40, 0, "f32")
    assert entries(cache) == []
    assert repr(cache) == "<KVCache f32, 0 of 40 positions>"
    append(cache, 17)
    assert cache.size == 17
    assert cache.nbytes == 32 * cache.bytes_per_token


def test_pages_that_are_not_used_cost_no_memory():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = KVCache(16, 8, 128, 16384)  # two gigabytes
    cache.reserve(16)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(array.nbytes for array in memory(cache)) == 1 << 31
    assert after - before < 1 << 16  # KB on Linux; bytes on macOS, where it holds all the more


def state(cache):
    return (cache.size, entries(cache), cache.nbytes)


def test_overflow_changes_nothing():
    cache = make(20)
    append(cache, 18)
    before = state(cache)
    with pytest.raises(
        ContextOverflow, match="21 tokens are needed, but the context holds 20"
    ) as e:
        cache.reserve(3)
    assert (e.value.needed, e.value.limit) == (21, 20)
    assert state(cache) == before
    append(cache, 2)
    assert np.array_equal(read(cache), numbers(0, 20)[1])


def test_reserving_is_not_using():
    cache = make(64)
    cache.reserve(40)
    assert cache.size == 0
    cache.reserve(3)
    cache.commit(3)
    with pytest.raises(ArgumentError, match="n is 46, but 45 positions are reserved"):
        cache.commit(46)
    with pytest.raises(ArgumentError):
        cache.commit(-1)
    with pytest.raises(ArgumentError, match="n is -1"):
        cache.reserve(-1)
    assert cache.size == 3
    cache.reserve(0)
    cache.commit(0)
    assert cache.size == 3


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 39, 40])
def test_truncate_then_write_again(length):
    cache = make(64)
    append(cache, 40)
    cache.truncate(length)
    assert cache.size == length
    assert cache.nbytes == -(-length // 16) * 16 * cache.bytes_per_token
    assert np.array_equal(read(cache), numbers(0, length)[1])
    append(cache, 64 - length)
    assert np.array_equal(read(cache), numbers(0, 64)[1])


def test_truncate_out_of_range():
    cache = make(64)
    append(cache, 5)
    for length in (-1, 6):
        with pytest.raises(ArgumentError, match=f"length is {length}"):
            cache.truncate(length)
    assert cache.size == 5


@pytest.mark.parametrize("kv_type", sorted(KV_TYPES))
@pytest.mark.parametrize("common", [0, 1, 16, 20, 32])
def test_forks_share_what_they_had_and_nothing_else(kv_type, common):
    cache = make(64, kv_type, n_sequences=3)
    append(cache, common)
    forks = [cache.fork(), cache.fork()]
    shared = -(-common // 16)
    assert all(entries(f)[:shared] == entries(cache)[:shared] for f in forks)

    fork, other = forks
    write(fork, *numbers(1000, 7))
    write(cache, *numbers(2000, 20))
    write(other, *numbers(3000, 1))

    alone = {}
    for name, first, n in (("fork", 1000, 7), ("cache", 2000, 20), ("other", 3000, 1)):
        alone[name] = make(64, kv_type)
        append(alone[name], common)
        write(alone[name], *numbers(first, n))
    for name, got in (("fork", fork), ("cache", cache), ("other", other)):
        assert got.size == alone[name].size
        assert np.array_equal(read(got), read(alone[name]))
    whole = common // 16  # pages that nobody writes any more
    assert entries(fork)[:whole] == entries(cache)[:whole]
    if common % 16:
        assert len({c.table[whole] for c in (cache, *forks)}) == 3


def test_the_last_user_of_a_page_writes_in_place():
    cache = make(32, n_sequences=2)
    append(cache, 20)
    fork = cache.fork()
    page = fork.table[1]
    cache.close()
    append(fork, 1)
    assert fork.table[1] == page
    assert np.array_equal(read(fork), numbers(0, 21)[1])


def test_forks_that_need_more_pages_than_there_are():
    cache = make(32)  # two pages
    append(cache, 20)
    fork = cache.fork()
    before, before_fork = state(cache), state(fork)
    for one in (cache, fork):
        with pytest.raises(ContextOverflow, match="used up"):
            one.reserve(1)  # needs a copy of the second page
    assert (state(cache), state(fork)) == (before, before_fork)
    fork.truncate(16)
    append(cache, 12)
    assert np.array_equal(read(cache), numbers(0, 32)[1])
    assert np.array_equal(read(fork), numbers(0, 16)[1])


def test_pages_come_back():
    cache = make(32, n_sequences=2)
    for _ in range(10):
        append(cache, 20)
        with cache.fork() as fork:
            append(fork, 12)
        cache.truncate(0)
    append(cache, 32)
    append(cache.fork(), 0)
    assert np.array_equal(read(cache), numbers(0, 32)[1])


def test_closed():
    cache = make()
    append(cache, 3)
    fork = cache.fork()
    cache.close()
    cache.close()
    assert cache.closed
    assert repr(cache) == "<KVCache f32, closed>"
    calls = [
        lambda: cache.reserve(1),
        lambda: cache.commit(0),
        lambda: cache.truncate(0),
        lambda: cache.pages,
        cache.fork,
        lambda: cache.check_model(LAYERS, HEADS, D),
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert np.array_equal(read(fork), numbers(0, 3)[1])


def test_another_model():
    cache = make()
    cache.check_model(LAYERS, HEADS, D)
    for sizes in ((LAYERS + 1, HEADS, D), (LAYERS, 1, D), (LAYERS, HEADS, 16)):
        with pytest.raises(ArgumentError, match="another model"):
            cache.check_model(*sizes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_layers": 0}, "n_layers is 0"),
        ({"n_kv_heads": -1}, "n_kv_heads is -1"),
        ({"n_ctx": 0}, "n_ctx is 0"),
        ({"n_sequences": 0}, "n_sequences is 0"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"head_dim": 514}, "head_dim is 514"),
        ({"kv_type": "q4"}, "kv_type is 'q4', but must be one of f32, f16, int8"),
    ],
)
def test_nonsense(arguments, message):
    sizes = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "n_ctx": 16}
    with pytest.raises(ArgumentError, match=message):
        KVCache(**sizes | arguments)


# ---- memory ----

A_TOKEN = LAYERS * 2 * HEADS * D * 4  # bytes of keys and values, f32
A_PAGE = 16 * A_TOKEN


def leaves(monkeypatch, kind, n_bytes):
    monkeypatch.setattr(kv_cache, kind, lambda: Room(n_bytes, "a limit"))


@pytest.mark.parametrize("n_ctx", [1 << 36, 1 << 60])
def test_pages_that_no_machine_has(n_ctx):
    with pytest.raises(OutOfMemory, match=f"f32 cache of {n_ctx:,} positions: bytes needed: ") as e:
        make(n_ctx)

    assert e.value.needed == n_ctx * A_TOKEN
    assert 0 < e.value.largest_context < n_ctx


def test_pages_that_the_process_may_not_reserve(monkeypatch):
    leaves(monkeypatch, "reservable", 5 * A_PAGE + 1)
    assert make(80).n_ctx == 80

    with pytest.raises(
        OutOfMemory,
        match=r"2 f32 caches of 48 positions: .* available: .* \(a limit\); the largest",
    ) as e:
        make(48, n_sequences=2)

    assert (e.value.needed, e.value.available) == (6 * A_PAGE, 5 * A_PAGE + 1)
    assert e.value.largest_context == 32


def test_an_allocation_that_fails_all_the_same(monkeypatch):
    def refuse(*_):
        raise MemoryError("no")

    monkeypatch.setattr(Pages, "reserve", refuse)
    with pytest.raises(OutOfMemory, match="f32 cache of 64 positions"):
        make()


def test_a_cache_that_grows_beyond_the_memory_keeps_its_tokens(monkeypatch):
    monkeypatch.setattr(kv_cache, "GRANTED_BYTES", 0)
    cache = make(96)
    append(cache, 20)
    before = read(cache)

    leaves(monkeypatch, "usable", 3 * A_PAGE - 1)
    with pytest.raises(OutOfMemory, match="3 more pages of the KV cache: bytes needed: ") as e:
        cache.reserve(60)
    assert (e.value.needed, e.value.available) == (3 * A_PAGE, 3 * A_PAGE - 1)
    assert e.value.largest_context == 20 + 32
    assert (cache.size, cache.nbytes) == (20, 2 * A_PAGE)

    append(cache, 12)  # what is left of the page
    leaves(monkeypatch, "usable", 3 * A_PAGE)
    append(cache, 48)
    np.testing.assert_array_equal(read(cache)[:20], before)


def test_pages_that_were_written_need_no_new_memory(monkeypatch):
    monkeypatch.setattr(kv_cache, "GRANTED_BYTES", A_PAGE)
    cache = make(96)
    append(cache, 40)
    cache.truncate(0)

    leaves(monkeypatch, "usable", 0)
    append(cache, 64)  # and one page more was granted
    with pytest.raises(OutOfMemory):
        append(cache, 1)
    assert cache.size == 64


def test_pages_of_forks_count(monkeypatch):
    monkeypatch.setattr(kv_cache, "GRANTED_BYTES", 0)
    cache = make(32, n_sequences=2)
    append(cache, 20)
    leaves(monkeypatch, "usable", 0)
    with cache.fork() as other:
        with pytest.raises(OutOfMemory):
            append(other, 1)
        assert (cache.size, other.size) == (20, 20)
    append(cache, 12)

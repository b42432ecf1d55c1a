"""The keys and values of every earlier token, in pages.

A page holds 16 positions for every layer. All pages come out of arrays that are reserved when the
cache is made, so nothing is allocated while decoding; the operating system gives memory to a page
when it is first written. A page table leads from a position to its page, so that caches forked
from one another share the pages of their common beginning. What a page looks like inside is known
to `store_kv` and `attend` alone (`rml._kernels.kv_store_py`).

Bytes of one token, ``2 * n_layers * n_kv_heads * head_dim`` numbers; an int8 cache adds one
float32 scale for every group of 32 (the largest power of two that divides head_dim, at most 32):

=====================================  =======  =======  =======
model                                      f32      f16     int8
=====================================  =======  =======  =======
SmolLM2 135M (30 layers, 3 heads, 64)   46,080   23,040   12,960
Gemma 3 270M (18 layers, 1 head, 256)   36,864   18,432   10,368
Llama 3.1 8B (32 layers, 8 heads, 128) 262,144  131,072   73,728
=====================================  =======  =======  =======
"""

import copy
from contextlib import suppress

import numpy as np

from rml._kernels.pages import PAGE_SIZE, Pages, PageTable
from rml.errors import ArgumentError, ClosedError, ContextOverflow
from rml.memory_room import no_room, reservable, usable

__all__ = ["KVCache"]

MAX_BYTES = 1 << 46  # what an address space holds
# A cache grows by so many bytes between two looks at what the machine has left.
GRANTED_BYTES = 1 << 24


class PagePool:
    """Pages, and how many caches use each.

    Parameters
    ----------
    pages : Pages
        The memory.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        # Zeros cost nothing until they are touched.
        for slab in range(len(pages.slabs)):
            pages.reserve(slab)
        self._users = [0] * pages.n_pages
        self._free = list(range(pages.n_pages - 1, -1, -1))
        # So many pages may be in use before somebody asks the machine for more. Pages that were
        # given back are the first to be taken again, and have their memory.
        self.n_granted = 0

    @property
    def n_free(self) -> int:
        """Pages that nobody uses."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Pages that somebody uses."""
        return len(self._users) - len(self._free)

    def take(self) -> int:
        """Take a free page."""
        page = self._free.pop()
        self._users[page] = 1
        return page

    def share(self, page: int) -> None:
        """Use a page together with its present users."""
        self._users[page] += 1

    def is_shared(self, page: int) -> bool:
        """Whether more than one cache uses a page."""
        return self._users[page] > 1

    def release(self, page: int) -> None:
        """Use a page no more; the last user frees it."""
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)

    def duplicate(self, page: int) -> int:
        """Take a free page and fill it like `page`."""
        new = self.take()
        self.pages.copy_page(page, new)
        return new


class KVCache:
    """Keys and values of one sequence, for all layers of one model.

    A forward pass of n tokens calls ``reserve(n)``, lets the kernels write and read positions
    `size` and after, and calls ``commit(n)`` when it has succeeded. Whatever goes wrong in between
    leaves the cache as it was.

    Parameters
    ----------
    n_layers, n_kv_heads, head_dim : int
        Sizes of the model.
    n_ctx : int
        Positions that the cache can hold.
    kv_type : str
        How numbers are stored: ``"f32"``, ``"f16"`` (rounded to nearest) or ``"int8"`` (codes and
        scales).
    n_sequences : int
        How many caches, this one and its forks, find room in the pages at their full length. Pages
        that are never used cost address space only.

    Attributes
    ----------
    n_ctx : int
        Positions that the cache can hold.
    kv_type : str
        How numbers are stored.
    table : PageTable
        Page of every sixteen positions.
    size : int
        Positions in use: where the next token goes.
    abort : (1,) int32
        Set to 1, from any thread, it ends a forward pass of this cache after the operation under
        way; it stays set until somebody clears it.

    Raises
    ------
    ArgumentError
        If a size is not positive, `head_dim` is odd or too large, or `kv_type` is unknown.
    OutOfMemory
        If the process cannot reserve the pages.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_ctx: int,
        kv_type: str = "f32",
        *,
        n_sequences: int = 1,
    ) -> None:
        for name, value in {"n_ctx": n_ctx, "n_sequences": n_sequences}.items():
            if value < 1:
                raise ArgumentError(f"{name} is {value}, but must be at least 1")
        self.n_layers, self.n_kv_heads, self.head_dim = n_layers, n_kv_heads, head_dim
        self.n_ctx, self.kv_type = n_ctx, kv_type
        n_pages = -(-n_ctx // PAGE_SIZE) * n_sequences
        pages = Pages(
            n_layers,
            n_kv_heads,
            head_dim,
            kv_type,
            n_pages=n_pages,
            slab_pages=1 << (n_pages - 1).bit_length(),
        )
        self.bytes_per_token = pages.bytes_per_token
        self._pool: PagePool | None = self._reserved(pages, n_sequences)
        self.table = PageTable()
        self.size = 0
        self.abort = np.zeros(1, np.int32)
        # The decoder's arrays and plans of a step; they point into the pages.
        self.workspace: object = None

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that this cache uses, those it shares with forks included."""
        return len(self.table) * PAGE_SIZE * self.bytes_per_token

    @property
    def pages(self) -> Pages:
        """The memory, shared with forks."""
        return self._open_pool().pages

    def check_model(self, n_layers: int, n_kv_heads: int, head_dim: int) -> None:
        """Require that the cache was made for a model of these sizes.

        Raises
        ------
        ArgumentError
            If a size differs.
        ClosedError
            If the cache is closed.
        """
        self._open_pool()
        mine = (self.n_layers, self.n_kv_heads, self.head_dim)
        wanted = (n_layers, n_kv_heads, head_dim)
        if mine != wanted:
            raise ArgumentError(
                "the cache was made for another model: its layers, kv heads and dimensions a head "
                f"are {mine}, those of this model {wanted}"
            )

    def reserve(self, n: int) -> None:
        """Make sure that the next `n` positions have pages of their own.

        Raises
        ------
        ContextOverflow
            If they do not fit `n_ctx`, or forks have used up the pages; nothing has changed.
        OutOfMemory
            If the machine or its control group has no memory for them; nothing has changed.
        ArgumentError
            If `n` is negative.
        ClosedError
            If the cache is closed.
        """
        pool = self._open_pool()
        if n < 0:
            raise ArgumentError(f"n is {n}, but cannot be negative")
        size = self.size
        if size + n > self.n_ctx:
            raise ContextOverflow(size + n, self.n_ctx)
        table = self.table
        first = size // PAGE_SIZE  # the first entry that will be written
        last = -(-(size + n) // PAGE_SIZE) if n else first
        shared = [e for e in range(first, min(last, len(table))) if pool.is_shared(table[e])]
        n_new = max(0, last - len(table))
        n_taken = len(shared) + n_new
        if n_taken > pool.n_free:
            room = (len(table) - len(shared) + pool.n_free) * PAGE_SIZE
            raise ContextOverflow(
                size + n, room, "the caches that share these pages have used up the others"
            )
        self._require_memory(pool, n_taken)
        for entry in shared:  # an interrupt in between may lose a page, but never mix two up
            old = table[entry]
            table[entry] = pool.duplicate(old)
            pool.release(old)
        for _ in range(n_new):
            table.append(pool.take())

    def commit(self, n: int) -> None:
        """Count the next `n` positions, which have been reserved and written, as in use.

        Raises
        ------
        ArgumentError
            If `n` is negative or more than was reserved.
        ClosedError
            If the cache is closed.
        """
        self._open_pool()
        limit = min(len(self.table) * PAGE_SIZE, self.n_ctx) - self.size
        if not 0 <= n <= limit:
            raise ArgumentError(f"n is {n}, but {limit} positions are reserved")
        self.size += n

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on.

        Parameters
        ----------
        length : int
            Positions to keep, ``0 <= length <= size``.

        Raises
        ------
        ArgumentError
            If `length` is out of range; nothing has changed.
        ClosedError
            If the cache is closed.
        """
        pool = self._open_pool()
        if not 0 <= length <= self.size:
            raise ArgumentError(
                f"length is {length}, but the cache holds 0 to {self.size} positions"
            )
        self.size = length
        kept = -(-length // PAGE_SIZE)
        # An interrupt in between may lose a page, but never free one twice.
        while len(self.table) > kept:
            pool.release(self.table.pop())

    def fork(self) -> "KVCache":
        """Make a cache with the same contents that shares every page until one of both writes it.

        The pages are those of the first cache (`n_sequences` says how many); what a fork writes
        never shows in the others.

        Raises
        ------
        ClosedError
            If the cache is closed.
        """
        pool = self._open_pool()
        self.truncate(self.size)  # give back what is reserved but not in use
        other = copy.copy(self)
        other.table = self.table.copy()
        other.abort = np.zeros(1, np.int32)
        other.workspace = None
        for entry in range(len(other.table)):
            pool.share(other.table[entry])
        return other

    def close(self) -> None:
        """Give up the pages; closing twice is harmless."""
        if self._pool is not None:
            self.truncate(0)
            self._pool = None
            self.workspace = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._pool is None

    def __enter__(self) -> "KVCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.size} of {self.n_ctx} positions"
        return f"<KVCache {self.kv_type}, {state}>"

    def _open_pool(self) -> PagePool:
        if self._pool is None:
            raise ClosedError("this KV cache is closed; make a new one")
        return self._pool

    def _reserved(self, pages: Pages, n_sequences: int) -> PagePool:
        n_bytes, room = pages.n_pages * pages.page_bytes, reservable()
        if n_bytes <= min(room.n_bytes, MAX_BYTES):
            with suppress(MemoryError):  # its traceback would hold the arrays that were made
                return PagePool(pages)
        many = (
            f"{n_sequences} {self.kv_type} caches" if n_sequences > 1 else f"{self.kv_type} cache"
        )
        room = min(room, usable())  # a system may promise more than it has, but not any amount
        largest = self._positions(room.n_bytes // n_sequences)
        raise no_room(
            f"{many} of {self.n_ctx:,} positions",
            n_bytes,
            room,
            largest_context=largest if largest < self.n_ctx else None,
            advice="choose a smaller n_ctx",
        )

    def _require_memory(self, pool: PagePool, n: int) -> None:
        """Ask whether there is memory for `n` more pages, once for many of them."""
        missing = pool.n_used + n - pool.n_granted
        if missing <= 0:  # they were written before, or asked for
            return
        page_bytes, room = PAGE_SIZE * self.bytes_per_token, usable()
        if missing * page_bytes > room.n_bytes:
            raise no_room(
                f"{n} more pages of the KV cache",
                missing * page_bytes,
                room,
                largest_context=self.size + self._positions(room.n_bytes),
                advice="the tokens so far are kept; close what else needs memory",
            )
        pool.n_granted = pool.n_used + n + GRANTED_BYTES // page_bytes

    def _positions(self, n_bytes: int) -> int:
        """Positions that fit, in whole pages."""
        return n_bytes // (PAGE_SIZE * self.bytes_per_token) * PAGE_SIZE

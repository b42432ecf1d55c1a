"""Who uses a page: counts of users, free pages, and the budget of a model's keys and values.

Pages belong to the model: every sequence takes the pages that it needs and gives them back, and
sequences with a common beginning share them. Beginnings that may come again are kept though no
sequence uses them (`rml.engine.prefixes`): such pages are idle, and given up for those who need
them. Slabs of pages are reserved when they are needed, the
lowest first, and given back when nobody uses any of their pages.
"""

import heapq
from collections.abc import Callable, Collection, Iterable

from rml._kernels.pages import PAGE_SIZE, Pages, PageTable
from rml.errors import OutOfMemory
from rml.llm.memory import LIST_BYTES_PER_TOKEN
from rml.memory_room import available, no_room, out_of_memory

__all__ = ["PagePool"]

# Bytes of a slab, about, with what its pages cost in lists: little beside any model, but not so
# little that slabs would be many.
SLAB_BYTES = 1 << 24
MOST_SLABS = 1 << 12
KEPT_EMPTY = 1  # slabs that are not given back at once


def _cost(page_bytes: int) -> int:
    """Bytes of a page, and of what the sequences that fill it will remember of its positions."""
    return page_bytes + PAGE_SIZE * LIST_BYTES_PER_TOKEN


class _FreePages:
    """Free pages of a slab; they take memory for those that were in use before.

    Parameters
    ----------
    numbers : range
        Pages of the slab.
    taken : collection of int
        Those in use.
    """

    __slots__ = ("_returned", "_stop", "_unused")

    def __init__(self, numbers: range = range(0), taken: Collection[int] = ()) -> None:
        self._stop = numbers.stop
        self._unused = (
            max(taken, default=numbers.start - 1) + 1
        )  # it and all behind were never used
        used = set(taken)
        below = range(self._unused - 1, numbers.start - 1, -1)
        self._returned = [page for page in below if page not in used]

    def __len__(self) -> int:
        return len(self._returned) + self._stop - self._unused

    def append(self, page: int) -> None:
        """Have a page back."""
        self._returned.append(page)

    def pop(self) -> int:
        """Give the page away that came back last, else the lowest that was never used."""
        if self._returned:
            return self._returned.pop()
        self._unused += 1
        return self._unused - 1


class PagePool:
    """Pages of one group of layers, and how many sequences use each.

    Not safe to use from several threads: who calls holds `rml.engine.books.BOOKS`.

    Parameters
    ----------
    n_layers, n_kv_heads, head_dim : int
        Sizes of the layers.
    kv_type : str
        How numbers are stored, see `Pages`.
    budget : int
        Bytes that all pages together may take.
    group : int
        Number of the group.

    Attributes
    ----------
    pages : Pages
        The memory.
    give_up : callable or None
        Called when pages run out: gives up an idle page, and returns whether there was one.

    Raises
    ------
    ArgumentError
        If a size is out of its range.
    OutOfMemory
        If the budget does not hold a single page.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        kv_type: str,
        *,
        budget: int,
        group: int = 0,
    ) -> None:
        sizes = (n_layers, n_kv_heads, head_dim, kv_type)
        page_bytes = Pages(*sizes, n_pages=1, slab_pages=1).page_bytes
        n_pages = min(budget // page_bytes, (1 << 31) - 1)
        if n_pages < 1:
            raise no_room("a page of keys and values", page_bytes, largest_context=0)
        cost = _cost(page_bytes)
        slab_bytes = max(SLAB_BYTES, n_pages * cost // MOST_SLABS)
        slab_pages = 1 << max(0, min(slab_bytes // cost, n_pages).bit_length() - 1)
        self.pages = Pages(*sizes, n_pages=n_pages, slab_pages=slab_pages, group=group)
        self.budget = budget
        self.give_up: Callable[[], bool] | None = None
        self._users: dict[int, int] = {}
        self._kept: set[int] = set()  # one of their users is the tree of beginnings
        self.n_idle = 0  # that nobody else uses
        n_slabs = len(self.pages.slabs)
        self._used = [0] * n_slabs  # pages in use of each slab
        self._free = [_FreePages() for _ in range(n_slabs)]  # of those that are reserved
        self._with_free: list[int] = []  # heap of the slabs among them that have free pages
        self._next_slab = 0  # no slab from here on is reserved
        self._dropped: list[int] = []  # heap of slabs before it that are not

    @property
    def n_used(self) -> int:
        """Pages that sequences use."""
        return len(self._users) - self.n_idle

    @property
    def n_kept(self) -> int:
        """Pages of beginnings that may come again."""
        return len(self._kept)

    @property
    def n_free(self) -> int:
        """Pages that hold nothing and that the budget allows."""
        return self.pages.n_pages - len(self._users)

    @property
    def n_obtainable(self) -> int:
        """Pages that could be taken now: free and idle ones, and more if there is memory."""
        free = sum(map(len, self._free))
        more = min(self.n_free - free, available().n_bytes // _cost(self.pages.page_bytes))
        return free + self.n_idle + max(0, more)

    def has(self, n: int) -> bool:
        """Whether `n` pages could be taken now; quicker to ask than `n_obtainable`."""
        return n <= sum(map(len, self._free)) + self.n_idle or n <= self.n_obtainable

    @property
    def nbytes(self) -> int:
        """Bytes of the slabs that are reserved."""
        pages = self.pages
        reserved = (slab for slab in pages.slabs if slab is not None)
        return sum(array.nbytes for slab in reserved for array in slab.arrays())

    def users(self, page: int) -> int:
        """How many use a page."""
        return self._users.get(page, 0)

    def take(self) -> int:
        """Take a free page of the lowest slab that has one; the caller uses it.

        Raises
        ------
        OutOfMemory
            If the budget is used up, or the machine has no more memory, and no page is idle.
        """
        while not self._with_free:
            try:
                self._reserve_a_slab()
            except OutOfMemory:
                if self.give_up is None or not self.give_up():
                    raise
        slab = self._with_free[0]
        page = self._free[slab].pop()
        if not self._free[slab]:
            heapq.heappop(self._with_free)
        self._users[page] = 1
        self._used[slab] += 1
        return page

    def share(self, page: int) -> None:
        """Use a page together with its present users."""
        n = self._users[page]
        if n == 1 and page in self._kept:
            self.n_idle -= 1
        self._users[page] = n + 1

    def keep(self, page: int) -> None:
        """Keep a page that somebody uses, when he is gone, too."""
        self._users[page] += 1
        self._kept.add(page)

    def let_go(self, page: int) -> None:
        """Keep a page no more."""
        self._kept.discard(page)
        if self._users[page] == 1:
            self.n_idle -= 1
        self.release(page)

    def is_shared(self, page: int) -> bool:
        """Whether a page has several users."""
        return self._users[page] > 1

    def release(self, page: int) -> None:
        """Use a page no more; the last user frees it."""
        n = self._users[page] - 1
        if n:
            self._users[page] = n
            if n == 1 and page in self._kept:
                self.n_idle += 1
            return
        del self._users[page]
        slab = self.pages.slab_of(page)
        self._used[slab] -= 1
        if not self._free[slab]:
            heapq.heappush(self._with_free, slab)
        self._free[slab].append(page)
        if not self._used[slab]:
            self._drop_but_one()

    def duplicate(self, page: int) -> int:
        """Take a free page and fill it like `page`."""
        new = self.take()
        self.pages.copy_page(page, new)
        return new

    def recount(self, tables: Iterable[PageTable], kept: Iterable[int] = ()) -> None:
        """Count anew, whatever was lost in between.

        Parameters
        ----------
        tables : iterable of PageTable
            Those of all living sequences.
        kept : iterable of int
            Pages that are kept.
        """
        self._kept = set(kept)
        users: dict[int, int] = dict.fromkeys(self._kept, 1)
        for table in tables:
            for entry in range(len(table)):
                users[table[entry]] = users.get(table[entry], 0) + 1
        self._users = users
        self.n_idle = sum(users[page] == 1 for page in self._kept)
        self._with_free = []
        slabs = self.pages.slabs
        reserved = [slab for slab, arrays in enumerate(slabs) if arrays is not None]
        self._next_slab = max(reserved, default=-1) + 1
        self._dropped = [slab for slab in range(self._next_slab) if slabs[slab] is None]
        taken: dict[int, list[int]] = {}
        for page in users:
            taken.setdefault(self.pages.slab_of(page), []).append(page)
        for slab, arrays in enumerate(slabs):
            numbers = self.pages.slab_range(slab) if arrays is not None else range(0)
            self._free[slab] = _FreePages(numbers, taken.get(slab, ()))
            self._used[slab] = len(numbers) - len(self._free[slab])
            if self._free[slab]:
                heapq.heappush(self._with_free, slab)

    def _reserve_a_slab(self) -> None:
        pages = self.pages
        if self.n_free <= 0:
            positions = pages.n_pages * PAGE_SIZE
            raise OutOfMemory(
                f"the keys and values of all sequences together fill their {self.budget:,} bytes "
                f"({positions:,} positions); close what is not needed, or load with a larger "
                "kv_memory",
                needed=self.budget + pages.page_bytes,
                available=self.budget,
            )
        slab = self._dropped[0] if self._dropped else self._next_slab
        n_bytes = len(pages.slab_range(slab)) * _cost(pages.page_bytes)
        room = available()
        if n_bytes > room.n_bytes:
            raise no_room(
                "more keys and values",
                n_bytes,
                room,
                advice="the tokens so far are kept; close what else needs memory",
            )
        with out_of_memory("more keys and values"):
            pages.reserve(slab)
        if self._dropped:
            heapq.heappop(self._dropped)
        else:
            self._next_slab += 1
        self._free[slab] = _FreePages(pages.slab_range(slab))
        heapq.heappush(self._with_free, slab)

    def _drop_but_one(self) -> None:
        """Give empty slabs back, but for one: the next request should not have to wait for it."""
        empty = [
            slab
            for slab in range(self._next_slab)
            if self.pages.slabs[slab] is not None and not self._used[slab]
        ]
        for slab in empty[KEPT_EMPTY:]:
            self._free[slab] = _FreePages()
            self._with_free.remove(slab)
            self.pages.drop(slab)
            heapq.heappush(self._dropped, slab)
        heapq.heapify(self._with_free)

    def __repr__(self) -> str:
        return f"<PagePool of {self.pages!r}, {self.n_used} of {self.pages.n_pages} pages in use>"

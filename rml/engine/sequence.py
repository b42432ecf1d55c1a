"""One sequence: the tokens that were evaluated, and the pages of their keys and values."""

import weakref
from collections import deque
from collections.abc import Sequence as Row

from rml._kernels.pages import PAGE_SIZE, PageTable
from rml.engine.books import BOOKS
from rml.engine.pool import PagePool
from rml.errors import ArgumentError, OutOfMemory
from rml.llm.evaluator import Evaluator

__all__ = ["Sequence", "SequenceStore"]


class SequenceStore:
    """The sequences of a model and cache type, and the pools that their pages come from.

    Parameters
    ----------
    pools : sequence of PagePool
        One for each group of layers.
    evaluator : Evaluator
        What computes them.
    """

    def __init__(self, pools: Row[PagePool], evaluator: Evaluator) -> None:
        self.pools = list(pools)
        self.evaluator = evaluator
        self.living: weakref.WeakSet[Sequence] = weakref.WeakSet()
        # Tables of all sequences whose pages were not given back, by id.
        self._tables: dict[int, list[PageTable]] = {}
        # Tables of sequences that nobody holds any more. A finalizer may come at any moment, so it
        # takes no lock: what it leaves here is given back when pages are taken the next time.
        self._orphans: deque[list[PageTable]] = deque()

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one position takes, of all layers."""
        return sum(pool.pages.bytes_per_token for pool in self.pools)

    @property
    def n_obtainable_positions(self) -> int:
        """Positions for which pages could be taken now."""
        with BOOKS:
            self.collect()
            return min(pool.n_obtainable for pool in self.pools) * PAGE_SIZE

    def new(self) -> "Sequence":
        """Make an empty sequence."""
        with BOOKS:
            self.collect()
            return self.enter(Sequence(self, [], [PageTable() for _ in self.pools]))

    def collect(self) -> None:
        """Give back the pages of sequences that nobody holds."""
        while self._orphans:
            tables = self._orphans[0]
            if id(tables) in self._tables:
                self.release(tables)
                del self._tables[id(tables)]
            self._orphans.popleft()

    def release(self, tables: Row[PageTable], kept: int = 0) -> None:
        """Give back the pages of tables, but for the first entries."""
        try:
            for pool, table in zip(self.pools, tables, strict=True):
                while len(table) > kept:
                    pool.release(table.pop())
        except BaseException:
            self.recount()
            raise

    def forget(self, tables: Row[PageTable]) -> None:
        """Know nothing of tables whose pages were not counted in, or not all of them."""
        self._tables.pop(id(tables), None)
        self.recount()

    def recount(self) -> None:
        """Count all users of pages anew: after an exception (Ctrl-C) in the middle of an entry."""
        with BOOKS:
            # Those of orphans, too: a sequence may go in this moment, in another thread.
            known = list(self._tables.values())
            for group, pool in enumerate(self.pools):
                pool.recount(tables[group] for tables in known)

    def enter(self, sequence: "Sequence") -> "Sequence":
        """Know a sequence as living, and its pages as to be given back when it is gone."""
        self.living.add(sequence)
        self._tables[id(sequence.tables)] = sequence.tables
        weakref.finalize(sequence, self._orphans.append, sequence.tables).atexit = False
        return sequence


class Sequence:
    """Plain data; made by `SequenceStore.new` and `fork`.

    A step of n tokens calls `reserve`, computes, and calls `commit`; whatever goes wrong in between
    leaves the sequence as it was. One thread at a time.

    Attributes
    ----------
    store : SequenceStore
        All sequences of its kind.
    ids : list of int
        The tokens whose keys and values are there: the one truth about the length.
    tables : list of PageTable
        Their pages, for each group of layers.
    busy : bool
        A step is writing to the pages. They are then kept, whatever is forgotten meanwhile, until
        the engine calls `settle` after the step.
    """

    __slots__ = ("__weakref__", "busy", "ids", "store", "tables")

    def __init__(self, store: SequenceStore, ids: list[int], tables: list[PageTable]) -> None:
        self.store = store
        self.ids = ids
        self.tables = tables
        self.busy = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of its pages, those that it shares included."""
        pools = self.store.pools
        return sum(
            len(table) * pool.pages.page_bytes
            for pool, table in zip(pools, self.tables, strict=True)
        )

    @property
    def n_reserved(self) -> int:
        """Positions that its pages hold."""
        return min(map(len, self.tables)) * PAGE_SIZE

    def reserve(self, n: int) -> None:
        """Have pages of its own for the next `n` positions.

        Raises
        ------
        OutOfMemory
            If there are none; nothing has changed but pages that were reserved before.
        """
        first = len(self.ids) // PAGE_SIZE  # the first entry that will be written
        last = -(-(len(self.ids) + n) // PAGE_SIZE) if n else first
        if self._has_own(first, last):
            return
        with BOOKS:
            self.store.collect()
            try:
                for pool, table in zip(self.store.pools, self.tables, strict=True):
                    for entry in range(first, min(last, len(table))):
                        # An interrupt in between may lose a page, but never mixes two up.
                        if pool.is_shared(old := table[entry]):
                            table[entry] = pool.duplicate(old)
                            pool.release(old)
                    while len(table) < last:
                        table.append(pool.take())
            except BaseException as error:
                self.store.recount()
                self.settle()
                if isinstance(error, OutOfMemory):
                    raise self._no_room(error) from None
                raise

    def _no_room(self, error: OutOfMemory) -> OutOfMemory:
        """Say how long the sequence could become."""
        fitting = min(
            (len(table) + pool.n_obtainable) * PAGE_SIZE
            for pool, table in zip(self.store.pools, self.tables, strict=True)
        )
        return OutOfMemory(
            f"{error}; the largest context that fits is {fitting:,} tokens",
            needed=error.needed,
            available=error.available,
            largest_context=fitting,
        )

    def _has_own(self, first: int, last: int) -> bool:
        """Whether it has the pages of these entries to itself, as for most tokens it has."""
        for pool, table in zip(self.store.pools, self.tables, strict=True):
            if table.size < last:
                return False
            for entry in range(first, last):
                if pool.is_shared(table[entry]):
                    return False
        return True

    def commit(self, ids: Row[int]) -> None:
        """Count tokens in whose keys and values have been written."""
        self.ids.extend(ids)

    def settle(self) -> None:
        """Give back pages that were reserved and not used."""
        with BOOKS:
            if self.busy:
                return
            kept = -(-len(self.ids) // PAGE_SIZE)
            self.store.release(self.tables, kept)

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.

        Raises
        ------
        ArgumentError
            If `length` is out of range; nothing has changed.
        """
        if not 0 <= length <= len(self.ids):
            raise ArgumentError(
                f"length is {length}, but the sequence holds 0 to {len(self.ids)} positions"
            )
        with BOOKS:
            # Before the pages go: an interrupt in between may keep a page, but frees none twice.
            del self.ids[length:]
            self.settle()

    def fork(self) -> "Sequence":
        """Make a sequence with the same tokens that goes its own way from here.

        Both share all pages until one of them writes to the last.
        """
        with BOOKS:
            self.store.collect()
            self.settle()
            tables = [table.copy() for table in self.tables]
            try:
                for pool, table in zip(self.store.pools, tables, strict=True):
                    for entry in range(len(table)):
                        pool.share(table[entry])
                return self.store.enter(Sequence(self.store, self.ids.copy(), tables))
            except BaseException:
                self.store.forget(tables)
                raise

    def release(self) -> None:
        """Give all pages back: the sequence is empty afterwards."""
        self.truncate(0)

    def __repr__(self) -> str:
        return f"<Sequence of {len(self.ids)} tokens>"

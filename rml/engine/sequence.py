"""One sequence: the tokens that were evaluated, and the pages of their keys and values."""

import threading
import weakref
from collections import deque
from collections.abc import Hashable
from collections.abc import Sequence as Row

from rml._kernels.pages import PAGE_SIZE, PageTable, pages_for
from rml.engine.books import BOOKS
from rml.engine.pool import PagePool
from rml.engine.prefixes import Beginning, Prefixes
from rml.errors import ArgumentError, OutOfMemory
from rml.llm.evaluator import Evaluator

__all__ = ["Sequence", "SequenceStore"]


class _Holding:
    """What has to be given back when a sequence is gone.

    Attributes
    ----------
    tables : list of PageTable
        Its pages, for each group of layers.
    node : Beginning
        Where it is in the tree of beginnings: the first pages of its tables are those of this node
        and the nodes above. Never deeper than the tokens that are there.
    """

    __slots__ = ("node", "tables")

    def __init__(self, tables: list[PageTable], node: Beginning) -> None:
        self.tables, self.node = tables, node


class _Watch(weakref.ref["Sequence"]):
    """Sees a sequence go. What follows is one call in C, which no interrupt can come into.

    Attributes
    ----------
    holding : _Holding
        What is to be given back then.
    """

    __slots__ = ("holding",)
    holding: _Holding


class SequenceStore:
    """The sequences of a model and cache type, and the pools that their pages come from.

    Parameters
    ----------
    pools : sequence of PagePool
        One for each group of layers.
    evaluator : Evaluator
        What computes them.
    prefix_cache : bool
        Whether sequences share beginnings.
    kept_bytes : int
        Bytes of beginnings that may be kept though no sequence uses them.
    salt : hashable
        What keys and values depend on besides the tokens: beginnings are shared where it is equal.
    """

    def __init__(
        self,
        pools: Row[PagePool],
        evaluator: Evaluator,
        *,
        prefix_cache: bool = True,
        kept_bytes: int = 0,
        salt: Hashable = None,
    ) -> None:
        self.pools = list(pools)
        self.evaluator = evaluator
        self.prefix_cache = prefix_cache
        self.salt = salt
        self.prefixes = Prefixes(self.pools, kept_bytes)
        # All sequences whose pages were not given back, by the id of their holding.
        self._watches: dict[int, _Watch] = {}
        # Those of them that nobody holds any more. A finalizer may come at any moment, so it takes
        # no lock: what it leaves here is given back when pages are taken the next time.
        self._orphans: deque[weakref.ref[Sequence]] = deque()

    @property
    def living(self) -> list["Sequence"]:
        """All sequences that somebody holds."""
        watches = list(self._watches.values())
        return [sequence for watch in watches if (sequence := watch()) is not None]

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

    def others_hold(self, sequence: "Sequence") -> bool:
        """Whether any other sequence has pages."""
        return any(len(other) and other is not sequence for other in self.living)

    def new(self, *, shares: bool = True) -> "Sequence":
        """Make an empty sequence.

        Parameters
        ----------
        shares : bool
            Whether others may use its beginning again, if the store shares beginnings.
        """
        with BOOKS:
            self.collect()
            holding = _Holding([PageTable() for _ in self.pools], self.prefixes.root(self.salt))
            return self.enter(Sequence(self, [], holding, shares=shares and self.prefix_cache))

    def collect(self) -> None:
        """Give back the pages of sequences that nobody holds."""
        while self._orphans:
            watch = self._orphans[0]
            if isinstance(watch, _Watch) and id(watch.holding) in self._watches:
                self.move(watch.holding, self.prefixes.root(self.salt))
                self.release(watch.holding)
                del self._watches[id(watch.holding)]
            self._orphans.popleft()

    def release(self, holding: _Holding, kept: int = 0) -> None:
        """Give back the pages of a holding, but for the first entries."""
        try:
            for pool, table in zip(self.pools, holding.tables, strict=True):
                while len(table) > kept:
                    pool.release(table.pop())
            self.prefixes.trim()
        except BaseException:
            self.recount()
            raise

    def move(self, holding: _Holding, node: Beginning) -> None:
        """Have a holding at another node, which is held from now on in place of the old one."""
        old = holding.node
        if node is old:
            return
        try:
            self.prefixes.hold(node)
            holding.node = node
            self.prefixes.let_go(old)
        except BaseException:
            self.recount()
            raise

    def forget(self, holding: _Holding) -> None:
        """Know nothing of a holding whose pages were not counted in, or not all of them."""
        self._watches.pop(id(holding), None)
        self.recount()

    def recount(self) -> None:
        """Count all users of pages anew: after an exception (Ctrl-C) in the middle of an entry."""
        with BOOKS:
            # Those of orphans, too: a sequence may go in this moment, in another thread.
            known = [watch.holding for watch in self._watches.values()]
            self.prefixes.recount(holding.node for holding in known)
            for group, pool in enumerate(self.pools):
                tables = (holding.tables[group] for holding in known)
                pool.recount(tables, self.prefixes.pages(group))

    def enter(self, sequence: "Sequence") -> "Sequence":
        """Know a sequence as living, and its pages as to be given back when it is gone."""
        holding = sequence.holding
        watch = _Watch(sequence, self._orphans.append)
        watch.holding = holding
        self.prefixes.hold(holding.node)
        self._watches[id(holding)] = watch
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
    shares : bool
        Whether others may use its beginning again.
    busy : bool
        A step is writing to the pages. They are then kept, whatever is forgotten meanwhile, until
        the engine calls `settle` after the step.
    gate : Lock or None
        Held by whoever works with the sequence. Its pages may be taken away while nobody does, by
        one who holds `BOOKS`; without a gate never.
    used_at : float
        When the gate was given back the last time.
    """

    __slots__ = (
        "__weakref__",
        "_had",
        "busy",
        "gate",
        "holding",
        "ids",
        "shares",
        "store",
        "tables",
        "used_at",
    )

    def __init__(
        self, store: SequenceStore, ids: list[int], holding: _Holding, *, shares: bool
    ) -> None:
        self.store = store
        self.ids = ids
        self.holding = holding
        self.tables = holding.tables
        self.shares = shares
        self.busy = False
        self.gate: threading.Lock | None = None
        self.used_at = 0.0
        self._had: list[int] = []  # all tokens, when it gave its pages away

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def owed(self) -> list[int]:
        """Tokens that follow `ids`, but have to be evaluated again: their pages were given away."""
        with BOOKS:
            return self._had[len(self.ids) :]

    @property
    def length(self) -> int:
        """Number of its tokens, those that have to be evaluated again included."""
        return max(len(self.ids), len(self._had))

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
        last = pages_for(len(self.ids) + n) if n else first
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
        if self.shares and len(self.ids) >= (self.holding.node.depth + 1) * PAGE_SIZE:
            self._share()

    def _share(self) -> None:
        """Let others find the whole pages; where one has the same page, use his."""
        with BOOKS:
            store, holding = self.store, self.holding
            try:
                while (stop := (holding.node.depth + 1) * PAGE_SIZE) <= len(self.ids):
                    node = holding.node
                    ids = tuple(self.ids[stop - PAGE_SIZE : stop])
                    child = node.children.get(ids)
                    if child is None:
                        pages = tuple(table[node.depth] for table in self.tables)
                        child = store.prefixes.enter(node, ids, pages)
                    else:
                        self._use(node.depth, child.pages)
                    store.move(holding, child)
            except BaseException:
                store.recount()
                raise

    def _use(self, entry: int, pages: tuple[int, ...]) -> None:
        """Have these pages as an entry of the tables, the next one or one that is there."""
        for pool, table, page in zip(self.store.pools, self.tables, pages, strict=True):
            if entry == len(table):
                pool.share(page)
                table.append(page)
            elif (old := table[entry]) != page:
                pool.share(page)
                table[entry] = page
                pool.release(old)

    def adopt(self, ids: Row[int]) -> int:
        """Take the pages that others have for tokens that are to follow; they count as evaluated.

        Parameters
        ----------
        ids : sequence of int
            What is to follow.

        Returns
        -------
        int
            How many of them are there now: what completes a page, and whole pages.
        """
        if not self.shares:
            return 0
        with BOOKS:
            store, holding = self.store, self.holding
            node, first = holding.node, holding.node.depth * PAGE_SIZE
            wanted = [*self.ids[first:], *ids]
            found: list[Beginning] = []
            while len(wanted) >= (len(found) + 1) * PAGE_SIZE:
                at = len(found) * PAGE_SIZE
                child = node.children.get(tuple(wanted[at : at + PAGE_SIZE]))
                if child is None:
                    break
                found.append(child)
                node = child
            n = first + len(found) * PAGE_SIZE - len(self.ids)
            if n <= 0:
                return 0
            try:
                for entry, child in enumerate(found, holding.node.depth):
                    self._use(entry, child.pages)
                self.ids.extend(ids[:n])
                store.move(holding, node)
            except BaseException:
                store.recount()
                raise
            return n

    def next_page(self, ids: Row[int]) -> tuple[int, tuple[int, ...]]:
        """Tell apart the page that these tokens go to, or begin: equal for those who need the same.

        Parameters
        ----------
        ids : sequence of int
            At least what is missing of a page.
        """
        first = self.holding.node.depth * PAGE_SIZE
        return id(self.holding.node), tuple([*self.ids[first:], *ids][:PAGE_SIZE])

    def give_way(self) -> None:
        """Give all pages away; the tokens stay, as `owed`."""
        with BOOKS:
            self._had = self.tokens  # first: an interrupt in between changes nothing
            self._forget_from(0)

    @property
    def tokens(self) -> list[int]:
        """All tokens, a copy, those that have to be evaluated again included."""
        with BOOKS:  # they may become such in this moment
            return self.ids + self.owed

    def settle(self) -> None:
        """Give back pages that were reserved and not used."""
        kept = pages_for(len(self.ids))
        for table in self.tables:
            if table.size > kept:
                break
        else:  # as after most steps
            return
        with BOOKS:
            if not self.busy:
                self.store.release(self.holding, pages_for(len(self.ids)))

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on.

        Raises
        ------
        ArgumentError
            If `length` is out of range; nothing has changed.
        """
        if not 0 <= length <= self.length:
            raise ArgumentError(
                f"length is {length}, but the sequence holds 0 to {self.length} positions"
            )
        with BOOKS:
            if length <= len(self.ids):
                self._had = []
                self._forget_from(length)
            else:
                self._had = self._had[:length]

    def _forget_from(self, length: int) -> None:
        node, depth = self.holding.node, length // PAGE_SIZE
        while node.depth > depth and node.parent is not None:
            node = node.parent
        self.store.move(self.holding, node)
        # Before the pages go: an interrupt in between may keep a page, but frees none twice.
        del self.ids[length:]
        self.settle()

    def keep(self, ids: Row[int]) -> int:
        """Forget what is not a beginning of `ids`; return how many of them it has."""
        have = self.tokens
        limit = min(len(have), len(ids))
        kept = next((i for i in range(limit) if have[i] != ids[i]), limit)
        self.truncate(kept)
        return kept

    def fork(self) -> "Sequence":
        """Make a sequence with the same tokens that goes its own way from here.

        Both share all pages until one of them writes to the last.
        """
        with BOOKS:
            self.store.collect()
            self.settle()
            holding = _Holding([table.copy() for table in self.tables], self.holding.node)
            try:
                for pool, table in zip(self.store.pools, holding.tables, strict=True):
                    for entry in range(len(table)):
                        pool.share(table[entry])
                fork = Sequence(self.store, self.ids.copy(), holding, shares=self.shares)
                fork._had = self._had.copy()
                return self.store.enter(fork)
            except BaseException:
                self.store.forget(holding)
                raise

    def release(self) -> None:
        """Give all pages back: the sequence is empty afterwards."""
        self.truncate(0)

    def __repr__(self) -> str:
        return f"<Sequence of {len(self.ids)} tokens>"

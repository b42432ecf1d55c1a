"""Beginnings that sequences have in common: whole pages, found again by the tokens that led there.

A tree: a node is a page of sixteen tokens behind those of its parent, so that the way from a root
to a node is the beginning of a text, token by token; nothing is left to a digest. A sequence holds
the node of its last whole page, and with it all nodes above. What nobody holds is kept, until its
pages are needed or more is kept than may be: the least recently used ends go first.

What a page holds depends on its tokens and on what they were computed with. Roots are told apart
by a salt that stands for the latter.
"""

import heapq
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Row
from itertools import count

from rml.engine.pool import PagePool

__all__ = ["Beginning", "Prefixes"]


class Beginning:
    """A node of the tree.

    Attributes
    ----------
    parent : Beginning or None
        What comes before; None for a root.
    ids : tuple of int
        Its sixteen tokens.
    pages : tuple of int
        Their pages, one for each group of layers.
    depth : int
        Pages from the root to its end.
    children : dict of tuple to Beginning
        By their tokens.
    n_holders : int
        Sequences whose last whole page this is, and children.
    used : int
        When it was held the last time; a larger number is later.
    """

    __slots__ = ("children", "depth", "ids", "n_holders", "pages", "parent", "used")

    def __init__(
        self, parent: "Beginning | None", ids: tuple[int, ...], pages: tuple[int, ...]
    ) -> None:
        self.parent, self.ids, self.pages = parent, ids, pages
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[tuple[int, ...], Beginning] = {}
        self.n_holders = 0
        self.used = 0


class Prefixes:
    """The tree of a store of sequences.

    Not safe to use from several threads: who calls holds `rml.engine.books.BOOKS`.

    Parameters
    ----------
    pools : sequence of PagePool
        Where the pages are, one for each group of layers; they give up what is kept here when they
        run out of pages.
    most_bytes : int
        Bytes of pages that may be kept though no sequence uses them.
    """

    def __init__(self, pools: Row[PagePool], most_bytes: int) -> None:
        self._pools = list(pools)
        self._most_bytes = most_bytes
        self._roots: dict[Hashable, Beginning] = {}
        self._now = count(1)
        # Ends that nobody held when they were entered here, by when they were used; an entry counts
        # only if that is still so.
        self._ends: list[tuple[int, int, Beginning]] = []
        for pool in self._pools:
            pool.give_up = self.give_up

    @property
    def kept_bytes(self) -> int:
        """Bytes of pages that are kept though no sequence uses them."""
        return sum(pool.n_idle * pool.pages.page_bytes for pool in self._pools)

    def root(self, salt: Hashable) -> Beginning:
        """Return the empty beginning of what is computed with `salt`."""
        if salt not in self._roots:
            self._roots[salt] = Beginning(None, (), ())
        return self._roots[salt]

    def enter(self, parent: Beginning, ids: tuple[int, ...], pages: tuple[int, ...]) -> Beginning:
        """Remember a page that was computed behind `parent`, which has none for these tokens."""
        node = Beginning(parent, ids, pages)
        for pool, page in zip(self._pools, pages, strict=True):
            pool.keep(page)
        parent.children[ids] = node
        parent.n_holders += 1
        return node

    def hold(self, node: Beginning) -> None:
        """Hold a node; it and those above stay until `let_go`."""
        node.n_holders += 1

    def let_go(self, node: Beginning) -> None:
        """Hold a node no more."""
        node.n_holders -= 1
        node.used = next(self._now)
        self._note_end(node)

    def trim(self) -> None:
        """Keep no more than may be."""
        while self.kept_bytes > self._most_bytes and self.give_up():
            pass

    def give_up(self) -> bool:
        """Forget the end that was not used for the longest time; return whether there was one."""
        while self._ends:
            used, _, node = heapq.heappop(self._ends)
            parent = node.parent
            if node.n_holders or node.used != used or parent is None:
                continue
            if parent.children.pop(node.ids, None) is None:
                continue
            parent.n_holders -= 1
            for pool, page in zip(self._pools, node.pages, strict=True):
                pool.let_go(page)
            parent.used = max(parent.used, used)
            self._note_end(parent)
            return True
        return False

    def _note_end(self, node: Beginning) -> None:
        if not node.n_holders and node.parent is not None:
            heapq.heappush(self._ends, (node.used, id(node), node))
        if len(self._ends) > 64 and len(self._ends) > 4 * len(self):
            self._ends = [e for e in self._ends if not e[2].n_holders and e[2].used == e[0]]
            heapq.heapify(self._ends)

    def nodes(self) -> list[Beginning]:
        """All nodes but the roots."""
        found: list[Beginning] = []
        waiting = list(self._roots.values())
        while waiting:
            children = list(waiting.pop().children.values())
            found += children
            waiting += children
        return found

    def pages(self, group: int) -> list[int]:
        """Pages of a group of layers that the tree knows."""
        return [node.pages[group] for node in self.nodes()]

    def recount(self, held: Iterable[Beginning]) -> None:
        """Count all holders anew, whatever was lost in between.

        Parameters
        ----------
        held : iterable of Beginning
            The node that each sequence holds.
        """
        nodes = self.nodes()
        for node in [*self._roots.values(), *nodes]:
            node.n_holders = len(node.children)
        for node in held:
            node.n_holders += 1
        self._ends = [(n.used, id(n), n) for n in nodes if not n.n_holders]
        heapq.heapify(self._ends)

    def __len__(self) -> int:
        return sum(pool.n_kept for pool in self._pools[:1])

    def __repr__(self) -> str:
        return f"<Prefixes of {len(self)} pages, {self.kept_bytes} bytes used by nobody>"

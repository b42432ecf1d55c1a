"""What the kernels of a step read anew: which tokens are computed, and where their past lies.

A step computes rows of any number of sequences, prompts and single tokens mixed. The rows of a
sequence are neighbours and take consecutive positions, so that a sequence is its first row, the
position of that row, and a page table for each group of layers. The arrays of a step keep their
place; a plan that was recorded with them serves every step that is written into them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rml._kernels.pages import PAGE_SIZE, Pages, PageTable
from rml.errors import ArgumentError

__all__ = ["Step"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Step:
    """Rows of some sequences.

    Parameters
    ----------
    n_rows : int
        Rows at most.
    n_outputs : int, optional
        Rows at most whose logits are wanted; by default all.
    n_groups : int
        Groups of layers whose pages are apart.

    Attributes
    ----------
    ids : (n_rows,) int32
        Token of each row.
    positions : (n_rows,) int64
        Its position in its sequence.
    owners : (n_rows,) int32
        Number of its sequence.
    first : (n_rows + 1,) int64
        Rows ``first[s] <= r < first[s + 1]`` are those of sequence s.
    outputs : (n_outputs,) int32
        Rows whose logits are wanted.
    counts : (3,) int64
        Rows, outputs and sequences in use; the rest of each array is not looked at.
    table_addresses : (n_groups, n_rows) uint64
        Where the page table of each sequence is.
    table_sizes : (n_groups, n_rows) int64
        How many entries it has.
    """

    def __init__(self, n_rows: int, *, n_outputs: int | None = None, n_groups: int = 1) -> None:
        self.ids: I32 = np.zeros(n_rows, np.int32)
        self.positions: I64 = np.zeros(n_rows, np.int64)
        self.owners: I32 = np.zeros(n_rows, np.int32)
        self.first: I64 = np.zeros(n_rows + 1, np.int64)
        self.outputs: I32 = np.zeros(n_rows if n_outputs is None else n_outputs, np.int32)
        self.counts: I64 = np.zeros(3, np.int64)
        self.table_addresses = np.zeros((n_groups, n_rows), np.uint64)
        self.table_sizes: I64 = np.zeros((n_groups, n_rows), np.int64)
        self._tables: list[list[I32]] = [[] for _ in range(n_groups)]

    @property
    def n_rows(self) -> int:
        """Rows in use."""
        return int(self.counts[0])

    @property
    def n_outputs(self) -> int:
        """Rows whose logits are wanted."""
        return int(self.counts[1])

    @property
    def n_sequences(self) -> int:
        """Sequences in use."""
        return int(self.counts[2])

    @property
    def capacity(self) -> int:
        """Rows at most."""
        return len(self.ids)

    def clear(self) -> None:
        """Begin anew: no rows."""
        self.counts.fill(0)
        for tables in self._tables:
            tables.clear()

    def add(
        self, ids: Sequence[int] | I32, position: int, tables: Sequence[PageTable]
    ) -> tuple[int, int]:
        """Add tokens of a sequence.

        Parameters
        ----------
        ids : sequence of int, length n
            Tokens, at least one.
        position : int
            Place of the first one in its sequence.
        tables : sequence of PageTable
            Pages of the sequence, one table a group, up to the last of these tokens.

        Returns
        -------
        first, stop : int
            The rows that they got.

        Raises
        ------
        ArgumentError
            If they do not fit.
        """
        first, _, s = self.counts.tolist()
        n = len(ids)
        stop = first + n
        if not n or stop > len(self.ids):
            raise ArgumentError(
                f"{n} tokens do not fit a step that holds {first} of {len(self.ids)}"
            )
        if n == 1:
            self.ids[first] = ids[0]
            self.positions[first] = position
            self.owners[first] = s
        else:
            self.ids[first:stop] = ids
            self.positions[first:stop] = np.arange(position, position + n)
            self.owners[first:stop] = s
        self.first[s + 1] = stop
        for group, table in enumerate(tables):
            self._tables[group].append(table.entries)
            self.table_addresses[group, s] = table.address
            self.table_sizes[group, s] = table.size
        self.counts[0] = stop
        self.counts[2] = s + 1
        return first, stop

    def want(self, row: int) -> int:
        """Ask for the logits of a row; return which of the outputs they are."""
        n = int(self.counts[1])
        if n == len(self.outputs):
            raise ArgumentError(f"a step has at most {n} outputs")
        self.outputs[n] = row
        self.counts[1] = n + 1
        return n

    def want_range(self, start: int, stop: int) -> None:
        """Ask for the logits of these rows, and of no others."""
        self.outputs[: stop - start] = np.arange(start, stop)
        self.counts[1] = stop - start

    def rows_of(self, sequence: int) -> slice:
        """Rows of a sequence."""
        return slice(int(self.first[sequence]), int(self.first[sequence + 1]))

    def table(self, group: int, sequence: int) -> I32:
        """Page table of a sequence, (n,) int32."""
        return self._tables[group][sequence][: int(self.table_sizes[group, sequence])]

    def check_ids(self, n_vocab: int) -> None:
        """Require that all tokens are of the vocabulary; the twins have a quicker way to ask."""
        for token in self.ids[: self.n_rows]:
            if not 0 <= token < n_vocab:
                raise ArgumentError(f"token id {token} is outside the vocabulary of {n_vocab}")

    def check(self, pages: Pages, window: int = 0) -> None:
        """Require that the page tables lead all rows to pages that exist.

        Asked once a step and group of pages; the twins have a quicker way to ask the same.

        Parameters
        ----------
        pages : Pages
            The pages of a group.
        window : int
            Positions that a row uses at most, its own included; 0 for all.

        Raises
        ------
        ArgumentError
            If rows and positions contradict each other, or an entry is missing or no page.
        """
        if not 0 <= pages.group < len(self._tables):
            raise ArgumentError(
                f"the pages are of group {pages.group}, but the step has {len(self._tables)}"
            )
        for s in range(self.n_sequences):
            rows = self.rows_of(s)
            n, first = rows.stop - rows.start, int(self.positions[rows.start])
            table = self.table(pages.group, s)
            limit = len(table) * PAGE_SIZE
            if not 0 <= first <= limit - n:
                raise ArgumentError(
                    f"{n} tokens at position {first} do not fit the page table, whose "
                    f"{len(table)} entries hold {limit} positions"
                )
            start = max(0, first - window + 1) if window else 0
            for entry in range(start // PAGE_SIZE, -(-(first + n) // PAGE_SIZE)):
                page = int(table[entry])
                if not 0 <= page < pages.n_pages or pages.slabs[pages.slab_of(page)] is None:
                    raise ArgumentError(f"page_table[{entry}] is {page}, which is no page")

    def __repr__(self) -> str:
        return f"<Step of {self.n_rows} rows, {self.n_sequences} sequences>"

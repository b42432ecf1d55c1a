"""Where keys and values lie: pages of sixteen positions, in slabs that are reserved when needed.

A page holds 16 positions for every layer of a group of layers that keep keys and values of the same
sizes. Pages are numbered; ``page >> slab_bits`` is the slab of a page, the rest its place there.
What a page looks like inside is known to `store_kv` and `attend` alone (see `kv_store_py`).

The twins find slabs by their addresses, which are read at every step: slabs may come and go between
steps, and nothing that was recorded before needs to be recorded again.
"""

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError

__all__ = [
    "KV_TYPES",
    "MAX_HEAD_DIM",
    "PAGE_SIZE",
    "PageTable",
    "Pages",
    "Slab",
    "pages_for",
    "scale_group",
]

PAGE_SIZE = 16
MAX_HEAD_DIM = 512
KV_TYPES: dict[str, type[np.generic]] = {"f32": np.float32, "f16": np.float16, "int8": np.int8}

Stored = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.int8]
F32 = npt.NDArray[np.float32]


def pages_for(n_positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-n_positions // PAGE_SIZE)


def scale_group(head_dim: int) -> int:
    """Dimensions that share a scale in int8 pages: a power of two dividing `head_dim`, <= 32."""
    return min(head_dim & -head_dim, 32)


@dataclass(frozen=True, slots=True)
class Slab:
    """Arrays of some pages.

    Attributes
    ----------
    k : (n_pages, n_layers, G, D, 16) float32, float16 or int8
        Keys.
    v : (n_pages, n_layers, G, 16, D), the same type
        Values.
    k_scales : (n_pages, n_layers, G, D/group, 16) float32, for int8 pages only
        Scales of the keys.
    v_scales : (n_pages, n_layers, G, 16, D/group) float32, for int8 pages only
        Scales of the values.
    """

    k: Stored
    v: Stored
    k_scales: F32 | None = None
    v_scales: F32 | None = None

    def arrays(self) -> list[npt.NDArray[np.generic]]:
        """Everything that its pages are made of."""
        return [x for x in (self.k, self.v, self.k_scales, self.v_scales) if x is not None]


class Pages:
    """Pages of a group of layers.

    Parameters
    ----------
    n_layers, n_kv_heads, head_dim : int
        Sizes: layers of the group, G and D.
    kv_type : str
        How numbers are stored: ``"f32"``, ``"f16"`` (rounded to nearest) or ``"int8"`` (codes and
        scales).
    n_pages : int
        Pages at most.
    slab_pages : int
        Pages of a slab, a power of two.
    group : int
        Number of the group: which of the page tables of a `Step` leads here.

    Attributes
    ----------
    addresses : (4, n_slabs) uint64
        Where the arrays of each slab are: keys, values, their scales; 0 where there is none.

    Raises
    ------
    ArgumentError
        If a size is out of its range or `kv_type` is unknown.
    """

    def __init__(
        self,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        kv_type: str,
        *,
        n_pages: int,
        slab_pages: int,
        group: int = 0,
    ) -> None:
        sizes = {
            "n_layers": n_layers,
            "n_kv_heads": n_kv_heads,
            "n_pages": n_pages,
            "slab_pages": slab_pages,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ArgumentError(f"{name} is {value}, but must be at least 1")
        if head_dim % 2 or not 2 <= head_dim <= MAX_HEAD_DIM:
            raise ArgumentError(
                f"head_dim is {head_dim}, but an even number from 2 to {MAX_HEAD_DIM} is needed"
            )
        if not isinstance(kv_type, str) or kv_type not in KV_TYPES:
            raise ArgumentError(f"kv_type is {kv_type!r}, but must be one of {', '.join(KV_TYPES)}")
        if slab_pages & (slab_pages - 1):
            raise ArgumentError(f"slab_pages is {slab_pages}, but must be a power of two")
        self.n_layers, self.n_kv_heads, self.head_dim = n_layers, n_kv_heads, head_dim
        self.kv_type, self.n_pages, self.group = kv_type, n_pages, group
        self.slab_bits = slab_pages.bit_length() - 1
        n_slabs = -(-n_pages // slab_pages)
        self.slabs: list[Slab | None] = [None] * n_slabs
        self.addresses = np.zeros((4, n_slabs), np.uint64)

    @property
    def dtype(self) -> type[np.generic]:
        """Type of a stored number."""
        return KV_TYPES[self.kv_type]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one position takes, of all layers of the group."""
        values = 2 * self.n_layers * self.n_kv_heads * self.head_dim
        if self.kv_type == "int8":
            return values + values // scale_group(self.head_dim) * 4
        return values * np.dtype(self.dtype).itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return PAGE_SIZE * self.bytes_per_token

    def slab_of(self, page: int) -> int:
        """Which slab a page is in."""
        return page >> self.slab_bits

    def slab_range(self, slab: int) -> range:
        """Pages of a slab."""
        first = slab << self.slab_bits
        return range(first, min(first + (1 << self.slab_bits), self.n_pages))

    def reserve(self, slab: int) -> None:
        """Have memory for a slab: zeros, which the system provides where they are touched."""
        if self.slabs[slab] is not None:
            return
        lead = (len(self.slab_range(slab)), self.n_layers, self.n_kv_heads)
        k_scales = v_scales = None
        if self.kv_type == "int8":
            groups = self.head_dim // scale_group(self.head_dim)
            k_scales = _fresh((*lead, groups, PAGE_SIZE), np.float32)
            v_scales = _fresh((*lead, PAGE_SIZE, groups), np.float32)
        self.put(
            slab,
            Slab(
                _fresh((*lead, self.head_dim, PAGE_SIZE), self.dtype),
                _fresh((*lead, PAGE_SIZE, self.head_dim), self.dtype),
                k_scales,
                v_scales,
            ),
        )

    def put(self, slab: int, arrays: Slab) -> None:
        """Use these arrays as a slab.

        Raises
        ------
        ArgumentError
            If one has the wrong type, shape or layout.
        """
        lead = (len(self.slab_range(slab)), self.n_layers, self.n_kv_heads)
        d, groups = self.head_dim, self.head_dim // scale_group(self.head_dim)
        scaled, single = self.kv_type == "int8", np.dtype(np.float32)
        wanted = (
            ("k", arrays.k, (*lead, d, PAGE_SIZE), np.dtype(self.dtype), True),
            ("v", arrays.v, (*lead, PAGE_SIZE, d), np.dtype(self.dtype), True),
            ("k_scales", arrays.k_scales, (*lead, groups, PAGE_SIZE), single, scaled),
            ("v_scales", arrays.v_scales, (*lead, PAGE_SIZE, groups), single, scaled),
        )
        for name, array, shape, dtype, needed in wanted:
            if not needed:
                if array is not None:
                    raise ArgumentError(f"{self.kv_type} pages have no scales, but {name} is given")
                continue
            if not isinstance(array, np.ndarray):
                raise ArgumentError(f"{name} is {type(array).__name__}, but an array is needed")
            if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
                raise ArgumentError(
                    f"{name} is {array.dtype} of shape {array.shape}, but C-contiguous {dtype} of "
                    f"shape {shape} is needed"
                )
        for i, (_, array, *_) in enumerate(wanted):
            self.addresses[i, slab] = 0 if array is None else array.ctypes.data
        self.slabs[slab] = arrays  # last: an interrupt before this leaves no slab

    def drop(self, slab: int) -> None:
        """Give the memory of a slab back; nobody may use its pages."""
        self.slabs[slab] = None  # first, so that no interrupt leaves a slab without addresses
        self.addresses[:, slab] = 0

    @property
    def writable(self) -> bool:
        """Whether all slabs can be written to."""
        return all(
            array.flags.writeable for s in self.slabs if s is not None for array in s.arrays()
        )

    def page(self, page: int) -> list[npt.NDArray[np.generic]]:
        """Arrays of one page: views of keys, values and, for int8, their scales."""
        slab, at = self.slabs[self.slab_of(page)], page & ((1 << self.slab_bits) - 1)
        if slab is None:
            raise ArgumentError(f"there is no page {page}")
        return [array[at] for array in slab.arrays()]

    def copy_page(self, source: int, target: int) -> None:
        """Fill page `target` like page `source`."""
        for old, new in zip(self.page(source), self.page(target), strict=True):
            new[...] = old

    def gather(self, pages: npt.NDArray[np.int32], layer: int) -> tuple[F32, F32]:
        """Keys (n, G, D, 16) and values (n, G, 16, D) of n pages and a layer, as float32 copies."""
        parts = [[array[layer] for array in self.page(int(page))] for page in pages]
        empty = (0, self.n_kv_heads)
        if not parts:
            return (
                np.zeros((*empty, self.head_dim, PAGE_SIZE), np.float32),
                np.zeros((*empty, PAGE_SIZE, self.head_dim), np.float32),
            )
        k, v, *scales = (np.stack(part) for part in zip(*parts, strict=True))
        if not scales:
            return k.astype(np.float32), v.astype(np.float32)
        group = scale_group(self.head_dim)
        with np.errstate(invalid="ignore"):  # slots not in use may hold anything
            return k * np.repeat(scales[0], group, axis=2), v * np.repeat(scales[1], group, axis=3)

    def __repr__(self) -> str:
        used = sum(slab is not None for slab in self.slabs)
        return (
            f"<Pages {self.kv_type}, {self.n_layers} layers, {self.n_kv_heads} heads of "
            f"{self.head_dim}, {used} of {len(self.slabs)} slabs>"
        )


def _fresh(shape: tuple[int, ...], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Zeros in memory of their own, at once however many they are.

    An allocator would take what was freed before, where there is some, and fill it with zeros:
    milliseconds in which nobody could enter anything in the books.
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    try:
        memory = mmap.mmap(-1, n_bytes, **private)
    except OSError as error:
        raise MemoryError(f"no memory for {n_bytes} bytes of pages") from error
    return np.frombuffer(memory, dtype).reshape(shape)


class PageTable:
    """The pages of a sequence in a group, in the order of its positions.

    Attributes
    ----------
    entries : (n,) int32
        Page of every sixteen positions, for `size` entries; -1 for one that was given back.
    size : int
        Entries in use.
    address : int
        Where the entries are in memory.
    """

    __slots__ = ("address", "entries", "size")

    def __init__(self, entries: npt.ArrayLike = ()) -> None:
        given = np.array(entries, np.int32)
        self.size = len(given)
        self._hold(given if self.size else np.full(8, -1, np.int32))

    def append(self, page: int) -> None:
        """Add an entry; the array is doubled when it is full."""
        if self.size == len(self.entries):
            self._hold(np.concatenate([self.entries, np.full(self.size, -1, np.int32)]))
        self.entries[self.size] = page
        self.size += 1

    def pop(self) -> int:
        """Take the last entry away."""
        self.size -= 1
        page = int(self.entries[self.size])
        self.entries[self.size] = -1
        return page

    def copy(self) -> "PageTable":
        """Make a table with the same entries."""
        return PageTable(self.entries[: self.size])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, entry: int) -> int:
        return int(self.entries[: self.size][entry])

    def __setitem__(self, entry: int, page: int) -> None:
        self.entries[: self.size][entry] = page

    def _hold(self, entries: npt.NDArray[np.int32]) -> None:
        self.entries, self.address = entries, entries.ctypes.data

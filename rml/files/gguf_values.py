"""Values of a GGUF header, read from its bytes with every length checked before it is used.

    scalar   little-endian, 1 to 8 bytes        -> int, float or bool
    string   u64 length, then UTF-8 bytes       -> str
    array    u32 type, u64 count, the values    -> numpy array, StringArray, or tuple of arrays

Counts and lengths come from strangers: each is compared, as a Python integer that cannot wrap,
with the bytes that are left, and with the table of limits, before anything is allocated or walked.

Strings should be UTF-8, but vocabularies hold tokens that are not. Bytes that do not decode become
lone surrogates (``errors="surrogateescape"``): ``text.encode("utf-8", "surrogateescape")`` gives
the stored bytes back exactly.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from rml.errors import CheckpointError
from rml.files.limits import MAX_GGUF_ARRAYS, MAX_GGUF_DEPTH, MAX_GGUF_HEADER_BYTES
from rml.files.mapped import MappedFile

__all__ = ["Cursor", "MetadataValue", "StringArray", "read_value", "type_name"]

MetadataValue: TypeAlias = (
    "bool | int | float | str | NDArray[Any] | StringArray | tuple[MetadataValue, ...]"
)


class _Scalar(NamedTuple):
    name: str
    layout: struct.Struct
    dtype: np.dtype[Any]


def _scalar(name: str, code: str, dtype: str) -> _Scalar:
    return _Scalar(name, struct.Struct(f"<{code}"), np.dtype(dtype))


# The numbers are the format's `gguf_metadata_value_type`.
_SCALARS: dict[int, _Scalar] = {
    0: _scalar("uint8", "B", "u1"),
    1: _scalar("int8", "b", "i1"),
    2: _scalar("uint16", "H", "<u2"),
    3: _scalar("int16", "h", "<i2"),
    4: _scalar("uint32", "I", "<u4"),
    5: _scalar("int32", "i", "<i4"),
    6: _scalar("float32", "f", "<f4"),
    7: _scalar("bool", "B", "u1"),
    10: _scalar("uint64", "Q", "<u8"),
    11: _scalar("int64", "q", "<i8"),
    12: _scalar("float64", "d", "<f8"),
}
_BOOL = 7
_STRING = 8
_ARRAY = 9

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")

# Bytes in which the beginnings of strings are looked for at once: fits the second-level cache.
_BLOCK = 1 << 16
# Fewer strings are followed one by one sooner than a block is looked through.
_FEW = 64
# Shorter strings have seven zero bytes in their length.
_SHORT = 256


def type_name(type_id: int) -> str:
    """Name of a metadata type, for messages."""
    if type_id in _SCALARS:
        return _SCALARS[type_id].name
    return {_STRING: "string", _ARRAY: "array"}.get(type_id, f"unknown type {type_id}")


class Cursor:
    """A position in the header of a mapped file that only moves forward, and never past the end.

    The `what` of each method names the thing being read, for the message if it is cut, and `part`
    what of it: ``"the length of "``.
    """

    __slots__ = ("buffer", "n_arrays", "path", "position", "size")

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.buffer: mmap.mmap = file.buffer
        self.size = file.size
        self.position = 0
        self.n_arrays = 0  # read so far that lie in others

    @property
    def left(self) -> int:
        """Bytes from the position to the end of the file."""
        return self.size - self.position

    def fail(self, message: str) -> NoReturn:
        """Raise CheckpointError with the file's name before `message`."""
        raise CheckpointError(f"{self.path}: {message}")

    def take(self, n_bytes: int, what: str, part: str = "") -> int:
        """Move over `n_bytes` bytes and return where they begin."""
        start = self.position
        end = start + n_bytes
        if end > self.size:
            self.fail(
                f"the file is truncated or broken: {part}{what} needs {n_bytes} bytes at byte "
                f"{start}, and {self.left} are left; download it again"
            )
        if end > MAX_GGUF_HEADER_BYTES:
            self._too_long(what)
        self.position = end
        return start

    def claim(self, count: int, least: int, what: str) -> None:
        """Refuse a `count` of things of at least `least` bytes each that cannot fit what is left.

        Nothing is moved; this comes before any allocation or loop that `count` sizes.
        """
        if count * least > self.left:
            self.fail(
                f"the file claims {count} {what}, at least {least} bytes each, at byte "
                f"{self.position}, but only {self.left} bytes are left; it is truncated or broken"
            )
        if self.position + count * least > MAX_GGUF_HEADER_BYTES:
            self._too_long(what)

    def _too_long(self, what: str) -> NoReturn:
        self.fail(
            f"the metadata and the tensor table have more than {MAX_GGUF_HEADER_BYTES:,} bytes, "
            f"which are allowed, before the end of {what}"
        )

    def unpack(self, layout: struct.Struct, what: str, part: str = "") -> tuple[Any, ...]:
        """Read numbers."""
        return layout.unpack_from(self.buffer, self.take(layout.size, what, part))

    def u32(self, what: str, part: str = "") -> int:
        """Read an unsigned 32-bit number."""
        value: int = _U32.unpack_from(self.buffer, self.take(4, what, part))[0]
        return value

    def u64(self, what: str, part: str = "") -> int:
        """Read an unsigned 64-bit number."""
        value: int = _U64.unpack_from(self.buffer, self.take(8, what, part))[0]
        return value

    def string(self, what: str) -> str:
        """Read a string; bytes that are not UTF-8 become lone surrogates."""
        length = self.u64(what, "the length of ")
        start = self.take(length, what)
        return self.buffer[start : start + length].decode("utf-8", "surrogateescape")

    def name(self, what: str, limit: int) -> str:
        """Read a string that is a name: valid UTF-8 of at most `limit` bytes."""
        length = self.u64(what, "the length of ")
        if length > limit:
            self.fail(f"{what} has a length of {length} bytes; the format allows {limit}")
        start = self.take(length, what)
        raw = self.buffer[start : start + length]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {raw[:40]!r}")


def read_value(cursor: Cursor, type_id: int, what: str) -> MetadataValue:
    """Read one metadata value.

    Parameters
    ----------
    cursor : Cursor
        Stands at the value and is moved past it.
    type_id : int
        The stored type.
    what : str
        The key, for messages.

    Returns
    -------
    int, float, bool, str, ndarray, StringArray or tuple
        Arrays of numbers are read-only numpy arrays of the stored type. An array of arrays is a
        tuple of them.

    Raises
    ------
    CheckpointError
        If the value is cut, its type is unknown, or a bool is neither 0 nor 1.
    """
    if scalar := _SCALARS.get(type_id):
        start = cursor.take(scalar.layout.size, what)
        value: int | float = scalar.layout.unpack_from(cursor.buffer, start)[0]
        if type_id != _BOOL:
            return value
        if value > 1:
            cursor.fail(f"{what} is a bool stored as {value}; the format allows 0 and 1")
        return bool(value)
    if type_id == _STRING:
        return cursor.string(what)
    if type_id == _ARRAY:
        return _read_array(cursor, what)
    return cursor.fail(f"{what} has the unknown metadata type {type_id}")


def _read_array(cursor: Cursor, what: str, depth: int = 1) -> MetadataValue:
    """Read an array that lies in `depth` - 1 others."""
    element, count = cursor.unpack(_ARRAY_HEAD, what, "the type and count of ")
    if scalar := _SCALARS.get(element):
        cursor.claim(count, scalar.dtype.itemsize, f"values in {what}")
        start = cursor.take(count * scalar.dtype.itemsize, what)
        values = np.frombuffer(cursor.buffer, scalar.dtype, count, start).copy()
        if element == _BOOL:
            if count and values.max() > 1:
                cursor.fail(f"{what} has a bool stored as {values.max()}; 0 and 1 are allowed")
            values = values.astype(np.bool_)
        values.flags.writeable = False
        return values
    if element == _STRING:
        cursor.claim(count, 8, f"strings in {what}")
        return StringArray.read(cursor, count, what)
    if element == _ARRAY:
        if depth >= MAX_GGUF_DEPTH:
            cursor.fail(f"{what} is nested more than {MAX_GGUF_DEPTH} arrays deep")
        cursor.claim(count, _ARRAY_HEAD.size, f"arrays in {what}")
        cursor.n_arrays += count
        if cursor.n_arrays > MAX_GGUF_ARRAYS:
            cursor.fail(
                f"there are {cursor.n_arrays:,} arrays inside arrays, up to those of {what}; at "
                f"most {MAX_GGUF_ARRAYS:,} are allowed"
            )
        return tuple(_read_array(cursor, what, depth + 1) for _ in range(count))
    return cursor.fail(f"{what} is an array of the unknown metadata type {element}")


class StringArray(Sequence[str]):
    """An array of strings as it lies in the file, decoded when an element is asked for.

    Opening a file with a vocabulary of 262 144 tokens only finds out where each begins. It is an
    immutable sequence of `str`, equal to a list of the same strings; `tolist` (also behind
    iteration) decodes all at once and is much faster than indexing one by one.

    Parameters
    ----------
    raw : bytes
        The stored strings, each a u64 length and its bytes.
    bounds : ndarray of int64, shape (count + 1,)
        Where each string's length lies in `raw`, and the end of the last string.
    """

    __slots__ = ("_bounds", "_raw")

    def __init__(self, raw: bytes, bounds: NDArray[np.int64]) -> None:
        self._raw = raw
        self._bounds = bounds

    @classmethod
    def read(cls, cursor: Cursor, count: int, what: str) -> "StringArray":
        """Read `count` strings; the caller has checked that ``8 * count`` bytes are left."""
        start = cursor.position
        bounds = _walk(cursor, count, what)
        return cls(cursor.buffer[start : cursor.position], bounds - start)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        begin, end = self._bounds[i] + 8, self._bounds[i + 1]
        return self._raw[begin:end].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings, decoded."""
        # Decoding one text and splitting it takes a third of the time of decoding many.
        joined = self._joined()
        if joined.count(0) == len(self) - 1:  # no string holds a zero
            return joined.decode("utf-8", "surrogateescape").split("\0")
        raw = self._raw
        bounds = self._bounds.tolist()
        return [
            raw[begin + 8 : end].decode("utf-8", "surrogateescape")
            for begin, end in pairwise(bounds)
        ]

    def _joined(self) -> bytes:
        """Join the strings without their lengths, with a zero between two of them."""
        data, begins = np.frombuffer(self._raw, np.uint8).copy(), self._bounds[:-1]
        kept = np.ones(len(data), np.bool_)
        for i in range(8):
            kept[begins + i] = False
        kept[begins[1:]], data[begins[1:]] = True, 0
        return data[kept].tobytes()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self._raw == other._raw and len(self) == len(other)
        if isinstance(other, list):
            return self.tolist() == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return f"<StringArray of {len(self)} strings>"


def _walk(cursor: Cursor, count: int, what: str) -> NDArray[np.int64]:
    """Move `cursor` over `count` strings and return where each begins, and the end of the last.

    Where string k + 1 begins is known only from the length of string k, and following that chain
    in Python costs 0.25 us a string. So candidates are found first, a block at a time: places
    where eight bytes read as a length below 256. Then the chain is verified at once: as long as
    each candidate lies exactly where the one before it ends, all of them are true beginnings.
    From the first that does not (a long string, or zero bytes inside one), the rest of the block
    is followed string by string. So the work is linear in the bytes whatever they hold.
    """
    buffer, size = cursor.buffer, min(cursor.size, MAX_GGUF_HEADER_BYTES)
    bounds = np.empty(count + 1, np.int64)
    bounds[0] = position = cursor.position
    done = 0
    while done < count:
        block_end = min(position + _BLOCK, size - 7)
        if block_end > position and count - done >= _FEW:
            # The u64 at every byte of the block, unaligned and overlapping.
            words = np.ndarray((block_end - position,), "<u8", buffer, position, (1,))
            begins = np.flatnonzero(words < _SHORT)
            ends = begins + 8 + words[begins].astype(np.int64)
            if len(begins) and begins[0] == 0:
                broken = np.flatnonzero(ends[:-1] != begins[1:])
                n = min(int(broken[0]) + 1 if len(broken) else len(ends), count - done)
                bounds[done + 1 : done + 1 + n] = ends[:n] + position
                done += n
                position = int(bounds[done])
        while done < count and position < block_end:
            position += 8 + int(_U64.unpack_from(buffer, position)[0])
            if position > size:
                break
            done += 1
            bounds[done] = position
        if done < count and position > size - 8:
            if size < cursor.size:
                cursor.take(cursor.size - cursor.position, what)  # more than is allowed
            cursor.fail(
                f"the file is truncated or broken: it ends inside string {done} of the {count} "
                f"in {what}; download it again"
            )
    cursor.take(position - cursor.position, what)
    return bounds

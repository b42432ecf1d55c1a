"""Files mapped into memory, and tensors as views into them.

A `MappedFile` is a whole file, mapped read-only: its pages belong to the operating system's cache,
are shared by all processes that map the file, and are read from disk when first touched. A
`Tensor` is a name, a shape, a type and a range of a mapped file; it never copies until asked to.

Closing. `MappedFile.close` drops the file's own references. The pages are unmapped at once when
no view is alive, else when the last view dies, because each numpy view keeps the mapping alive:
a view can never point into freed memory.

Changes. While a file is mapped, other programs must neither cut it nor write to it. Whether they
did is looked at whenever a view is asked for, and around every step: see `rml.files.watched`.
`MappedFile.read_into_memory` puts a copy in the place of the mapping, which nobody can change.

A descriptor stays open as long as the file is mapped. (Before Python 3.13 the `mmap` module keeps
a duplicate of its own, too.)
"""

import contextlib
import errno
import mmap
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rml._kernels import dequantize
from rml._kernels.checks import WEIGHT_FORMATS
from rml.errors import CheckpointError, ClosedError, UnsupportedModel
from rml.files.small_floats import SMALL_FLOATS
from rml.files.watched import WatchedFile
from rml.memory_room import no_room, out_of_memory

__all__ = ["Contents", "MappedFile", "Tensor", "file_size", "read_head"]

# Plain types whose values are not rounded to float32. GGUF has the signed integers and F64; the
# others are of safetensors.
_PLAIN: dict[str, np.dtype[Any]] = {
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}
_READABLE = WEIGHT_FORMATS | _PLAIN.keys() | SMALL_FLOATS.keys() | {"BOOL"}


def file_size(path: Path) -> int:
    """Bytes of the regular file `path`, which is not opened.

    Raises
    ------
    CheckpointError
        If there is no such file, it is no regular file, or it is empty.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise CheckpointError(_explain(path, error)) from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: this is not a regular file")
    if status.st_size == 0:
        raise CheckpointError(
            f"{path}: the file is empty (0 bytes); the download never began: get it again"
        )
    return status.st_size


def read_head(path: Path, n_bytes: int) -> bytes:
    """Read the first `n_bytes` bytes of `path`, fewer where the file is shorter."""
    try:
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise CheckpointError(_explain(path, error)) from error


def _explain(path: Path, error: OSError | ValueError) -> str:
    """Say why `path` cannot be read and, for a missing file, which names come close."""
    if isinstance(error, ValueError):  # a NUL character in the path
        return f"{str(path)!r} is not a file name: {error}"
    if error.errno != errno.ENOENT:
        return f"{path}: cannot be read: {error.strerror}"
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"{path}: there is no such file or folder, and no folder {path.parent} either"
    close = get_close_matches(path.name, names, n=3)
    return f"{path}: there is no such file or folder" + (
        f"; its folder holds {', '.join(close)}" if close else ""
    )


class MappedFile:
    """A file's bytes, mapped read-only.

    Parameters
    ----------
    path : Path
        A regular file that is not empty.

    Attributes
    ----------
    path : Path
        As given.
    size : int
        Bytes in the file when it was mapped.

    Raises
    ------
    CheckpointError
        If the file is missing, empty, not a regular file, or cannot be read or mapped.
    OutOfMemory
        If the process has no address space for it.
    """

    __slots__ = ("_bytes", "_mapping", "_watched", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapping: mmap.mmap | None = None
        self._bytes: NDArray[np.uint8] | None = None
        self._watched: WatchedFile | None = None  # None: closed, or a copy in memory
        size = file_size(path)
        try:
            self._watched = watched = WatchedFile(path)
            size = watched.size
            untracked = {"trackfd": False} if sys.version_info >= (3, 13) else {}
            mapping = mmap.mmap(watched.descriptor, size, access=mmap.ACCESS_READ, **untracked)
        except (OSError, ValueError) as error:  # ValueError: cut since it was looked at
            self.close()
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                raise no_room(f"{path}, mapped as a whole", size) from error
            raise CheckpointError(f"{path}: cannot be mapped into memory: {error}") from error
        self.size = size
        self._mapping = mapping
        self._bytes = np.frombuffer(mapping, np.uint8)

    @classmethod
    def again(cls, path: Path, size: int, in_memory: bool) -> "MappedFile":
        """Open a file that was pickled, as it was; one of another size is another one."""
        file = cls(path)
        if file.size != size:
            file.close()
            raise CheckpointError(
                f"{path}: this is not the file that was pickled: it has {file.size:,} bytes, not "
                f"{size:,}; open the model anew"
            )
        if in_memory:
            file.read_into_memory()
        return file

    @property
    def in_memory(self) -> bool:
        """Whether this is a copy that no other program can change."""
        return self._watched is None and self._mapping is not None

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping itself, for parsers: slices of it are `bytes`."""
        if self._mapping is None:
            raise ClosedError(f"{self.path}: the file is closed")
        return self._mapping

    def view(self, start: int, n_bytes: int) -> NDArray[np.uint8]:
        """Read-only view of bytes ``[start, start + n_bytes)``, which must lie in the file.

        Raises
        ------
        ClosedError
            If the file is closed.
        CheckpointError
            If it was changed since it was opened.
        """
        self.require_unchanged()
        if self._bytes is None:
            raise ClosedError(f"{self.path}: the file is closed")
        return self._bytes[start : start + n_bytes]

    def require_unchanged(self) -> None:
        """Raise `CheckpointError` if another program has changed the file since it was opened."""
        watched = self._watched  # `close` may come from another thread
        if watched is not None:
            watched.require_unchanged()

    def identity(self) -> list[Any]:
        """Path, size, time of the last write, inode and device of the file that is mapped."""
        if self._watched is None:
            raise ClosedError(f"{self.path}: the file is closed, or a copy in memory")
        return [str(self.path.absolute()), *self._watched.identity()]

    def read_into_memory(self) -> None:
        """Put a copy in this process's own memory into the place of the mapping.

        Views that were taken before stay views of the mapping.

        Raises
        ------
        CheckpointError
            If the file cannot be read, or was changed since it was opened.
        OutOfMemory
            If there is no memory for it.
        """
        mapping, watched = self._mapping, self._watched
        if mapping is None or watched is None:
            return
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
        try:
            memory = mmap.mmap(-1, self.size, **private)
        except OSError as error:
            raise no_room(f"a copy of {self.path}", self.size) from error
        with memoryview(memory) as view:
            watched.read_into(view)
        self._bytes = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
        self._mapping, self._watched = memory, None
        watched.close()
        with contextlib.suppress(BufferError):  # as in `close`
            mapping.close()

    def __reduce__(self) -> tuple[Callable[..., "MappedFile"], tuple[Path, int, bool]]:
        return type(self).again, (self.path.absolute(), self.size, self.in_memory)

    def close(self) -> None:
        """Unmap the file; where a view is still alive, when the last one dies."""
        mapping, self._mapping, self._bytes = self._mapping, None, None
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.close()
        if mapping is not None:
            # BufferError: a caller holds a view. It owns a reference to the mapping, which is
            # unmapped when the last such reference goes.
            with contextlib.suppress(BufferError):
                mapping.close()


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of a checkpoint: what it is, and where its bytes lie.

    Attributes
    ----------
    name : str
        The name in the file.
    shape : tuple of int
        numpy order, outermost dimension first: ``(rows, columns)`` for a matrix. A GGUF file
        lists dimensions innermost first; they are reversed here.
    type : str
        A name of `rml._kernels.block_formats.FORMATS` (``"F32"``, ``"Q4_1"``, ``"I32"``, ...).
        From safetensors also ``"BOOL"``, ``"U8"`` to ``"U64"``, ``"C64"``, and floating point of
        8 bits and fewer, such as ``"F8_E4M3"``. Not every type can be a weight of a model.
    n_bytes : int
        Bytes of data.
    start : int
        Where they begin in the file `path`.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    start: int
    _file: MappedFile = field(repr=False)

    @property
    def path(self) -> Path:
        """The file that holds the data: one of several where a checkpoint is split."""
        return self._file.path

    @property
    def data(self) -> NDArray[np.uint8]:
        """The stored bytes: 1-D, read-only, a view into the mapped file.

        The view keeps the mapping alive, also after the checkpoint is closed. It may begin at
        any address, whatever the alignment of the type. A file that another program changes while
        the view is in use changes the view; one that it cuts ends the process where the view is
        read: `open_checkpoint` with ``mmap=False`` gives views that nobody can change.

        Raises
        ------
        ClosedError
            If the checkpoint is closed.
        CheckpointError
            If the file was changed since it was opened.
        """
        return self._file.view(self.start, self.n_bytes)

    def numpy(self) -> NDArray[Any]:
        """Copy the values out, as a new array of shape `shape`.

        Returns
        -------
        ndarray
            float32 for every weight format but ``"F64"``, and for floating point of 8 bits. Types
            that float32 does not hold keep their own numpy type, so that no value is changed:
            integers, bool for ``"BOOL"``, float64 for ``"F64"``, complex64 for ``"C64"``.

        Raises
        ------
        ClosedError
            If the checkpoint is closed.
        CheckpointError
            If the file was changed since it was opened.
        UnsupportedModel
            If rml cannot expand the type.
        OutOfMemory
            If there is no memory for them.
        """
        with out_of_memory(f"the values of tensor {self.name!r} of {self.path}"):
            values = self._values(self.data)
        self._file.require_unchanged()  # while they were copied
        return values

    def _values(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        if self.type == "BOOL":
            return data.astype(np.bool_).reshape(self.shape)
        if self.type in _PLAIN:
            return data.view(_PLAIN[self.type]).reshape(self.shape).copy()
        if self.type in SMALL_FLOATS:
            return SMALL_FLOATS[self.type][data].reshape(self.shape)
        if self.type not in WEIGHT_FORMATS:
            raise UnsupportedModel(
                f"{self.path}: tensor {self.name!r} is stored as {self.type}, which rml cannot "
                f"expand; it knows {', '.join(sorted(_READABLE))}"
            )
        values = np.empty(self.shape, np.float32)
        dequantize(data, self.type, values.reshape(-1))
        return values


class Contents(NamedTuple):
    """What a reader found: the parts from which a `Checkpoint` is made."""

    metadata: Mapping[str, Any]
    tensors: dict[str, Tensor]
    files: list[MappedFile]

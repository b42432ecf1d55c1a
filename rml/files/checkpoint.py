"""A model's files, opened: names and views, whatever the format."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rml.errors import CheckpointError, ClosedError
from rml.files.folder import find_model
from rml.files.foreign import HEAD_BYTES, refuse_foreign
from rml.files.gguf import MAGIC, read_gguf
from rml.files.mapped import Contents, Tensor, file_size, read_head
from rml.files.paths import is_folder, is_there, readable_path
from rml.files.read_only import ReadOnly
from rml.files.safetensors import (
    INDEX_SUFFIX,
    looks_like_safetensors,
    read_index,
    read_safetensors,
)
from rml.files.strict_json import load_json
from rml.memory_room import available, no_room, out_of_memory
from rml.ranges import boolean, checked

__all__ = ["Checkpoint", "open_checkpoint"]

_CONFIG = "config.json"


class Checkpoint:
    """An open checkpoint: metadata, and tensors that are views into mapped files.

    Made by `open_checkpoint`. It is immutable until it is closed, and threads may share it. As a
    context manager it closes itself. It pickles as its path, and whether it is mapped.

    Attributes
    ----------
    path : Path
        The file or Hugging Face folder that was opened; for a folder that holds one GGUF file,
        that file.
    format : str
        ``"gguf"`` or ``"safetensors"``.
    mmap : bool
        Whether the weights are mapped, or were read into memory.
    """

    __slots__ = ("_config", "_contents", "format", "mmap", "path")

    def __init__(
        self, path: Path, format_name: str, contents: Contents, config: dict[str, Any] | None
    ) -> None:
        self.path = path
        self.format = format_name
        self.mmap = True
        self._contents: Contents | None = contents
        self._config = config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF keys and values, as `rml.files.gguf_values.read_value` gives them; else empty.

        The values are copies, and stay valid when the checkpoint is closed.
        """
        return self._open().metadata

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Tensors by name, in the order of the file."""
        return ReadOnly(self._open().tensors)

    @property
    def config(self) -> dict[str, Any] | None:
        """What ``config.json`` says, where the weights are safetensors and it lies beside them."""
        self._open()
        return self._config

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._contents is None

    @property
    def identities(self) -> list[list[Any]]:
        """Path, size, time of the last write, inode and device of each mapped file."""
        return [file.identity() for file in self._open().files]

    @property
    def nbytes(self) -> int:
        """Bytes of all files that hold the tensors."""
        return sum(file.size for file in self._open().files)

    def require_unchanged(self) -> None:
        """Look whether the files are what they were when they were opened.

        Asked before and after every step, and whenever a tensor is read; it takes a microsecond a
        file. `rml.files.watched` says what it sees and what it cannot see. With ``mmap=False``
        there is nothing to look at.

        Raises
        ------
        CheckpointError
            If another program has written to one of them.
        ClosedError
            If the checkpoint is closed.
        """
        for file in self._open().files:
            file.require_unchanged()

    def read_into_memory(self) -> None:
        """Read the files into this process's own memory: from then on they may change or go.

        Raises
        ------
        OutOfMemory
            If there is less memory than they have bytes.
        CheckpointError
            If one cannot be read, or was changed since it was opened.
        """
        room = available()
        if self.nbytes > room.n_bytes:
            raise no_room(
                f"a copy of {self.path} in memory (mmap=False)",
                self.nbytes,
                room,
                advice="mapped, which is the default, it needs no memory of its own",
            )
        for file in self._open().files:
            file.read_into_memory()
        self.mmap = False

    def close(self) -> None:
        """Unmap the files; closing twice does nothing.

        Arrays that callers took from `Tensor.data` stay valid: the pages behind them are given
        back when the last such array goes. What `Tensor.numpy` returned is a copy anyway.
        """
        contents, self._contents, self._config = self._contents, None, None
        if contents is not None:
            for file in contents.files:
                file.close()

    def _open(self) -> Contents:
        if self._contents is None:
            raise ClosedError(f"{self.path}: the checkpoint is closed")
        return self._contents

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[Path], "Checkpoint"], tuple[Path]]:
        return partial(open_checkpoint, mmap=self.mmap), (self.path.absolute(),)

    def __repr__(self) -> str:
        if self._contents is None:
            return f"<Checkpoint {str(self.path)!r}, closed>"
        return f"<Checkpoint {str(self.path)!r}, {self.format}, {len(self.tensors)} tensors>"


def open_checkpoint(path: str | os.PathLike[str], *, mmap: bool = True) -> Checkpoint:
    """Open a model's files; the weights are mapped, not read.

    Parameters
    ----------
    path : str or path-like
        A GGUF file, or the first part of a split one; a safetensors file or the index of
        several; or a folder that holds one of these. The content decides, not the extension.
    mmap : bool
        Map the weights into memory: they are read where they are used, their pages are shared with
        other processes, and the files must stay as they are until the checkpoint is closed. With
        False they are read into this process's own memory now, and the files may change or go.

    Returns
    -------
    Checkpoint
        To be closed, or used in a ``with`` statement. Mapped, only headers have been read: a file
        is checked as far as its header describes it, and the weights are views into it.

    Raises
    ------
    CheckpointError
        If something is missing, truncated, broken, contradicts itself, is no model, or is changed
        by another program meanwhile.
    UnsupportedModel
        If it is sound but of a kind, version or type that rml does not read.
    ArgumentError
        If `path` is not a path, or empty, or `mmap` is no bool.
    OutOfMemory
        If the process may not map the files, or has no memory for a copy.

    Examples
    --------
    >>> with rml.open_checkpoint("smollm2.gguf") as checkpoint:  # doctest: +SKIP
    ...     tensor = checkpoint.tensors["output_norm.weight"]
    ...     tensor.shape, tensor.type, tensor.numpy()[:2]
    """
    location = readable_path(path)
    mmap = checked("mmap", mmap, boolean)
    with out_of_memory(f"the headers of {location}"), ExitStack() as opened:
        checkpoint = opened.enter_context(_opened(location))
        if mmap:
            checkpoint.require_unchanged()  # while its headers were read
        else:
            checkpoint.read_into_memory()
        opened.pop_all()
    return checkpoint


def _opened(location: Path) -> Checkpoint:
    file = find_model(location) if is_folder(location) else location
    read = _reader(file)
    if read is read_gguf:
        return Checkpoint(file, "gguf", read(file), None)
    config = file.with_name(_CONFIG)
    # Python programs write NaN and Infinity into configurations; nothing is ambiguous in that.
    settings = load_json(config, constants=True) if is_there(config) else None
    return Checkpoint(location, "safetensors", read(file), settings)


def _reader(file: Path) -> Callable[[Path], Contents]:
    """Choose the reader for `file` by its content, or refuse it by name."""
    if file.name.endswith(INDEX_SUFFIX):
        return read_index
    size = file_size(file)
    head = read_head(file, HEAD_BYTES)
    if head.startswith(MAGIC):
        return read_gguf
    if not looks_like_safetensors(head, size):
        refuse_foreign(file, head)
    # A broken .safetensors file is best explained by its reader.
    if looks_like_safetensors(head, size) or file.suffix == ".safetensors":
        return read_safetensors
    raise CheckpointError(
        f"{file}: this is neither a GGUF nor a safetensors file: a GGUF file starts with "
        f"47 47 55 46 ('GGUF'), this one with {head[:8].hex(' ')}"
    )

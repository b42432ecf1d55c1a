"""A session in a file: which model it is of, its tokens, and its keys and values.

=======  =====================  ===================================================================
bytes    content
=======  =====================  ===================================================================
8        ``RMLSESS`` and 0      what the file is
4        version                of this layout, and of what is inside a page: 1
4        n                      bytes of the header
n        header                 one JSON object, see `_Header`
...      pages                  of 16 positions each, in order: keys, values, and the scales of both
                                where the cache is int8, as they lie in memory
32       SHA-256                of everything before it
=======  =====================  ===================================================================

Numbers are little-endian, as on every processor that rml runs on. Everything is checked before it
is used, so a file that was cut, damaged or made for something else is refused; nothing in it is
code. It holds the text of a conversation.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rml._kernels.pages import PAGE_SIZE, pages_for
from rml.engine.sequence import Sequence
from rml.errors import CheckpointError, ContextOverflow, SaveError
from rml.files import Checkpoint
from rml.files.mapped import file_size
from rml.files.paths import given_path
from rml.files.strict_json import MAX_JSON_BYTES, parse_json
from rml.llm.config import ModelConfig

__all__ = ["fingerprint", "read_session", "write_session"]

MAGIC = b"RMLSESS\0"
VERSION = 1
_START = struct.Struct("<8sII")
_DIGEST_BYTES = hashlib.sha256().digest_size
_SAMPLE = 64  # bytes of each tensor, at three places, that tell models apart
_DIFFERS = {
    "kv_type": "the session was saved with kv_type={!r}, but this one has kv_type={!r}",
    "compute": "the session was computed with compute={!r}, but this model has compute={!r}",
    "model": "the session is of another model, or of another version of rml (fingerprint {}, "
    "of this model {})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What must agree, and the tokens.

    Attributes
    ----------
    model : str
        See `fingerprint`.
    compute, kv_type : str
        How the products were computed, and how keys and values are stored.
    tokens : list of int
        One for each position.
    """

    model: str
    compute: str
    kv_type: str
    tokens: list[int]


def fingerprint(checkpoint: Checkpoint, config: ModelConfig, n_ctx: int) -> str:
    """Tell models apart: a digest of sizes, switches, rotary tables and samples of every tensor.

    Parameters
    ----------
    checkpoint : Checkpoint
        The weights.
    config : ModelConfig
        How they are used.
    n_ctx : int
        Context that the model was loaded for, on which one kind of rotary table depends.
    """
    digest = hashlib.sha256(repr(config).encode())
    for rope in config.ropes(n_ctx):
        if rope is not None:
            digest.update(rope.inv_freq.tobytes())
            digest.update(repr(rope.attention_factor).encode())
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(repr((name, tensor.shape, tensor.type)).encode())
        data = tensor.data
        for start in (0, len(data) // 2, max(0, len(data) - _SAMPLE)):
            digest.update(data[start : start + _SAMPLE].tobytes())
    return digest.hexdigest()


def write_session(
    path: str | os.PathLike[str], sequence: Sequence, *, kv_type: str, model: str, compute: str
) -> None:
    """Write a file that `read_session` reads, all or nothing.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    sequence : Sequence
        Tokens, keys and values.
    kv_type, model, compute : str
        See `_Header`.

    Raises
    ------
    ArgumentError
        If `path` is no path.
    SaveError
        If the file cannot be written; then nothing has changed.
    """
    tokens = sequence.ids
    header = _Header(model=model, compute=compute, kv_type=kv_type, tokens=tokens)
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    given = given_path(path)
    try:
        with _replacing(given) as file:
            digest = hashlib.sha256()

            def write(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            write(_START.pack(MAGIC, VERSION, len(text)) + text)
            for page in range(pages_for(len(tokens))):
                used = min(PAGE_SIZE, len(tokens) - page * PAGE_SIZE)
                for part, axis in _page(sequence, page):
                    whole = part.copy()
                    np.moveaxis(whole, axis, 0)[used:] = 0  # what was truncated is not told
                    write(whole.tobytes())
            file.write(digest.digest())
    except SaveError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise SaveError(f"{given}: the session cannot be saved there: {why}") from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path` that takes its place when all is written, or is removed."""
    if "\0" in str(path):
        raise SaveError(f"{str(path)!r} is not a file name: it holds a NUL character")
    target = Path(os.path.realpath(path))  # a link stays one
    mode = None
    if target.exists():
        if not target.is_file():  # nor must a device be replaced, where that is allowed
            what = "a folder" if target.is_dir() else "a device or the like"
            raise OSError(errno.EEXIST, f"this is {what}, but a file is needed")
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "the file that is there may not be written")
        mode = stat.S_IMODE(target.stat().st_mode)
    # Not the name with something added, which might be too long.
    temporary = target.with_name(f".rml-{secrets.token_hex(8)}.tmp")
    with temporary.open("xb") as file:
        try:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_session(
    path: str | os.PathLike[str],
    sequence: Sequence,
    *,
    n_ctx: int,
    kv_type: str,
    model: str,
    compute: str,
    n_vocab: int,
) -> None:
    """Fill an empty sequence from a file.

    Parameters
    ----------
    path : str or path-like
        Written by `write_session`.
    sequence : Sequence
        Empty, as it still is after an error.
    n_ctx : int
        Most tokens that it may hold.
    kv_type, model, compute : str
        See `_Header`: what the session is for.
    n_vocab : int
        Limit of token ids.

    Raises
    ------
    CheckpointError
        If the file is missing, cut or damaged, or of another model, cache type or compute mode.
    ContextOverflow
        If it holds more tokens than `n_ctx`.
    OutOfMemory
        If there is no memory for its pages.
    """
    source = given_path(path)
    size = file_size(source)
    digest = hashlib.sha256()
    with _opened(source) as file:

        def read(n: int) -> bytes:
            data = file.read(n)
            if len(data) != n:
                raise CheckpointError(f"{source}: the file became shorter while it was read")
            digest.update(data)
            return data

        header = _read_header(read, size, source)
        for name, wanted in (("kv_type", kv_type), ("compute", compute), ("model", model)):
            found = getattr(header, name)
            if found != wanted:
                raise CheckpointError(f"{source}: {_DIFFERS[name].format(found, wanted)}")
        tokens = _checked_tokens(header.tokens, n_vocab, source)
        if len(tokens) > n_ctx:
            raise ContextOverflow(len(tokens), n_ctx, "load the session with a larger n_ctx")
        n_pages = pages_for(len(tokens))
        page_bytes = sequence.store.bytes_per_token * PAGE_SIZE
        expected_size = file.tell() + n_pages * page_bytes + _DIGEST_BYTES
        if size != expected_size:
            raise CheckpointError(
                f"{source}: the file has {size} bytes, but {len(tokens)} tokens of this model need "
                f"{expected_size}: it was cut or damaged"
            )
        try:
            sequence.reserve(len(tokens))
            for page in range(n_pages):
                for part, _ in _page(sequence, page):
                    part[...] = np.frombuffer(read(part.nbytes), part.dtype).reshape(part.shape)
            computed = digest.digest()
            if file.read(_DIGEST_BYTES) != computed:
                raise CheckpointError(f"{source}: the file is damaged: its SHA-256 does not agree")
            sequence.commit(tokens)
        finally:
            sequence.settle()


def _opened(source: Path) -> BinaryIO:
    try:
        return source.open("rb")
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read: {error.strerror}") from error


def _page(sequence: Sequence, entry: int) -> Iterator[tuple[npt.NDArray[Any], int]]:
    """Arrays of one page of each group of layers, and along which axis its positions lie."""
    for pool, table in zip(sequence.store.pools, sequence.tables, strict=True):
        # Keys lie along the last axis, values along the one before; so do the scales of each.
        yield from zip(pool.pages.page(table[entry]), (-1, -2, -1, -2), strict=False)


def _read_header(read: Callable[[int], bytes], size: int, source: Path) -> _Header:
    if size < _START.size:
        raise CheckpointError(f"{source}: {size} bytes are no session")
    magic, version, n = _START.unpack(read(_START.size))
    if magic != MAGIC:
        raise CheckpointError(f"{source}: this is no session: it begins with {magic!r}")
    if version != VERSION:
        raise CheckpointError(
            f"{source}: the session is of version {version}, but this rml reads version {VERSION}"
        )
    if n > min(size - _START.size, MAX_JSON_BYTES):
        raise CheckpointError(
            f"{source}: the header has {n} bytes, but the file {size}: it was cut or damaged"
        )
    found = parse_json(read(n), f"{source}: header")
    names = [field.name for field in fields(_Header)]
    if sorted(found) != sorted(names):
        raise CheckpointError(f"{source}: the header has {sorted(found)}, but {names} are needed")
    return _Header(**found)


def _checked_tokens(tokens: object, n_vocab: int, source: Path) -> list[int]:
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < n_vocab for token in tokens
    ):
        raise CheckpointError(f"{source}: the tokens are no list of ids from 0 to {n_vocab - 1}")
    return tokens

"""A session in a file: which model it is of, its tokens, and its keys and values.

=======  =====================  ===================================================================
bytes    content
=======  =====================  ===================================================================
8        ``RMLSESS`` and 0      what the file is
4        version                of this layout, and of what is inside a page: 3
4        n                      bytes of the header
n        header                 one JSON object, see `_Header`
...      pages                  those of the first group of layers in the order of positions, then
                                those of the next: keys, values, and the scales of both where the
                                cache is int8, as they lie in memory
32       SHA-256                of everything before it
=======  =====================  ===================================================================

The header says all sizes of what follows. Layers that keep something else (the last positions only,
a state) can be groups with other keys or of another kind: who does not know them refuses them.

Versions 1 and 2 are read, too. They know their model by samples of its tensors alone, so that one
with other weights in between would pass; this is logged. The header of version 1 has neither
``page_size``, which is 16, nor ``groups``: there was one, of all layers.

Numbers are little-endian, as on every processor that rml runs on. Everything is checked before it
is used, so a file that was cut, damaged or made for something else is refused; nothing in it is
code. It holds the text of a conversation, so only its owner may read it.

The digest at the end finds damage, not forgery: whoever writes a file can make a right one of any
content. A session from a stranger can have the model go on from any state he likes, which its
tokens need not show; it can run no code, reach no other memory, and take no more than its size.
"""

import hashlib
import json
import logging
import os
import reprlib
import struct
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rml._kernels.pages import PAGE_SIZE, pages_for
from rml.engine.sequence import Sequence
from rml.errors import CheckpointError, ContextOverflow, SaveError
from rml.files import Checkpoint
from rml.files.digests import tensors_digest
from rml.files.limits import MAX_JSON_BYTES
from rml.files.mapped import file_size
from rml.files.paths import given_path, readable_path
from rml.files.replacing import replacing
from rml.files.strict_json import parse_json
from rml.llm.config import ModelConfig

__all__ = [
    "STRICT_SINCE",
    "VERSION",
    "fingerprint",
    "read_session",
    "sampled_fingerprint",
    "write_session",
]

_log = logging.getLogger("rml")

MAGIC = b"RMLSESS\0"
VERSION = 3
STRICT_SINCE = 3  # the fingerprint is of all bytes, and of the tokenizer
_START = struct.Struct("<8sII")
_DIGEST_BYTES = hashlib.sha256().digest_size
_SAMPLE = 64  # bytes of each tensor, at three places, that tell models apart
_DIFFERS = {
    "kv_type": "the session was saved with kv_type={!r}, but this one has kv_type={!r}",
    "compute": "the session was computed with compute={!r}, but this model has compute={!r}",
    "model": "the session is of another model, or of another version of rml (fingerprint {}, "
    "of this model {})",
    "page_size": "the session has pages of {!r} positions, but this rml has pages of {!r}",
}
_SINCE_2 = {"page_size", "groups"}  # what a header of version 1 has not


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """What must agree, what follows, and the tokens.

    Attributes
    ----------
    model : str
        See `fingerprint`.
    compute, kv_type : str
        How the products were computed, and how keys and values are stored.
    page_size : int
        Positions of a page.
    groups : list of dict, or None
        Fields of a `_Group` each; None for version 1.
    tokens : list of int
        One for each position.
    """

    model: str
    compute: str
    kv_type: str
    page_size: int = 16
    groups: list[Any] | None = None
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Layers that keep keys and values of the same sizes, and which of their pages follow.

    Attributes
    ----------
    kind : str
        What they keep: ``"kv"`` is keys and values.
    n_layers, n_kv_heads, head_dim : int
        Sizes.
    page_bytes : int
        Bytes of a page of all these layers.
    first_page, n_pages : int
        Pages that are in the file: the first one has position ``first_page * page_size`` and
        those after it.
    """

    kind: str = "kv"
    n_layers: int
    n_kv_heads: int
    head_dim: int
    page_bytes: int
    first_page: int = 0
    n_pages: int


def fingerprint(
    checkpoint: Checkpoint, config: ModelConfig, n_ctx: int, tokenizer: str, *, n_threads: int = 1
) -> str:
    """Tell models apart: a digest of all that a session's numbers and ids depend on.

    Parameters
    ----------
    checkpoint : Checkpoint
        The weights, of which every byte counts.
    config : ModelConfig
        How they are used.
    n_ctx : int
        Context that the model was loaded for, on which one kind of rotary table depends.
    tokenizer : str
        Tells the tokenizer apart.
    n_threads : int
        Threads that read the weights where that was not done before.

    Raises
    ------
    CheckpointError
        If a file is gone or was changed.
    """
    # What is as usual is left out, so that a switch for a family to come changes nothing here.
    switches = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if getattr(config, field.name) != field.default
    }
    digest = hashlib.sha256(repr(sorted(switches.items())).encode())
    _add_ropes(digest, config, n_ctx)
    digest.update(f"{tokenizer} {tensors_digest(checkpoint, n_threads)}".encode())
    return digest.hexdigest()


def sampled_fingerprint(checkpoint: Checkpoint, config: ModelConfig, n_ctx: int) -> str:
    """Tell models apart as versions 1 and 2 do: by samples of every tensor."""
    digest = hashlib.sha256(repr(config).encode())
    _add_ropes(digest, config, n_ctx)
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(repr((name, tensor.shape, tensor.type)).encode())
        data = tensor.data
        for start in (0, len(data) // 2, max(0, len(data) - _SAMPLE)):
            digest.update(data[start : start + _SAMPLE].tobytes())
    return digest.hexdigest()


def _add_ropes(digest: "hashlib._Hash", config: ModelConfig, n_ctx: int) -> None:
    for rope in config.ropes(n_ctx):
        if rope is not None:
            digest.update(rope.inv_freq.tobytes())
            digest.update(repr(rope.attention_factor).encode())


def write_session(
    path: str | os.PathLike[str], sequence: Sequence, *, kv_type: str, model: str, compute: str
) -> None:
    """Write a file that `read_session` reads, all or nothing.

    Parameters
    ----------
    path : str or path-like
        The file; one that is there is replaced.
    sequence : Sequence
        Tokens, keys and values; it has them all.
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
    groups = _groups(sequence, len(tokens))
    header = _Header(
        model=model,
        compute=compute,
        kv_type=kv_type,
        page_size=PAGE_SIZE,
        groups=[asdict(group) for group in groups],
        tokens=tokens,
    )
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    given = given_path(path)
    try:
        with replacing(given) as file:
            digest = hashlib.sha256()

            def write(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            write(_START.pack(MAGIC, VERSION, len(text)) + text)
            for entry, part, axis in _stored(sequence, groups):
                used = len(tokens) - entry * PAGE_SIZE
                whole = part.copy()
                np.moveaxis(whole, axis, 0)[used:] = 0  # what was truncated is not told
                write(whole.tobytes())
            file.write(digest.digest())
    except SaveError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise SaveError(f"{given}: the session cannot be saved there: {why}") from error


def read_session(
    path: str | os.PathLike[str],
    sequence: Sequence,
    reserve: Callable[[Sequence, int], None],
    *,
    n_ctx: int,
    kv_type: str,
    model: Callable[[int], str],
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
    reserve : callable
        ``reserve(sequence, n)`` has it hold pages for `n` tokens.
    n_ctx : int
        Most tokens that it may hold.
    kv_type, compute : str
        See `_Header`: what the session is for.
    model : callable
        The model's fingerprint as files of a version have it, ``model(version)``.
    n_vocab : int
        Limit of token ids.

    Raises
    ------
    CheckpointError
        If the file is missing, cut or damaged, of another model, cache type or compute mode, or of
        a version that this rml does not read.
    ContextOverflow
        If it holds more tokens than `n_ctx`.
    OutOfMemory
        If there is no memory for its pages.
    """
    source = readable_path(path)
    size = file_size(source)
    digest = hashlib.sha256()
    with _opened(source) as file:

        def read(n: int) -> bytes:
            data = file.read(n)
            if len(data) != n:
                raise CheckpointError(f"{source}: the file became shorter while it was read")
            digest.update(data)
            return data

        version, header = _read_header(read, size, source)

        def require(name: str, found: object, wanted: object) -> None:
            if found != wanted:
                raise CheckpointError(f"{source}: {_DIFFERS[name].format(found, wanted)}")

        require("kv_type", header.kv_type, kv_type)
        require("compute", header.compute, compute)
        require("page_size", header.page_size, PAGE_SIZE)
        require("model", header.model, model(version))  # last, since it may take a while
        if version < STRICT_SINCE:
            _log.warning(
                "%s: the session was saved by an older rml, which told models apart by samples of "
                "their tensors: that this one has no other weights is not known",
                source,
            )
        tokens = _checked_tokens(header.tokens, n_vocab, source)
        if len(tokens) > n_ctx:
            raise ContextOverflow(len(tokens), n_ctx, "load the session with a larger n_ctx")
        groups = _groups(sequence, len(tokens))
        _check_groups(header.groups, groups, len(tokens), source)
        n_bytes = sum(group.n_pages * group.page_bytes for group in groups)
        expected_size = file.tell() + n_bytes + _DIGEST_BYTES
        if size != expected_size:
            raise CheckpointError(
                f"{source}: the file has {size} bytes, but {len(tokens)} tokens of this model need "
                f"{expected_size}: it was cut or damaged"
            )
        try:
            reserve(sequence, len(tokens))
            for _, part, _ in _stored(sequence, groups):
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


def _groups(sequence: Sequence, n_tokens: int) -> list[_Group]:
    """Describe what a file has of a sequence of so many tokens: all pages of all groups."""
    return [
        _Group(
            n_layers=pages.n_layers,
            n_kv_heads=pages.n_kv_heads,
            head_dim=pages.head_dim,
            page_bytes=pages.page_bytes,
            n_pages=pages_for(n_tokens),
        )
        for pages in (pool.pages for pool in sequence.store.pools)
    ]


def _stored(
    sequence: Sequence, groups: list[_Group]
) -> Iterator[tuple[int, npt.NDArray[Any], int]]:
    """Go through the arrays of a file: the entry of each, and along which axis positions lie."""
    for pool, table, group in zip(sequence.store.pools, sequence.tables, groups, strict=True):
        for entry in range(group.first_page, group.first_page + group.n_pages):
            # Keys lie along the last axis, values along the one before; so do the scales of each.
            for part, axis in zip(pool.pages.page(table[entry]), (-1, -2, -1, -2), strict=False):
                yield entry, part, axis


def _read_header(read: Callable[[int], bytes], size: int, source: Path) -> tuple[int, _Header]:
    if size < _START.size:
        raise CheckpointError(f"{source}: {size} bytes are no session")
    magic, version, n = _START.unpack(read(_START.size))
    if magic != MAGIC:
        raise CheckpointError(f"{source}: this is no session: it begins with {magic!r}")
    if not 1 <= version <= VERSION:
        raise CheckpointError(
            f"{source}: the session is of version {version}, but this rml reads versions 1 to "
            f"{VERSION}"
        )
    if n > min(size - _START.size, MAX_JSON_BYTES):
        raise CheckpointError(
            f"{source}: the header has {n} bytes, but the file {size}: it was cut or damaged"
        )
    found = parse_json(read(n), f"{source}: header")
    names = [field.name for field in fields(_Header)]
    if version == 1:
        names = [name for name in names if name not in _SINCE_2]
    _check_keys(found, names, f"{source}: the header")
    if version > 1 and not isinstance(found["groups"], list):
        raise CheckpointError(f"{source}: the groups are no list")
    return version, _Header(**found)


def _check_keys(found: dict[str, Any], names: Collection[str], what: str) -> None:
    for key in found:
        if key not in names:
            raise CheckpointError(f"{what} has {reprlib.repr(key)}, which this rml does not know")
    for name in names:
        if name not in found:
            raise CheckpointError(f"{what} has no {name!r}")


def _check_groups(
    found: list[Any] | None, wanted: list[_Group], n_tokens: int, source: Path
) -> None:
    """Compare what the header says with what this model has; only the latter is used then."""
    if found is None:
        if len(wanted) != 1:
            raise CheckpointError(
                f"{source}: the session is of version 1, which has one group of layers, but this "
                f"model has {len(wanted)}"
            )
        return
    if len(found) != len(wanted):
        raise CheckpointError(
            f"{source}: the session has {len(found)} groups of layers, but this model has "
            f"{len(wanted)}"
        )
    for i, (group, own) in enumerate(zip(found, wanted, strict=True)):
        what = f"{source}: group {i}"
        if not isinstance(group, dict):
            raise CheckpointError(f"{what} is no object, but {reprlib.repr(group)}")
        if group.get("kind", own.kind) != own.kind:  # first: another kind has other keys
            raise CheckpointError(
                f"{what} is of kind {reprlib.repr(group['kind'])}, but this model has {own.kind!r}"
            )
        values = asdict(own)
        _check_keys(group, values, what)
        for name, value in values.items():
            if type(group[name]) is not type(value) or group[name] != value:
                raise CheckpointError(
                    f"{what} has {name}={reprlib.repr(group[name])}, but {n_tokens} tokens of this "
                    f"model have {name}={value}"
                )


def _checked_tokens(tokens: object, n_vocab: int, source: Path) -> list[int]:
    if not isinstance(tokens, list) or not all(
        type(token) is int and 0 <= token < n_vocab for token in tokens
    ):
        raise CheckpointError(f"{source}: the tokens are no list of ids from 0 to {n_vocab - 1}")
    return tokens

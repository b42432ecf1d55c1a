"""How long a context may be: the model's own when nobody says, and no longer than fits.

A context that was asked for must fit at its full length into what is left of the memory, else it
is refused when the model is loaded or the session opened. One that nobody asked for is the model's,
cut to a share of the memory that the machine has; its pages take memory when they are used, so it
may turn out later that others have taken it. What limits of the process leave, such as those of
``ulimit -v``, is taken at once, so it cuts a context in any case.
"""

import logging

from rml import memory_room
from rml._kernels.pages import PAGE_SIZE
from rml.errors import ArgumentError
from rml.llm.config import ModelConfig
from rml.llm.memory import (
    LIST_BYTES_PER_TOKEN,
    MemoryBill,
    kv_bytes_per_token,
    largest_context,
)
from rml.llm.workspace import MAX_ROWS
from rml.ranges import checked, integer

__all__ = [
    "checked_context",
    "context_within",
    "default_context",
    "default_kv_memory",
    "fitting_context",
    "fitting_positions",
    "kv_bytes",
]

_log = logging.getLogger("rml")

# Weights, cache and work arrays of one session may take this share of the memory.
_SHARE = 0.75
# One session may take this share of what a process may still reserve: a second one, their work
# arrays and the threads need room, too.
_RESERVED_SHARE = 0.4
_MOST_KV_MEMORY = 1 << 44  # where no limit is known
# However little memory there is, a session holds this many positions.
_LEAST = 2048


def checked_context(
    n_ctx: int, config: ModelConfig, name: object, *, kv_type: str, n_batch: int = MAX_ROWS
) -> int:
    """Check a context that was asked for, and log where it goes beyond the training's.

    Parameters
    ----------
    n_ctx : int
        Positions.
    config : ModelConfig
        The model.
    name : object
        What the model is called in messages.
    kv_type : str
        How keys and values are stored.
    n_batch : int
        Tokens of a prompt that are evaluated at a time.

    Raises
    ------
    ArgumentError
        If it is no whole number from 1.
    OutOfMemory
        If keys, values and work arrays of its full length need more than there is now.
    """
    n: int = checked("n_ctx", n_ctx, integer(1, 2**63 - 1))
    room = memory_room.available()
    # The pages of the weights can be given back: they make a step slow, not impossible.
    bill = MemoryBill.of(config, weights=0, n_ctx=n, kv_type=kv_type, n_batch=n_batch)
    if bill.total > room.n_bytes:
        raise memory_room.no_room(
            f"a context of {n:,} tokens of {name}",
            bill.total,
            room,
            largest_context=largest_context(
                config, memory=room.n_bytes, weights=0, kv_type=kv_type, n_batch=n_batch, most=n
            ),
            advice="choose a smaller n_ctx",
        )
    if n > config.n_ctx_train:
        _log.warning(
            "%s: a context of %d is longer than the %d that the model was trained for",
            name,
            n,
            config.n_ctx_train,
        )
    return n


def fitting_context(
    config: ModelConfig, *, weights: int, kv_type: str, n_batch: int, in_full: bool = False
) -> tuple[int, memory_room.Room]:
    """Find the longest context, at most the training's, that the machine and the process hold.

    Parameters
    ----------
    config : ModelConfig
        The model.
    weights : int
        Bytes of its tensors, mapped already.
    kv_type : str
        How keys and values are stored.
    n_batch : int
        Tokens of a prompt that are evaluated at a time.
    in_full : bool
        All of the memory may be used, not only a share.

    Returns
    -------
    int, Room
        The context, 0 if none fits; and the limit that sets it.
    """
    machine, process = memory_room.total(), memory_room.reservable()
    shares = (1.0, 1.0) if in_full else (_SHARE, _RESERVED_SHARE)
    found = []
    for room, share, bytes_of_weights in zip((machine, process), shares, (weights, 0), strict=True):
        n_ctx = largest_context(
            config,
            memory=int(room.n_bytes * share),
            weights=bytes_of_weights,
            kv_type=kv_type,
            n_batch=n_batch,
        )
        if room is machine and not in_full:
            n_ctx = max(n_ctx, min(_LEAST, config.n_ctx_train))
        found.append((n_ctx, room))
    return min(found)


def default_context(config: ModelConfig, *, weights: int, kv_type: str, n_batch: int) -> int:
    """Find the context of a session for which none was asked.

    It is the context of training, or the longest one with which weights, cache and work arrays
    stay below three quarters of the memory of machine and control group, and cache and work arrays
    below two fifths of what limits of the process leave. Pages of the cache take no memory before
    they are used.

    Parameters
    ----------
    config, weights, kv_type, n_batch
        As in `fitting_context`.

    Raises
    ------
    OutOfMemory
        If limits of the process leave room for no context.
    """
    n_ctx, room = fitting_context(config, weights=weights, kv_type=kv_type, n_batch=n_batch)
    if not n_ctx:
        bill = MemoryBill.of(config, weights=0, n_ctx=1, kv_type=kv_type, n_batch=n_batch)
        raise memory_room.no_room("a session", bill.total, room, largest_context=0)
    if n_ctx < config.n_ctx_train:
        _log.info(
            "the context is %d tokens, since the %d of the model need more memory than there is, "
            "%.2f GB (%s); n_ctx sets another",
            n_ctx,
            config.n_ctx_train,
            room.n_bytes / 1e9,
            room.limit,
        )
    return n_ctx


def default_kv_memory(
    config: ModelConfig, *, n_ctx: int, kv_type: str, room: memory_room.Room | None = None
) -> int:
    """Find how many bytes keys and values of all sequences may take, when nobody says.

    With the lists and tables that grow with them three quarters of what there is, but always what
    one sequence of `n_ctx` tokens needs; memory is taken only when it is used.

    Parameters
    ----------
    config : ModelConfig
        The model.
    n_ctx : int
        Most tokens of a sequence.
    kv_type : str
        How keys and values are stored.
    room : Room, optional
        What there is; if not given, what can be had now.
    """
    if room is None:
        room = min(memory_room.available(), memory_room.total())
    # The lists that grow with the pages get their part of it.
    one = kv_bytes_per_token(config, kv_type)
    share = int(room.n_bytes * _SHARE) * one // (one + LIST_BYTES_PER_TOKEN)
    return max(min(share, _MOST_KV_MEMORY), kv_bytes(config, n_ctx=n_ctx, kv_type=kv_type))


def kv_bytes(config: ModelConfig, *, n_ctx: int, kv_type: str) -> int:
    """Bytes of the keys and values of `n_ctx` positions, in whole pages."""
    return MemoryBill.of(config, weights=0, n_ctx=n_ctx, kv_type=kv_type, n_batch=1).kv_cache


def fitting_positions(kv_memory: int, config: ModelConfig, *, kv_type: str) -> int:
    """How many positions of any sequences a budget holds, in whole pages."""
    return kv_memory // kv_bytes(config, n_ctx=1, kv_type=kv_type) * PAGE_SIZE


def context_within(
    kv_memory: int, n_ctx: int, config: ModelConfig, *, kv_type: str, given: bool
) -> int:
    """Cut a context to what a budget holds, so that no single request can outgrow it.

    Parameters
    ----------
    kv_memory : int
        Bytes that keys and values of all sequences may take.
    n_ctx : int
        Most tokens of a sequence.
    config : ModelConfig
        The model.
    kv_type : str
        How keys and values are stored.
    given : bool
        Whether the caller has asked for `n_ctx`; then it is not cut.

    Raises
    ------
    ArgumentError
        If `n_ctx` was asked for and does not fit, or nothing does.
    """
    fitting = fitting_positions(kv_memory, config, kv_type=kv_type)
    if fitting and n_ctx <= fitting:
        return n_ctx
    needed = kv_bytes(config, n_ctx=n_ctx, kv_type=kv_type)
    if given or not fitting:
        raise ArgumentError(
            f"kv_memory is {kv_memory:,} bytes, which hold {fitting:,} tokens, but a context of "
            f"{n_ctx:,} needs {needed:,} bytes: give less n_ctx or more kv_memory"
        )
    _log.info(
        "the context is %d tokens: kv_memory holds no more of the %d; it would take %d bytes",
        fitting,
        n_ctx,
        needed,
    )
    return fitting

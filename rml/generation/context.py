"""How long a context may be when nobody says: the model's own, if the memory holds it."""

import logging
import os
from pathlib import Path

from rml.generation.ranges import checked, integer
from rml.llm.config import ModelConfig
from rml.llm.memory import largest_context

__all__ = ["checked_context", "default_context", "memory_limit"]

_log = logging.getLogger("rml")

# Weights, cache and work arrays of one session may take this share of the memory.
_SHARE = 0.75
# However little memory there is, a session holds this many positions.
_LEAST = 2048


def checked_context(n_ctx: int, config: ModelConfig, name: object) -> int:
    """Check a context that was asked for, and log where it goes beyond the training's.

    Raises
    ------
    ArgumentError
        If it is no whole number from 1.
    """
    n: int = checked("n_ctx", n_ctx, integer(1))
    if n > config.n_ctx_train:
        _log.warning(
            "%s: a context of %d is longer than the %d that the model was trained for",
            name,
            n,
            config.n_ctx_train,
        )
    return n


def memory_limit(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the machine's, or its control group's."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # versions 2 and 1
        try:
            text = (control_group / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():  # else "max": no limit
            limit = min(limit, int(text))
    return limit


def default_context(config: ModelConfig, *, weights: int, kv_type: str, n_batch: int) -> int:
    """Find the context of a session for which none was asked.

    It is the context of training, or the longest one with which weights, cache and work arrays
    stay below three quarters of the memory. Pages of the cache take no memory before they are used.

    Parameters
    ----------
    config : ModelConfig
        The model.
    weights : int
        Bytes of its tensors.
    kv_type : str
        How keys and values are stored.
    n_batch : int
        Tokens of a prompt that are evaluated at a time.
    """
    memory = int(memory_limit() * _SHARE)
    fitting = largest_context(
        config, memory=memory, weights=weights, kv_type=kv_type, n_batch=n_batch
    )
    n_ctx = max(fitting, min(_LEAST, config.n_ctx_train))
    if n_ctx < config.n_ctx_train:
        _log.info(
            "the context is %d tokens, since the %d of the model need more than %.1f GB of memory; "
            "n_ctx sets another",
            n_ctx,
            config.n_ctx_train,
            memory / 1e9,
        )
    return n_ctx

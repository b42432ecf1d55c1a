"""Storing keys and values in the pages of a cache, the definition.

The layout of a page suits `attend` and is known to these two kernels and to `rml.llm.kv_cache`
alone. Position p of a sequence lives in page ``page_table[p // 16]``, slot ``p % 16``. Within a
page, a layer and a kv head, keys are stored dimension by dimension, so that one vector holds the
same dimension of sixteen keys; values are stored position by position.
"""

# T new tokens, G kv heads, D head width

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.checks import PAGE_SIZE, scale_group

__all__ = ["store_kv"]

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


def store_kv(
    k: F32,
    v: F32,
    k_pages: F32 | F16 | I8,
    v_pages: F32 | F16 | I8,
    page_table: I32,
    position: I64,
    *,
    layer: int,
    k_scales: F32 | None = None,
    v_scales: F32 | None = None,
    n_threads: int = 1,
) -> None:
    """Write the keys and values of new tokens at ``position[0]`` and after.

    A float16 page holds the nearest values, ties to even. An int8 page holds groups of dimensions
    as ``round(x / s)``, halves to even, with one scale ``s = max|x| / 127`` a group; the group is
    the largest power of two that divides D, at most 32. A group with a value that is not finite
    reads as NaN.

    Parameters
    ----------
    k, v : (T, G, D) float32
        Rotated keys, and values.
    k_pages : (n_pages, n_layers, G, D, 16) float32, float16 or int8
        Keys of all pages; one slot a token is written.
    v_pages : (n_pages, n_layers, G, 16, D), the same type
        Values of all pages.
    page_table : (n,) int32
        Page of every sixteen positions; read when the kernel runs.
    position : (1,) int64
        Position of the first token; read when the kernel runs.
    layer : int
        Layer whose part of the pages is written.
    k_scales : (n_pages, n_layers, G, D/group, 16) float32, for int8 pages only
        Scales of the keys.
    v_scales : (n_pages, n_layers, G, 16, D/group) float32, for int8 pages only
        Scales of the values.
    n_threads : int
        Threads that share tokens and heads; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, `layer` is out of range, or the page
        table does not lead every position to a page.
    """
    checks.store_kv(k, v, k_pages, v_pages, page_table, position, layer, k_scales, v_scales)
    checks.positions(page_table, position, len(k), 1, len(k_pages))
    positions = position[0] + np.arange(len(k))
    pages, slots = page_table[positions // PAGE_SIZE], positions % PAGE_SIZE
    if k_scales is None or v_scales is None:
        with np.errstate(over="ignore"):  # too large for float16 is infinite
            k_pages[pages, layer, :, :, slots] = k
            v_pages[pages, layer, :, slots] = v
        return
    group = scale_group(k.shape[2])
    k_pages[pages, layer, :, :, slots], k_scales[pages, layer, :, :, slots] = quantize(k, group)
    v_pages[pages, layer, :, slots], v_scales[pages, layer, :, slots] = quantize(v, group)


def quantize(x: F32, group: int) -> tuple[I8, F32]:
    """Split (T, G, D) values into int8 codes and the (T, G, D/group) scales of their groups."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scales = np.max(np.abs(groups), axis=-1) / np.float32(127)
    usable = np.isfinite(scales) & (scales > 0)
    divisors = np.where(usable, scales, np.float32(1))[..., None]
    codes = np.rint(np.where(usable[..., None], groups, 0) / divisors)
    # A scale below the smallest normal number is so coarse that a quotient can exceed 127.
    return np.clip(codes, -127, 127).astype(np.int8).reshape(x.shape), scales

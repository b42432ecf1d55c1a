"""Storing keys and values in the pages of a cache, the definition.

The layout of a page suits `attend` and is known to these two kernels
alone. Position p of a sequence lives in page ``page_table[p // 16]``, slot ``p % 16``. Within a
page, a layer and a kv head, keys are stored dimension by dimension, so that one vector holds the
same dimension of sixteen keys; values are stored position by position.
"""

# T rows of a step, G kv heads, D head width

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.pages import PAGE_SIZE, Pages, scale_group
from rml._kernels.step import Step

__all__ = ["store_kv"]

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]


def store_kv(
    k: F32,
    v: F32,
    pages: Pages,
    step: Step,
    *,
    layer: int,
    n_threads: int = 1,
) -> None:
    """Write the keys and values of a step's rows to the pages of their sequences.

    A float16 page holds the nearest values, ties to even. An int8 page holds groups of dimensions
    as ``round(x / s)``, halves to even, with one scale ``s = max|x| / 127`` a group; the group is
    the largest power of two that divides D, at most 32. A group with a value that is not finite
    reads as NaN.

    Parameters
    ----------
    k, v : (T, G, D) float32
        Rotated keys, and values, of which the first ``step.n_rows`` rows are read.
    pages : Pages
        Where they go; one slot a row is written.
    step : Step
        Sequence and position of every row, and the page tables; read when the kernel runs.
    layer : int
        Layer of the group whose part of the pages is written.
    n_threads : int
        Threads that share rows and heads; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, `layer` is out of range, or a page table
        does not lead every position to a page.
    """
    checks.store_kv(k, v, pages, step, layer)
    step.check(pages, 1)
    group = scale_group(pages.head_dim)
    for row in range(step.n_rows):
        table, position = step.table(pages.group, step.owners[row]), int(step.positions[row])
        page, slot = pages.page(int(table[position // PAGE_SIZE])), position % PAGE_SIZE
        keys, values = page[0][layer, :, :, slot], page[1][layer, :, slot]  # (G, D) views
        if len(page) == 2:
            with np.errstate(over="ignore"):  # too large for float16 is infinite
                keys[...], values[...] = k[row], v[row]
        else:
            keys[...], page[2][layer, :, :, slot] = quantize(k[row], group)
            values[...], page[3][layer, :, slot] = quantize(v[row], group)


def quantize(x: F32, group: int) -> tuple[I8, F32]:
    """Split (G, D) values into int8 codes and the (G, D/group) scales of their groups."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    scales = np.max(np.abs(groups), axis=-1) / np.float32(127)
    usable = np.isfinite(scales) & (scales > 0)
    divisors = np.where(usable, scales, np.float32(1))[..., None]
    codes = np.rint(np.where(usable[..., None], groups, 0) / divisors)
    # A scale below the smallest normal number is so coarse that a quotient can exceed 127.
    return np.clip(codes, -127, 127).astype(np.int8).reshape(x.shape), scales

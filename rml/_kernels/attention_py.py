"""Attention over a paged cache, the definition: every score, a softmax, a weighted sum.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1, with several query heads to a
kv head (Ainslie et al., "GQA", 2023) and a sliding window (Beltagy et al., "Longformer", 2020).
"""

# T new tokens, S positions, H query heads, G kv heads, R = H / G, D head width

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.checks import PAGE_SIZE

__all__ = ["attend"]

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


def attend(
    q: F32,
    k_pages: F32 | F16 | I8,
    v_pages: F32 | F16 | I8,
    page_table: I32,
    position: I64,
    out: F32,
    *,
    layer: int,
    scale: float,
    window: int = 0,
    k_scales: F32 | None = None,
    v_scales: F32 | None = None,
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Mix the values that each new token's query heads attend to.

    The token at position p attends to positions j <= p and, with a window, j > p - window: to the
    last `window` positions, its own included. Query head h reads kv head ``h // R``.

    ``out[t, h] = sum_j softmax_j(scale * q[t, h] @ k[j]) * v[j]``

    A result depends on the query, on the keys and values that it attends to and on its position:
    not on the tokens beside it, nor on anything else that lies in the pages.

    Parameters
    ----------
    q : (T, H, D) float32
        Rotated queries of consecutive positions.
    k_pages : (n_pages, n_layers, G, D, 16) float32, float16 or int8
        Keys, as `store_kv` writes them; those of the new tokens are there already.
    v_pages : (n_pages, n_layers, G, 16, D), the same type
        Values.
    page_table : (n,) int32
        Page of every sixteen positions; read when the kernel runs.
    position : (1,) int64
        Position of the first query; read when the kernel runs.
    out : (T, H, D) float32
        Result; may be `q` itself.
    layer : int
        Layer whose part of the pages is read.
    scale : float
        Factor of every score, ``1 / sqrt(D)`` in most models.
    window : int
        Positions that a query sees, 0 for all.
    k_scales : (n_pages, n_layers, G, D/group, 16) float32, for int8 pages only
        Scales of the keys.
    v_scales : (n_pages, n_layers, G, 16, D/group) float32, for int8 pages only
        Scales of the values.
    scratch : Scratch, optional
        Memory of the twin, to be used again by the next call.
    n_threads : int
        Threads that share the queries and heads; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, H is not a multiple of G, `layer`,
        `scale` or `window` is out of range, or the page table does not lead every position that
        is attended to to a page.
    """
    checks.attend(
        q, k_pages, v_pages, page_table, position, out, layer, scale, window, k_scales, v_scales
    )
    (n_tokens, _, head_dim), n_kv_heads = q.shape, k_pages.shape[2]
    checks.positions(page_table, position, n_tokens, window, len(k_pages))
    first = int(position[0])
    start = max(0, first - window + 1) if window else 0  # oldest position that any query sees
    start -= start % PAGE_SIZE
    pages = page_table[start // PAGE_SIZE : -(-(first + n_tokens) // PAGE_SIZE)]
    keys = _widen(k_pages[pages, layer], k_scales, pages, layer, axis=2)  # (n, G, D, 16)
    values = _widen(v_pages[pages, layer], v_scales, pages, layer, axis=3)  # (n, G, 16, D)
    n = len(pages) * PAGE_SIZE
    keys = keys.transpose(1, 2, 0, 3).reshape(n_kv_heads, head_dim, n)  # (G, D, S)
    values = values.transpose(1, 0, 2, 3).reshape(n_kv_heads, n, head_dim)  # (G, S, D)

    for t in range(n_tokens):
        stop = first + t + 1 - start
        seen = slice(max(0, stop - window) if window else 0, stop)
        query = q[t].reshape(n_kv_heads, -1, head_dim)  # (G, R, D)
        scores = np.float32(scale) * np.einsum("grd,gds->grs", query, keys[:, :, seen])
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        out[t] = np.einsum("grs,gsd->grd", weights, values[:, seen]).reshape(q[t].shape)


def _widen(x: F32 | F16 | I8, scales: F32 | None, pages: I32, layer: int, *, axis: int) -> F32:
    """Values of some pages as float32; `axis` is that of the dimensions."""
    if scales is None:
        return x.astype(np.float32)
    per_page = scales[pages, layer]
    with np.errstate(invalid="ignore"):  # slots not in use may hold anything
        values: F32 = x * np.repeat(per_page, x.shape[axis] // per_page.shape[axis], axis=axis)
    return values

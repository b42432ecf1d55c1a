"""Attention over a paged cache, the definition: every score, a softmax, a weighted sum.

Vaswani et al., "Attention Is All You Need" (2017), section 3.2.1, with several query heads to a
kv head (Ainslie et al., "GQA", 2023) and a sliding window (Beltagy et al., "Longformer", 2020).
"""

# T rows of a step, S positions, H query heads, G kv heads, R = H / G, D head width

import numpy as np
import numpy.typing as npt

from rml._kernels import checks
from rml._kernels.pages import PAGE_SIZE, Pages
from rml._kernels.step import Step

__all__ = ["attend"]

F32 = npt.NDArray[np.float32]


def attend(
    q: F32,
    pages: Pages,
    step: Step,
    out: F32,
    *,
    layer: int,
    scale: float,
    window: int = 0,
    scratch: object = None,
    n_threads: int = 1,
) -> None:
    """Mix the values that each row's query heads attend to.

    A row at position p attends to positions j <= p of its own sequence and, with a window, to
    j > p - window: to the last `window` positions, its own included. Query head h reads kv head
    ``h // R``.

    ``out[t, h] = sum_j softmax_j(scale * q[t, h] @ k[j]) * v[j]``

    A result depends on the query, on the keys and values that it attends to and on its position:
    not on the rows beside it, nor on anything else that lies in the pages.

    Parameters
    ----------
    q : (T, H, D) float32
        Rotated queries, of which the first ``step.n_rows`` rows are read.
    pages : Pages
        Keys and values, as `store_kv` writes them; those of the step's rows are there already.
    step : Step
        Sequence and position of every row, and the page tables; read when the kernel runs.
    out : (T, H, D) float32
        Result; may be `q` itself. Rows that the step does not have stay as they are.
    layer : int
        Layer of the group whose part of the pages is read.
    scale : float
        Factor of every score, ``1 / sqrt(D)`` in most models.
    window : int
        Positions that a query sees, 0 for all.
    scratch : Scratch, optional
        Memory of the twin, to be used again by the next call.
    n_threads : int
        Threads that share the queries and heads; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout, H is not a multiple of G, `layer`,
        `scale` or `window` is out of range, or a page table does not lead every position that
        is attended to to a page.
    """
    checks.attend(q, pages, step, out, layer, scale, window)
    step.check(pages, window)
    for s in range(step.n_sequences):
        rows = step.rows_of(s)
        first = int(step.positions[rows.start])
        table = step.table(pages.group, s)
        _attend_sequence(q[rows], pages, table, first, out[rows], layer, scale, window)


def _attend_sequence(
    q: F32,
    pages: Pages,
    table: npt.NDArray[np.int32],
    first: int,
    out: F32,
    layer: int,
    scale: float,
    window: int,
) -> None:
    """Attend the rows of one sequence, the first of which is at position `first`."""
    n_tokens, n_kv_heads, head_dim = len(q), pages.n_kv_heads, pages.head_dim
    start = max(0, first - window + 1) if window else 0  # oldest position that any query sees
    start -= start % PAGE_SIZE
    used = table[start // PAGE_SIZE : -(-(first + n_tokens) // PAGE_SIZE)]
    keys, values = pages.gather(used, layer)  # (n, G, D, 16), (n, G, 16, D)
    n = len(used) * PAGE_SIZE
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

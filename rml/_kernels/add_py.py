"""Addition to the residual stream, the definition.

Needed where a branch is normalized once more before it is added (sandwich norms); elsewhere
`accumulate` adds a product straight to the stream.
"""

import numpy as np
import numpy.typing as npt

from rml._kernels import checks

__all__ = ["add"]

F32 = npt.NDArray[np.float32]


def add(branch: F32, x: F32, *, n_threads: int = 1) -> None:
    """Add a branch to the residual stream: ``x += branch``.

    Parameters
    ----------
    branch : (T, D) float32
        What is added.
    x : (T, D) float32
        The residual stream; added to in place.
    n_threads : int
        Threads that share the rows; the result does not depend on it.

    Raises
    ------
    ArgumentError
        If an array has the wrong type, shape or layout.
    """
    checks.add(branch, x)
    x += branch

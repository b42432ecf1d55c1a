"""What every kernel accepts: one set of checks for a definition and its twin.

Both call the same function, so they accept and refuse the same arguments with the same words.
Nothing is written before the checks have passed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rml.errors import ArgumentError

Array = npt.NDArray[Any]


def array(
    name: str,
    value: object,
    shape: Sequence[int | None],
    dtype: npt.DTypeLike = np.float32,
    *,
    writable: bool = False,
) -> None:
    """Require a C-contiguous array.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        What the caller gave.
    shape : sequence of int or None
        Expected shape; None stands for any length.
    dtype : numpy dtype
        Expected type, exactly: nothing is converted, since a converted copy of an output would
        be lost.
    writable : bool
        Whether the kernel writes to it.

    Raises
    ------
    ArgumentError
        If the array differs in type, shape, layout or writability.
    """
    wanted = np.dtype(dtype)
    if not isinstance(value, np.ndarray):
        raise ArgumentError(f"{name} is {type(value).__name__}, but a numpy array is needed")
    if value.dtype != wanted:
        raise ArgumentError(f"{name} is {value.dtype}, but {wanted} is needed")
    fits = value.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        text = ", ".join("any" if n is None else str(n) for n in shape)
        raise ArgumentError(f"{name} has shape {value.shape}, but ({text}) is needed")
    if not value.flags.c_contiguous:
        raise ArgumentError(f"{name} is not C-contiguous")
    if writable and not value.flags.writeable:
        raise ArgumentError(f"{name} is read-only, but the kernel writes to it")


def rms_norm(x: Array, weight: Array, out: Array, eps: float) -> None:
    """Check the arguments of `rms_norm`."""
    array("x", x, (None, None))
    array("weight", weight, (x.shape[1],))
    array("out", out, x.shape, writable=True)
    if not eps > 0:
        raise ArgumentError(f"eps is {eps}, but must be positive")

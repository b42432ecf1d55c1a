"""Small public functions: what this build of rml is, and stored weights as numbers."""

import platform
from typing import Any

import numpy as np
import numpy.typing as npt

from rml import __version__, _kernels
from rml._kernels.block_formats import FORMATS
from rml._kernels.threads import default_threads
from rml.errors import ArgumentError
from rml.memory_room import out_of_memory

__all__ = ["dequantize", "info"]


def info() -> dict[str, Any]:
    """Say what runs here, and why.

    Returns
    -------
    dict
        ``version``; ``backend``, ``"cython"`` or ``"python"``; ``isa``, the instruction-set level
        of the compiled kernels; ``openmp``, whether they can use threads; ``n_threads``, what a
        model gets by default, and ``n_threads_why``; ``python``, ``numpy`` and ``platform``.
    """
    n_threads, why = default_threads()
    return {
        "version": __version__,
        "backend": _kernels.BACKEND,
        "isa": _kernels.ISA,
        "openmp": _kernels.OPENMP,
        "n_threads": n_threads,
        "n_threads_why": why,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


@out_of_memory("expanded weights")
def dequantize(data: bytes | npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
    """Expand stored weights.

    Parameters
    ----------
    data : bytes or ndarray of uint8
        Whole blocks, one after the other.
    type_name : str
        GGUF's name of the type, such as ``"Q4_K"``.

    Returns
    -------
    ndarray of float32, shape (n,)
        The values, exactly as the format defines them.

    Raises
    ------
    ArgumentError
        If the type is unknown or no weight format, or `data` is no whole number of blocks.

    Examples
    --------
    >>> dequantize(bytes([0, 60, 1, 255] + 30 * [0]), "Q8_0")[:3]
    array([ 1., -1.,  0.], dtype=float32)
    """
    _kernels.checks.known_format(type_name)
    if isinstance(data, np.ndarray) and data.dtype == np.uint8:
        raw = np.ascontiguousarray(data).reshape(-1)
    elif isinstance(data, bytes | bytearray | memoryview):
        raw = np.frombuffer(data, np.uint8)
    else:
        raise ArgumentError(f"data must be bytes or an array of uint8, not {type(data).__name__}")
    block = FORMATS[type_name]
    n_blocks, rest = divmod(len(raw), block.n_bytes)
    if rest:
        raise ArgumentError(
            f"{len(raw)} bytes are no whole number of {type_name} blocks of {block.n_bytes} bytes"
        )
    out = np.empty(n_blocks * block.length, np.float32)
    _kernels.dequantize(raw, type_name, out)
    return out

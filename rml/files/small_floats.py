"""Floating-point numbers of 8 bits, as tables of their 256 values.

A code is a sign, an exponent E and a mantissa M. With e bits of exponent, m of mantissa and a bias
b, its value is ``2**(E - b) * (1 + M / 2**m)``, or ``2**(1 - b) * M / 2**m`` where E is 0. The
types differ in what they do with the codes at the ends:

===============  =====  ==========================================================================
type             e m b  codes of their own
===============  =====  ==========================================================================
F8_E4M3          4 3 7  largest exponent and mantissa: NaN; no infinity, so that 448 is the largest
F8_E5M2          5 2 15 as IEEE 754: largest exponent: infinity where M is 0, else NaN
F8_E4M3FNUZ      4 3 8  minus zero: NaN; no infinity and no other NaN
F8_E5M2FNUZ      5 2 16 the same
F8_E8M0          8 0    no sign, ``2**(E - 127)``; largest exponent: NaN
===============  =====  ==========================================================================

Sources: OCP 8-bit Floating Point Specification and OCP Microscaling Formats; for the FNUZ types,
https://arxiv.org/abs/2206.02915
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALL_FLOATS"]

F32 = NDArray[np.float32]
_CODES = np.arange(256)


def _values(m: int, bias: int) -> F32:
    """Values by the formula alone, of every code."""
    exponent, mantissa = (_CODES & 0x7F) >> m, _CODES & ((1 << m) - 1)
    size = np.where(exponent, (1 << m) + mantissa, mantissa)
    signed = np.where(_CODES & 0x80, -1.0, 1.0) * size
    values: F32 = np.ldexp(signed, np.maximum(exponent, 1) - bias - m).astype(np.float32)
    return values


def _e4m3() -> F32:
    table = _values(3, 7)
    table[[0x7F, 0xFF]] = np.nan
    return table


def _e5m2() -> F32:
    table = _values(2, 15)
    table[[0x7C, 0xFC]] = np.inf, -np.inf
    table[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
    return table


def _fnuz(m: int, bias: int) -> F32:
    table = _values(m, bias)
    table[0x80] = np.nan
    return table


def _e8m0() -> F32:
    values = np.ldexp(1.0, _CODES - 127)
    values[0xFF] = np.nan
    return values.astype(np.float32)


def _read_only(make: Callable[..., F32], *sizes: int) -> F32:
    table = make(*sizes)
    table.flags.writeable = False
    return table


# Name in safetensors -> value of each code.
SMALL_FLOATS: dict[str, F32] = {
    "F8_E4M3": _read_only(_e4m3),
    "F8_E5M2": _read_only(_e5m2),
    "F8_E4M3FNUZ": _read_only(_fnuz, 3, 8),
    "F8_E5M2FNUZ": _read_only(_fnuz, 2, 16),
    "F8_E8M0": _read_only(_e8m0),
}

"""Instruction-set levels: their names, and what the compiler is told for each.

One table serves the build, which compiles every level of the machine it builds for, and the
selection at import, which takes the best one that the processor runs. `setup.py` reads this file
before rml is installed, so it imports the standard library alone.

Levels are listed by kind of machine, each one including those before it. The first needs nothing
beyond what every processor of that kind has.
"""

import platform
import sys

__all__ = ["LEVELS", "machine"]

_AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"]
_AVX512VNNI = [
    *_AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512vnni",
    "-mprefer-vector-width=512",
]

LEVELS: dict[str, dict[str, list[str]]] = {
    "x86_64": {"base": [], "avx2": _AVX2, "avx512vnni": _AVX512VNNI},
    "aarch64": {"neon": [], "dotprod": ["-march=armv8.2-a+dotprod+fp16"]},
    "other": {"base": []},
}

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def machine(name: str | None = None) -> str:
    """Say which part of the table applies.

    Parameters
    ----------
    name : str, optional
        An operating system's word for the machine, such as ``"arm64"``; by default that of this
        one.

    Returns
    -------
    str
        A key of `LEVELS`; ``"other"`` as well for a 32-bit Python on a 64-bit processor.
    """
    if sys.maxsize < 2**32:
        return "other"
    return _MACHINES.get((platform.machine() if name is None else name).lower(), "other")

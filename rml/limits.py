"""What this machine can do at most: read memory, and multiply and add.

A step of a model reads every weight and multiplies it with the inputs. How fast it can be is set by
three rates that a processor has whatever runs on it: bytes that its threads read from a mapped file
(decoding waits for them), products of small integers (a prompt in ``compute="int8x2"`` or
``"int8"`` waits for them), and float32 products (``compute="f32"``, plain numbers, attention).
`measure` finds them with loops that do nothing else, so that a time can be given as a share of
what is possible: see `Plan.profile` in `rml.llm.plan`.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from rml import _kernels
from rml._kernels.threads import resolve_threads, running_threads
from rml.errors import ArgumentError, RmlError

__all__ = ["Limits", "cache_bytes", "measure"]

RUNS = 7  # the best one counts
READ_AT_MOST = 1_000_000_000  # bytes of a file
READ_AT_LEAST = 64_000_000  # bytes a run, over and over if the file has less
SECONDS = 0.02  # a run of products
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates that no kernel can exceed, with a number of threads.

    Attributes
    ----------
    gigabytes_per_second : float
        Bytes read from the pages of a mapped file, 1e9 a second.
    int8_gigaproducts_per_second : float
        Products of 8-bit integers, each added to a sum of 32 bits, 1e9 a second. Where a level has
        no such instruction they are products of 16-bit integers.
    int8x2_gigaproducts_per_second : float
        Products of 8-bit with 16-bit integers: half as many, or as many where the others are of
        16 bits anyway.
    f32_gigaproducts_per_second : float
        Products of float32 numbers, each added to a sum, 1e9 a second; fused where the level has
        that.
    n_threads : int
        Threads that were measured together.
    isa : str
        Instruction-set level of the loops, that of the kernels.
    """

    gigabytes_per_second: float
    int8_gigaproducts_per_second: float
    int8x2_gigaproducts_per_second: float
    f32_gigaproducts_per_second: float
    n_threads: int
    isa: str

    def seconds(self, n_bytes: float, products: Mapping[str, float]) -> float:
        """Return the least time for work: that of reading or of multiplying, whichever is longer.

        Parameters
        ----------
        n_bytes : float
            Bytes to be read from memory.
        products : mapping of str to float
            Multiplications of each kind: ``"int8"``, ``"int8x2"``, ``"f32"``.
        """
        rates = {
            "int8": self.int8_gigaproducts_per_second,
            "int8x2": self.int8x2_gigaproducts_per_second,
            "f32": self.f32_gigaproducts_per_second,
        }
        reading = n_bytes / self.gigabytes_per_second
        multiplying = sum(n / rates[kind] for kind, n in products.items())
        return max(reading, multiplying) / 1e9

    def __str__(self) -> str:
        threads = "1 thread" if self.n_threads == 1 else f"{self.n_threads} threads"
        return (
            f"{threads}, {self.isa}: {self.gigabytes_per_second:.1f} GB/s read, "
            f"{self.int8_gigaproducts_per_second:.0f} G int8 products/s, "
            f"{self.f32_gigaproducts_per_second:.0f} G float32 products/s"
        )


def measure(n_threads: int | None = None, path: str | os.PathLike[str] | None = None) -> Limits:
    """Measure what the machine can do, in a second or two.

    Parameters
    ----------
    n_threads : int, optional
        Threads; as many as a model gets if not given.
    path : path, optional
        File whose mapped pages are read, its first gigabyte at most. A model's own file tells how
        fast that model can be read: one that fits the last-level cache is read faster. If not
        given, a temporary file is written that does not fit there (a gigabyte at most, less where
        disk or memory is small); it is gone afterwards.

    Returns
    -------
    Limits
        The best of several runs each. Other programs that run meanwhile make them smaller.

    Raises
    ------
    RmlError
        In reference mode: Python's definitions say nothing about the machine.
    ArgumentError
        If `n_threads` is no whole number from 1, or `path` is no file or empty.
    """
    twins: Any = _kernels.TWINS
    if twins is None:
        raise RmlError(
            "limits are measured by compiled code, and this is the reference mode; unset RML_PURE, "
            "or install rml with a C compiler (rml info says what runs here)"
        )
    threads = running_threads(resolve_threads(n_threads))
    with ExitStack() as stack:
        if path is None:
            data = _mapped(stack.enter_context(_temporary_file()))
        else:
            file = Path(path)
            if not file.is_file() or not file.stat().st_size:
                raise ArgumentError(f"{file}: a file with something in it is needed, to be read")
            data = _mapped(stack.enter_context(file.open("rb")))
        reading = _read_rate(twins, data, threads)
    multiplying = _product_rate(twins.multiply_int8, threads)
    return Limits(
        gigabytes_per_second=reading / 1e9,
        int8_gigaproducts_per_second=multiplying / 1e9,
        int8x2_gigaproducts_per_second=multiplying / 1e9 / twins.INT8X2_PRODUCTS,
        f32_gigaproducts_per_second=_product_rate(twins.multiply_f32, threads) / 1e9,
        n_threads=threads,
        isa=_kernels.ISA,
    )


def cache_bytes() -> int | None:
    """Bytes of the last-level cache, None where the system does not say."""
    sizes = []
    for entry in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = entry.read_text(encoding="ascii").strip()
        if text[:-1].isdigit() and text[-1] in "KM":
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20}[text[-1]])
    return max(sizes, default=None)


def _temporary_file() -> IO[bytes]:
    """Write a file without a name, three times the last-level cache if it may be that large."""
    cache = cache_bytes()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    n_bytes = min(
        READ_AT_MOST if cache is None else max(3 * cache, READ_AT_LEAST),
        READ_AT_MOST,
        shutil.disk_usage(tempfile.gettempdir()).free // 2,
        memory // 4,
    )
    block = np.random.default_rng(0).bytes(BLOCK)  # not zeros, which a file system may not store
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    try:
        for _ in range(max(1, n_bytes // BLOCK)):
            file.write(block)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _mapped(file: IO[bytes]) -> npt.NDArray[np.uint8]:
    n_bytes = min(file.seek(0, os.SEEK_END), READ_AT_MOST)
    return np.memmap(file, np.uint8, "r", shape=(n_bytes,))


def _read_rate(twins: Any, data: npt.NDArray[np.uint8], n_threads: int) -> float:  # noqa: ANN401
    """Bytes a second."""
    times = -(-READ_AT_LEAST // len(data))

    def read() -> int:
        for _ in range(times):
            twins.read_words(data, n_threads=n_threads)
        return times * len(data)

    read()  # the pages are there now
    return _best_rate(read)


def _product_rate(multiply: Callable[..., int], n_threads: int) -> float:
    """Products a second."""
    rounds, seconds = 1000, 0.0
    while seconds < SECONDS:  # one thread alone: with others, waiting would count as work
        rounds *= 2
        start = time.perf_counter()
        multiply(rounds)
        seconds = time.perf_counter() - start
    return _best_rate(lambda: multiply(rounds, n_threads=n_threads))


def _best_rate(work: Callable[[], int]) -> float:
    """Work done a second, in the best of several runs."""
    best = 0.0
    for _ in range(RUNS):
        start = time.perf_counter()
        done = work()
        best = max(best, done / (time.perf_counter() - start))
    return best

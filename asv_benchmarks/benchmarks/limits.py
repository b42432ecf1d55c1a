"""What the machine can do at most: the rates that the other benchmarks are to be held against.

When all benchmarks are slower than they were, look here first: a shared machine has bad hours.
"""

from benchmarks.common import THREADS, n_threads_of


class Limits:
    """Reading mapped pages that do not fit the last-level cache; products in registers."""

    params = [THREADS]
    param_names = ["threads"]
    timeout = 120

    def setup_cache(self):
        from rml import _kernels, limits

        if _kernels.TWINS is None:
            return {}
        return {threads: limits.measure(n_threads_of(threads)) for threads in THREADS}

    def setup(self, found, threads):
        if not found:
            # What asv takes as "skip this one".
            raise NotImplementedError("reference mode says nothing about the machine")

    def track_read(self, found, threads):
        return round(found[threads].gigabytes_per_second, 2)

    track_read.unit = "GB/s"

    def track_int8(self, found, threads):
        return round(found[threads].int8_gigaproducts_per_second, 1)

    track_int8.unit = "G products of 8-bit integers/s"

    def track_f32(self, found, threads):
        return round(found[threads].f32_gigaproducts_per_second, 1)

    track_f32.unit = "G products of float32 numbers/s"

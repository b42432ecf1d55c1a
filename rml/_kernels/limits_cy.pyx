"""What the machine can do at most, to hold kernels against: see rml/limits.py.

These are no kernels: they compute nothing but the proof that the work was done.
"""

cdef extern from "peak_rates.h" nogil:
    enum: RML_INT8X2_PRODUCTS
    uint32_t rml_read_words(const uint8_t *p, Py_ssize_t n)
    int64_t rml_multiply_int8(int64_t rounds)
    int64_t rml_multiply_f32(int64_t rounds)


# Of the machine's products, how many one with inputs rounded to 16 bits needs.
INT8X2_PRODUCTS = int(RML_INT8X2_PRODUCTS)


def read_words(data, *, int n_threads=1):
    """Read all of `data`, (n,) uint8, each thread a share; return the sum of its 32-bit words.

    Words are in the machine's order, the sum is modulo 2**32; up to three bytes at the end of
    `data` belong to no word.
    """
    cdef const uint8_t *p
    cdef Py_ssize_t n_words
    cdef uint32_t total = 0
    cdef int thread
    checks.array("data", data, (None,), "uint8")
    p = _u8(data)
    n_words = data.shape[0] // 4
    for thread in prange(n_threads, nogil=True, schedule="static", chunksize=1, num_threads=n_threads):
        total += rml_read_words(p + 4 * _share(n_words, thread, n_threads),
                                _share(n_words, thread + 1, n_threads) - _share(n_words, thread, n_threads))
    return total


def multiply_int8(int64_t rounds, *, int n_threads=1):
    """Multiply 8-bit integers in registers, `rounds` rounds a thread.

    Where a level has no dot product of 8-bit integers, 16-bit ones, as its kernels do.

    Returns
    -------
    int
        Multiplications of all threads, each of which was also an addition.
    """
    cdef int64_t total = 0
    cdef int thread
    for thread in prange(n_threads, nogil=True, schedule="static", chunksize=1, num_threads=n_threads):
        total += rml_multiply_int8(rounds)
    return total


def multiply_f32(int64_t rounds, *, int n_threads=1):
    """Multiply and add float32 numbers in registers, as `multiply_int8` does integers."""
    cdef int64_t total = 0
    cdef int thread
    for thread in prange(n_threads, nogil=True, schedule="static", chunksize=1, num_threads=n_threads):
        total += rml_multiply_f32(rounds)
    return total

"""How a compiled kernel is called: checked once, then run alone or as a step of a program.

Every twin follows the same three storeys:

1. a `def` function with the definition's signature, for tests and single use;
2. a subclass of `Op`, which checks the arguments once and keeps raw pointers to them; and
3. one or more `noexcept nogil` bodies, each computing the items ``start <= i < stop`` of a stage.

Items of one stage are independent of each other and each is computed by one thread in one order,
so the number of threads never changes a bit. A stage begins when the one before has ended.
"""

from cython.parallel cimport prange
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset
cimport numpy as cnp

from rml._kernels import checks
from rml._kernels.pages import scale_group
from rml.errors import ArgumentError

cnp.import_array()

cdef extern from *:
    """
    #ifdef _OPENMP
    #include <omp.h>
    enum { RML_OPENMP = 1 };
    #else
    enum { RML_OPENMP = 0 };
    #endif
    """
    int RML_OPENMP

OPENMP = bool(RML_OPENMP)

# thread: 0 <= thread < number of threads that run the stage, for per-thread scratch memory.
ctypedef void (*Body)(void *args, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil

cdef struct Stage:
    Body body
    Py_ssize_t items

cdef enum:
    MAX_STAGES = 8


cdef inline Py_ssize_t _share(Py_ssize_t items, int thread, int n_threads) noexcept nogil:
    """First item of a thread's contiguous share."""
    return items * thread // n_threads


cdef class Scratch:
    """Memory that kernels use while they run and that nobody reads afterwards.

    One kernel at a time may use it. It grows to the largest need and never shrinks, so a step
    that repeats allocates nothing.
    """

    cdef char *base       # 64-byte aligned
    cdef void *allocation
    cdef readonly Py_ssize_t nbytes

    def __dealloc__(self):
        free(self.allocation)

    cdef int reserve(self, Py_ssize_t nbytes) except -1:
        """Have at least `nbytes`; what was in it may be gone."""
        cdef void *allocation
        if nbytes > self.nbytes:
            allocation = malloc(nbytes + 64)
            if allocation == NULL:
                raise MemoryError(f"no memory for {nbytes} bytes of scratch")
            free(self.allocation)
            self.allocation = allocation
            self.base = <char *>((<size_t>allocation + 63) & ~<size_t>63)
            self.nbytes = nbytes
        return 0


cdef class Op:
    """One kernel call whose arguments are checked and fixed; calling it computes it again.

    The arrays may change their contents between calls, never their place. `args` points into the
    subclass; `owners` keeps every array alive.
    """

    cdef Stage stages[MAX_STAGES]
    cdef int n_stages
    cdef void *args
    cdef object owners
    # Scratch memory: `shared` bytes for all threads, then `per_thread` bytes for each.
    cdef Scratch scratch
    # Whether items and memory depend on more than the number of rows, and `prepare` is to be asked
    # before every run.
    cdef bint moves
    cdef Py_ssize_t scratch_shared
    cdef Py_ssize_t scratch_per_thread
    # Bytes of the records that it holds beside the arrays.
    cdef readonly Py_ssize_t nbytes

    @staticmethod
    def needs(Py_ssize_t n, *args, **kwargs):
        """Memory of an operation with these arguments that computes `n` rows.

        Only shapes and types of the arguments are looked at; the arrays need not hold anything.

        Returns
        -------
        records : int
            Bytes that it holds for as long as it lives, `nbytes`.
        shared, per_thread : int
            Bytes of scratch memory of a run, for all threads together and for each.
        """
        return 0, 0, 0

    cdef void add_stage(self, Body body, Py_ssize_t items):
        self.stages[self.n_stages].body = body
        self.stages[self.n_stages].items = items
        self.n_stages += 1

    cdef int resize(self, Py_ssize_t n) except -1:
        """Compute the first `n` rows of what the arrays hold; most kernels have an item a row."""
        self.stages[0].items = n
        return 0

    cdef int prepare(self, int n_threads) except -1:
        """Reserve scratch memory for `n_threads`, and look at what has changed since the last run."""
        if self.scratch is not None:
            self.scratch.reserve(self.scratch_shared + n_threads * self.scratch_per_thread)
        return 0

    cpdef run(self, int n_threads=1):
        """Compute every stage with `n_threads` threads."""
        cdef int s, thread
        cdef Body body
        cdef Py_ssize_t items
        cdef void *args = self.args
        if n_threads < 1:
            raise ArgumentError(f"n_threads is {n_threads}, but at least 1 is needed")
        self.prepare(n_threads)
        for s in range(self.n_stages):
            body = self.stages[s].body
            items = self.stages[s].items
            if n_threads == 1 or items <= 1:
                with nogil:
                    body(args, 0, items, 0)
            else:
                for thread in prange(n_threads, nogil=True, schedule="static", chunksize=1,
                                     num_threads=n_threads):
                    body(args, _share(items, thread, n_threads),
                         _share(items, thread + 1, n_threads), thread)


cdef inline float *_f32(cnp.ndarray array) noexcept:
    """Data of a float32 array that `checks` has accepted."""
    return <float *>cnp.PyArray_DATA(array)


cdef inline const uint8_t *_u8(cnp.ndarray array) noexcept:
    """Data of a uint8 array that `checks` has accepted."""
    return <const uint8_t *>cnp.PyArray_DATA(array)

"""Twin of largest_py: one pass that keeps the best so far in a heap, which lies in `ids`."""

from rml._kernels import sampling_checks

cdef extern from "largest.h" nogil:
    void rml_largest_values(const float *values, Py_ssize_t n, Py_ssize_t k, int64_t *ids, float *out)

cdef struct LargestArgs:
    const float *values   # (N,)
    int64_t *ids          # (k,)
    float *out            # (k,)
    Py_ssize_t n, k


cdef void largest_values(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef LargestArgs *a = <LargestArgs *>p
    rml_largest_values(a.values, a.n, a.k, a.ids, a.out)


cdef class Largest(Op):
    cdef LargestArgs a

    def __init__(self, values, ids, out):
        sampling_checks.largest(values, ids, out)
        self.owners = (values, ids, out)
        self.a = LargestArgs(_f32(values), <int64_t *>cnp.PyArray_DATA(ids), _f32(out),
                             values.shape[0], ids.shape[0])
        self.args = &self.a
        self.add_stage(largest_values, 1)


def largest(values, ids, out, *, n_threads=1):
    """Twin of `largest_py.largest`."""
    Largest(values, ids, out).run(n_threads)

"""Twin of norm_py: one row an item; sixteen partial sums along the row, added as a fixed tree."""

cdef extern from "norm.h" nogil:
    void rml_rms_norm_row(const float *x, const float *weight, float *out, Py_ssize_t n, float eps)

cdef struct RmsNormArgs:
    const float *x        # (T, D)
    const float *weight   # (D,)
    float *out            # (T, D)
    Py_ssize_t d
    float eps


cdef void rms_norm_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef RmsNormArgs *a = <RmsNormArgs *>p
    cdef Py_ssize_t t
    for t in range(start, stop):
        rml_rms_norm_row(a.x + t * a.d, a.weight, a.out + t * a.d, a.d, a.eps)


cdef class RmsNorm(Op):
    cdef RmsNormArgs a

    def __init__(self, x, weight, out, *, eps):
        checks.rms_norm(x, weight, out, eps)
        self.owners = (x, weight, out)
        self.a = RmsNormArgs(_f32(x), _f32(weight), _f32(out), x.shape[1], eps)
        self.args = &self.a
        self.add_stage(rms_norm_rows, x.shape[0])


def rms_norm(x, weight, out, *, eps, n_threads=1):
    """Twin of `norm_py.rms_norm`."""
    RmsNorm(x, weight, out, eps=eps).run(n_threads)

"""Twin of norm_py: one row an item; sixteen partial sums along the row, added as a fixed tree."""

cdef extern from "norm.h" nogil:
    void rml_rms_norm_row(const float *x, const float *weight, float *out, Py_ssize_t n, float eps)

cdef struct RmsNormArgs:
    const float *x        # (N, D)
    const int32_t *rows   # (T,), or NULL: T = N, all of them
    const float *weight   # (D,)
    float *out            # (T, D)
    Py_ssize_t d
    float eps


cdef void rms_norm_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef RmsNormArgs *a = <RmsNormArgs *>p
    cdef Py_ssize_t t, row
    for t in range(start, stop):
        row = t if a.rows == NULL else a.rows[t]
        rml_rms_norm_row(a.x + row * a.d, a.weight, a.out + t * a.d, a.d, a.eps)


cdef class RmsNorm(Op):
    cdef RmsNormArgs a
    cdef Py_ssize_t n_rows

    def __init__(self, x, weight, out, *, eps, rows=None):
        checks.rms_norm(x, weight, out, eps, rows)
        self.owners = (x, weight, out, rows)
        self.n_rows = x.shape[0]
        self.a = RmsNormArgs(_f32(x), NULL, _f32(weight), _f32(out), x.shape[1], eps)
        if rows is not None:
            self.a.rows = <const int32_t *>cnp.PyArray_DATA(rows)
            self.moves = True
        self.args = &self.a
        self.add_stage(rms_norm_rows, out.shape[0])

    cdef int prepare(self, int n_threads) except -1:
        cdef Py_ssize_t t
        if self.a.rows != NULL:
            for t in range(self.stages[0].items):
                if not 0 <= self.a.rows[t] < self.n_rows:
                    checks.row_numbers(self.owners[3][:t + 1], self.n_rows)
        return 0


def rms_norm(x, weight, out, *, eps, rows=None, n_threads=1):
    """Twin of `norm_py.rms_norm`."""
    RmsNorm(x, weight, out, eps=eps, rows=rows).run(n_threads)

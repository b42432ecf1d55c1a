"""Twin of log_sum_exp_py: eight lanes of float64, added as a fixed tree."""

cdef extern from "log_sum_exp.h" nogil:
    void rml_log_sum_exp(const float *values, Py_ssize_t n, double *out)

cdef struct LogSumExpArgs:
    const float *values   # (N,)
    double *out           # (2,)
    Py_ssize_t n


cdef void log_sum_exp_values(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef LogSumExpArgs *a = <LogSumExpArgs *>p
    rml_log_sum_exp(a.values, a.n, a.out)


cdef class LogSumExp(Op):
    cdef LogSumExpArgs a

    def __init__(self, values, out):
        sampling_checks.log_sum_exp(values, out)
        self.owners = (values, out)
        self.a = LogSumExpArgs(_f32(values), <double *>cnp.PyArray_DATA(out), values.shape[0])
        self.args = &self.a
        self.add_stage(log_sum_exp_values, 1)


def log_sum_exp(values, out, *, n_threads=1):
    """Twin of `log_sum_exp_py.log_sum_exp`."""
    LogSumExp(values, out).run(n_threads)

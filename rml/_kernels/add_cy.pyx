"""Twin of add_py: one row an item."""

cdef struct AddArgs:
    const float *branch   # (T, D)
    float *x              # (T, D)
    Py_ssize_t d


cdef void add_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef AddArgs *a = <AddArgs *>p
    cdef Py_ssize_t i
    for i in range(start * a.d, stop * a.d):
        a.x[i] += a.branch[i]


cdef class Add(Op):
    cdef AddArgs a

    def __init__(self, branch, x):
        checks.add(branch, x)
        self.owners = (branch, x)
        self.a = AddArgs(_f32(branch), _f32(x), x.shape[1])
        self.args = &self.a
        self.add_stage(add_rows, x.shape[0])


def add(branch, x, *, n_threads=1):
    """Twin of `add_py.add`."""
    Add(branch, x).run(n_threads)

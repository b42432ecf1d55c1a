"""Twin of rope_py: one token an item."""

cdef extern from "rope.h" nogil:
    void rml_angles(int64_t position, const double *inv_freq, double factor, Py_ssize_t n,
                    float *cosines, float *sines)
    void rml_rotate(const float *cosines, const float *sines, float *x, Py_ssize_t n,
                    bint interleaved)

cdef struct RopeAnglesArgs:
    const int64_t *positions  # (T,)
    const double *inv_freq    # (D/2,)
    float *cos                # (T, D/2)
    float *sin                # (T, D/2)
    Py_ssize_t n              # D/2
    double factor

cdef struct RotateArgs:
    const float *cos          # (T, D/2)
    const float *sin          # (T, D/2)
    float *x                  # (T, N, D)
    Py_ssize_t heads          # N
    Py_ssize_t n              # D/2
    bint interleaved


cdef void rope_angles_tokens(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef RopeAnglesArgs *a = <RopeAnglesArgs *>p
    cdef Py_ssize_t t
    for t in range(start, stop):
        rml_angles(a.positions[t], a.inv_freq, a.factor, a.n, a.cos + t * a.n, a.sin + t * a.n)


cdef void rotate_tokens(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef RotateArgs *a = <RotateArgs *>p
    cdef Py_ssize_t t, head
    for t in range(start, stop):
        for head in range(a.heads):
            rml_rotate(a.cos + t * a.n, a.sin + t * a.n, a.x + (t * a.heads + head) * 2 * a.n, a.n,
                       a.interleaved)


cdef class RopeAngles(Op):
    cdef RopeAnglesArgs a

    def __init__(self, positions, inv_freq, cos, sin, *, factor=1.0):
        checks.rope_angles(positions, inv_freq, cos, sin, factor)
        self.owners = (positions, inv_freq, cos, sin)
        self.a = RopeAnglesArgs(
            <const int64_t *>cnp.PyArray_DATA(positions), <const double *>cnp.PyArray_DATA(inv_freq),
            _f32(cos), _f32(sin), cos.shape[1], factor)
        self.args = &self.a
        self.add_stage(rope_angles_tokens, cos.shape[0])


cdef class Rotate(Op):
    cdef RotateArgs a

    def __init__(self, cos, sin, x, *, interleaved):
        checks.rotate(cos, sin, x)
        self.owners = (cos, sin, x)
        self.a = RotateArgs(_f32(cos), _f32(sin), _f32(x), x.shape[1], cos.shape[1], interleaved)
        self.args = &self.a
        self.add_stage(rotate_tokens, x.shape[0])


def rope_angles(positions, inv_freq, cos, sin, *, factor=1.0, n_threads=1):
    """Twin of `rope_py.rope_angles`."""
    RopeAngles(positions, inv_freq, cos, sin, factor=factor).run(n_threads)


def rotate(cos, sin, x, *, interleaved, n_threads=1):
    """Twin of `rope_py.rotate`."""
    Rotate(cos, sin, x, interleaved=interleaved).run(n_threads)

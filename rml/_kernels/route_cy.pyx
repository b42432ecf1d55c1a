"""Twin of route_py: one token an item; choices by repeated selection instead of a sort."""

cdef extern from "route.h" nogil:
    void rml_route_row(const float *scores, Py_ssize_t n, Py_ssize_t k, int normalize, int32_t *ids,
                       float *weights)

cdef struct RouteArgs:
    const float *scores   # (T, E)
    int32_t *ids          # (T, k)
    float *weights        # (T, k)
    Py_ssize_t n_experts, k
    int normalize


cdef void route_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef RouteArgs *a = <RouteArgs *>p
    cdef Py_ssize_t t
    for t in range(start, stop):
        rml_route_row(a.scores + t * a.n_experts, a.n_experts, a.k, a.normalize,
                      a.ids + t * a.k, a.weights + t * a.k)


cdef class Route(Op):
    cdef RouteArgs a

    def __init__(self, scores, ids, weights, *, normalize):
        checks.route(scores, ids, weights)
        self.owners = (scores, ids, weights)
        self.a = RouteArgs(_f32(scores), <int32_t *>cnp.PyArray_DATA(ids), _f32(weights),
                           scores.shape[1], ids.shape[1], bool(normalize))
        self.args = &self.a
        self.add_stage(route_rows, scores.shape[0])


def route(scores, ids, weights, *, normalize, n_threads=1):
    """Twin of `route_py.route`."""
    Route(scores, ids, weights, normalize=normalize).run(n_threads)

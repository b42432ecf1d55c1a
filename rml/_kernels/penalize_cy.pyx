"""Twin of penalize_py: one loop over the tokens, with the same roundings."""

from libc.math cimport isfinite

cdef struct PenalizeArgs:
    const int64_t *ids    # (m,)
    const float *counts   # (m,)
    float *logits         # (N,)
    Py_ssize_t m, n
    float repeat, presence, frequency


cdef void penalize_ids(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef PenalizeArgs *a = <PenalizeArgs *>p
    cdef float before, after, largest = 3.4028234663852886e38
    cdef Py_ssize_t i
    for i in range(a.m):
        if not 0 <= a.ids[i] < a.n:
            continue
        before = a.logits[a.ids[i]]
        if not isfinite(before):
            continue
        after = before / a.repeat if before > 0 else before * a.repeat
        after = after - (a.counts[i] * a.frequency + a.presence)
        a.logits[a.ids[i]] = min(max(after, -largest), largest)


cdef class Penalize(Op):
    cdef PenalizeArgs a

    def __init__(self, ids, counts, logits, *, repeat, presence, frequency):
        sampling_checks.penalize(ids, counts, logits, repeat, presence, frequency)
        self.owners = (ids, counts, logits)
        self.a = PenalizeArgs(<const int64_t *>cnp.PyArray_DATA(ids), _f32(counts), _f32(logits),
                              ids.shape[0], logits.shape[0], repeat, presence, frequency)
        self.args = &self.a
        self.add_stage(penalize_ids, 1)


def penalize(ids, counts, logits, *, repeat, presence, frequency, n_threads=1):
    """Twin of `penalize_py.penalize`."""
    Penalize(ids, counts, logits, repeat=repeat, presence=presence,
             frequency=frequency).run(n_threads)

"""Twin of choose_py: sixteen exponentials at a time, and one pass over their sums."""

import math

from rml._kernels.choose_py import BORDER

cdef extern from "choose.h" nogil:
    Py_ssize_t rml_choose(const float *logits, Py_ssize_t k, float temperature, double top_p,
                          float log_min_p, double chance, float *weights)

cdef struct ChooseArgs:
    const float *logits   # (k,)
    int64_t *out          # (1,)
    Py_ssize_t k
    float temperature
    float log_min_p       # minus infinity: all
    double top_p          # above 1: all
    double chance
    char **scratch


cdef void choose_one(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ChooseArgs *a = <ChooseArgs *>p
    a.out[0] = rml_choose(a.logits, a.k, a.temperature, a.top_p, a.log_min_p, a.chance,
                          <float *>a.scratch[0])


cdef class Choose(Op):
    cdef ChooseArgs a

    def __init__(self, logits, out, *, temperature, top_p, min_p, chance):
        sampling_checks.choose(logits, out, temperature, top_p, min_p, chance)
        self.owners = (logits, out)
        self.scratch = Scratch()
        self.scratch_shared = (logits.shape[0] + 16) * sizeof(float)
        self.a = ChooseArgs(_f32(logits), <int64_t *>cnp.PyArray_DATA(out), logits.shape[0],
                            temperature, math.log(min_p) if min_p > 0 else -math.inf,
                            top_p - BORDER if top_p < 1 else 2.0, chance, &self.scratch.base)
        self.args = &self.a
        self.add_stage(choose_one, 1)


def choose(logits, out, *, temperature, top_p, min_p, chance, n_threads=1):
    """Twin of `choose_py.choose`."""
    Choose(logits, out, temperature=temperature, top_p=top_p, min_p=min_p,
           chance=chance).run(n_threads)

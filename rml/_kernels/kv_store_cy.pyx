"""Twin of kv_store_py: one head of one token an item; a single token is one item."""

cdef extern from "kv_store.h" nogil:
    void rml_store_f32(const float *x, Py_ssize_t d, float *to, Py_ssize_t step)
    void rml_store_f16(const float *x, Py_ssize_t d, uint16_t *to, Py_ssize_t step)
    void rml_store_int8(const float *x, Py_ssize_t d, int8_t *to, float *scales, Py_ssize_t step,
                        Py_ssize_t group)

cdef struct StoreKVArgs:
    const float *k               # (T, G, D)
    const float *v               # (T, G, D)
    rml_kv kv
    rml_step step
    Py_ssize_t n_kv_heads        # G


cdef void store_heads(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    """Items are rows, one kv head after another, so that a thread writes whole pages."""
    cdef StoreKVArgs *a = <StoreKVArgs *>p
    cdef Py_ssize_t i, head, row, slot, d = a.kv.d, n = a.step.counts[RML_N_ROWS]
    cdef int64_t position
    cdef rml_place at
    cdef char *keys
    cdef char *values
    cdef const float *k
    cdef const float *v
    for i in range(start, stop):
        head, row = i // n, i % n
        k = a.k + (row * a.n_kv_heads + head) * d
        v = a.v + (row * a.n_kv_heads + head) * d
        position = a.step.positions[row]
        slot = position % RML_PAGE
        at = rml_place_of(&a.kv, rml_page_table(&a.step, a.step.owners[row])[position // RML_PAGE],
                          head)
        keys, values = rml_k_at(&a.kv, at), rml_v_at(&a.kv, at)
        if a.kv.type == RML_KV_F32:
            rml_store_f32(k, d, <float *>keys + slot, RML_PAGE)
            rml_store_f32(v, d, <float *>values + slot * d, 1)
        elif a.kv.type == RML_KV_F16:
            rml_store_f16(k, d, <uint16_t *>keys + slot, RML_PAGE)
            rml_store_f16(v, d, <uint16_t *>values + slot * d, 1)
        else:
            rml_store_int8(k, d, <int8_t *>keys + slot, rml_k_scales_at(&a.kv, at) + slot, RML_PAGE,
                           a.kv.group)
            rml_store_int8(v, d, <int8_t *>values + slot * d,
                           rml_v_scales_at(&a.kv, at) + slot * (d // a.kv.group), 1, a.kv.group)


cdef void store_row(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    """One item is the only row: too little work to be divided."""
    store_heads(p, 0, (<StoreKVArgs *>p).n_kv_heads, thread)


cdef class StoreKV(Op):
    cdef StoreKVArgs a
    cdef Py_ssize_t n_rows

    def __init__(self, k, v, pages, step, *, layer):
        checks.store_kv(k, v, pages, step, layer)
        self.owners = (k, v, pages, step)
        self.n_rows = k.shape[0]
        self.a = StoreKVArgs(_f32(k), _f32(v), _kv(pages, layer), _step(step, pages.group),
                             pages.n_kv_heads)
        self.args, self.moves = &self.a, True
        self.add_stage(store_heads, 0)

    cdef int resize(self, Py_ssize_t n) except -1:
        return 0  # the step says all

    cdef int prepare(self, int n_threads) except -1:
        cdef Py_ssize_t n = self.a.step.counts[RML_N_ROWS]
        if n > self.n_rows:
            raise ArgumentError(f"the step has {n} rows, but the arrays {self.n_rows}")
        self.stages[0].body = store_row if n == 1 else store_heads
        self.stages[0].items = 1 if n == 1 else n * self.a.n_kv_heads
        return 0


def store_kv(k, v, pages, step, *, layer, n_threads=1):
    """Twin of `kv_store_py.store_kv`."""
    op = StoreKV(k, v, pages, step, layer=layer)
    check_step(step, pages, 1)
    op.run(n_threads)

"""Twin of kv_store_py: one head of one token an item; a single token is one item."""

cdef extern from "kv_store.h" nogil:
    void rml_store_f32(const float *x, Py_ssize_t d, float *to, Py_ssize_t step)
    void rml_store_f16(const float *x, Py_ssize_t d, uint16_t *to, Py_ssize_t step)
    void rml_store_int8(const float *x, Py_ssize_t d, int8_t *to, float *scales, Py_ssize_t step,
                        Py_ssize_t group)

cdef struct StoreKVArgs:
    const float *k               # (T, G, D)
    const float *v               # (T, G, D)
    char *k_pages                # (n_pages, n_layers, G, D, 16) from the layer on
    char *v_pages                # (n_pages, n_layers, G, 16, D) from the layer on
    float *k_scales              # (n_pages, n_layers, G, D/group, 16) from the layer on, or NULL
    float *v_scales              # (n_pages, n_layers, G, 16, D/group) from the layer on, or NULL
    const int32_t *page_table
    const int64_t *position      # (1,)
    Py_ssize_t n_tokens          # T
    Py_ssize_t n_kv_heads        # G
    Py_ssize_t d                 # D
    Py_ssize_t page_heads        # heads from a page to the next: n_layers * G
    Py_ssize_t group
    int itemsize


cdef void store_heads(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    """Items are tokens, one kv head after another, so that a thread writes whole pages."""
    cdef StoreKVArgs *a = <StoreKVArgs *>p
    cdef Py_ssize_t i, head, token, at, groups = a.d // a.group
    cdef Py_ssize_t page, slot
    cdef const float *k
    cdef const float *v
    for i in range(start, stop):
        head, token = i // a.n_tokens, i % a.n_tokens
        k = a.k + (token * a.n_kv_heads + head) * a.d
        v = a.v + (token * a.n_kv_heads + head) * a.d
        slot = (a.position[0] + token) % RML_PAGE
        page = a.page_table[(a.position[0] + token) // RML_PAGE]
        at = (page * a.page_heads + head) * RML_PAGE
        if a.itemsize == 4:
            rml_store_f32(k, a.d, <float *>a.k_pages + at * a.d + slot, RML_PAGE)
            rml_store_f32(v, a.d, <float *>a.v_pages + (at + slot) * a.d, 1)
        elif a.itemsize == 2:
            rml_store_f16(k, a.d, <uint16_t *>a.k_pages + at * a.d + slot, RML_PAGE)
            rml_store_f16(v, a.d, <uint16_t *>a.v_pages + (at + slot) * a.d, 1)
        else:
            rml_store_int8(k, a.d, <int8_t *>a.k_pages + at * a.d + slot,
                           a.k_scales + at * groups + slot, RML_PAGE, a.group)
            rml_store_int8(v, a.d, <int8_t *>a.v_pages + (at + slot) * a.d,
                           a.v_scales + (at + slot) * groups, 1, a.group)


cdef void store_token(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    """One item is the only token: too little work to be divided."""
    store_heads(p, 0, (<StoreKVArgs *>p).n_kv_heads, thread)


cdef class StoreKV(Op):
    cdef StoreKVArgs a
    cdef object page_table, position
    cdef Py_ssize_t n_pages

    def __init__(self, k, v, k_pages, v_pages, page_table, position, *, layer, k_scales=None,
                 v_scales=None):
        cdef StoreKVArgs *a = &self.a
        cdef Py_ssize_t offset
        checks.store_kv(k, v, k_pages, v_pages, page_table, position, layer, k_scales, v_scales)
        self.owners = (k, v, k_pages, v_pages, page_table, position, k_scales, v_scales)
        self.page_table, self.position, self.n_pages = page_table, position, len(k_pages)
        a.k, a.v = _f32(k), _f32(v)
        a.page_table = <const int32_t *>cnp.PyArray_DATA(page_table)
        a.position = <const int64_t *>cnp.PyArray_DATA(position)
        a.n_tokens, a.n_kv_heads, a.d = k.shape
        a.page_heads = k_pages.shape[1] * a.n_kv_heads
        a.group, a.itemsize = checks.scale_group(a.d), k_pages.itemsize
        offset = layer * a.n_kv_heads * RML_PAGE
        a.k_pages = <char *>cnp.PyArray_DATA(k_pages) + offset * a.d * a.itemsize
        a.v_pages = <char *>cnp.PyArray_DATA(v_pages) + offset * a.d * a.itemsize
        if k_scales is not None:
            offset *= a.d // a.group
            a.k_scales, a.v_scales = _f32(k_scales) + offset, _f32(v_scales) + offset
        self.args = &self.a
        if a.n_tokens == 1:
            self.add_stage(store_token, 1)
        else:
            self.add_stage(store_heads, a.n_tokens * a.n_kv_heads)

    cdef int prepare(self, int n_threads) except -1:
        return require_pages(self.page_table, self.position, self.a.n_tokens, 1, self.n_pages)


def store_kv(k, v, k_pages, v_pages, page_table, position, *, layer, k_scales=None, v_scales=None,
             n_threads=1):
    """Twin of `kv_store_py.store_kv`."""
    StoreKV(k, v, k_pages, v_pages, page_table, position, layer=layer, k_scales=k_scales,
            v_scales=v_scales).run(n_threads)

"""Twin of attention_py: online softmax over blocks of 32 keys, every page read once for a tile.

The order of the additions, which depends on a query's position alone, is in attention.h. Many
queries are divided among the threads by tiles and kv heads; few (a decode step) by kv heads and
spans of 256 keys, so that every thread has work however few heads there are.
"""

cdef extern from "attention.h" nogil:
    enum: RML_PAGE
    enum: RML_SPAN
    enum: RML_FEW
    enum: RML_TILE
    ctypedef enum rml_kv_type:
        RML_KV_F32
        RML_KV_F16
        RML_KV_INT8
    ctypedef struct rml_kv:
        rml_kv_type type
        Py_ssize_t size, d, group, page_heads
        const char *k
        const char *v
        const float *k_scales
        const float *v_scales
    ctypedef struct rml_attention:
        rml_kv kv
        const float *q
        float *out
        const int32_t *page_table
        const int64_t *position
        Py_ssize_t n_tokens, n_kv_heads, n_shared, window
        float scale
        Py_ssize_t tile
        char **scratch
        Py_ssize_t shared, per_thread
    ctypedef struct rml_tile:
        const rml_attention *a
    Py_ssize_t rml_row_size(const rml_attention *a)
    Py_ssize_t rml_tile_space(rml_tile *t, float *base)
    void rml_attend_tiles(const rml_attention *a, Py_ssize_t start, Py_ssize_t stop, int thread)
    void rml_attend_spans(const rml_attention *a, Py_ssize_t start, Py_ssize_t stop,
                          Py_ssize_t parts, int thread)
    void rml_attend_merge(const rml_attention *a, Py_ssize_t start, Py_ssize_t stop)

cdef struct AttendArgs:
    rml_attention a
    Py_ssize_t parts


cdef void attend_tiles(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    rml_attend_tiles(&(<AttendArgs *>p).a, start, stop, thread)


cdef void attend_spans(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    rml_attend_spans(&(<AttendArgs *>p).a, start, stop, (<AttendArgs *>p).parts, thread)


cdef void attend_merge(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    rml_attend_merge(&(<AttendArgs *>p).a, start, stop)


cdef int require_pages(page_table, position, Py_ssize_t n_tokens, Py_ssize_t window,
                       Py_ssize_t n_pages) except -1:
    """Do what `checks.positions` does, without the time that it takes."""
    cdef const int32_t *table = <const int32_t *>cnp.PyArray_DATA(page_table)
    cdef int64_t first = (<const int64_t *>cnp.PyArray_DATA(position))[0]
    cdef int64_t limit = cnp.PyArray_DIM(page_table, 0) * RML_PAGE
    cdef int64_t start = first - window + 1 if 0 < window <= first else 0
    cdef bint good = 0 <= first <= limit - n_tokens
    cdef int64_t entry
    if good:
        for entry in range(start // RML_PAGE, (first + n_tokens + RML_PAGE - 1) // RML_PAGE):
            good &= 0 <= table[entry] < n_pages
    if not good:
        checks.positions(page_table, position, n_tokens, window, n_pages)
    return 0


cdef class Attend(Op):
    cdef AttendArgs a
    cdef object page_table, position
    cdef Py_ssize_t n_pages

    def __init__(self, q, k_pages, v_pages, page_table, position, out, *, layer, scale, window=0,
                 k_scales=None, v_scales=None, Scratch scratch=None):
        cdef rml_attention *a = &self.a.a
        cdef rml_kv *kv = &a.kv
        cdef rml_tile tile
        cdef Py_ssize_t first, spans
        checks.attend(q, k_pages, v_pages, page_table, position, out, layer, scale, window,
                      k_scales, v_scales)
        self.owners = (q, k_pages, v_pages, page_table, position, out, k_scales, v_scales)
        self.page_table, self.position, self.n_pages = page_table, position, len(k_pages)
        a.q, a.out = _f32(q), _f32(out)
        a.page_table = <const int32_t *>cnp.PyArray_DATA(page_table)
        a.position = <const int64_t *>cnp.PyArray_DATA(position)
        a.n_tokens, a.n_kv_heads = q.shape[0], k_pages.shape[2]
        a.n_shared = q.shape[1] // a.n_kv_heads
        a.window, a.scale = window, scale
        if a.n_tokens <= RML_FEW:
            a.tile = max(1, a.n_tokens)
        else:  # some 48 rows, which is fastest; less if there would be too little to share
            a.tile = max(1, min(RML_TILE // a.n_shared, (a.n_tokens * a.n_kv_heads + 7) // 8))

        kv.d, kv.size = q.shape[2], k_pages.itemsize
        kv.type = {4: RML_KV_F32, 2: RML_KV_F16, 1: RML_KV_INT8}[kv.size]
        kv.group = checks.scale_group(kv.d)
        kv.page_heads = k_pages.shape[1] * a.n_kv_heads
        first = layer * a.n_kv_heads * RML_PAGE * kv.d  # number of the layer
        kv.k = <const char *>cnp.PyArray_DATA(k_pages) + first * kv.size
        kv.v = <const char *>cnp.PyArray_DATA(v_pages) + first * kv.size
        if kv.type == RML_KV_INT8:
            kv.k_scales = _f32(k_scales) + first // kv.group
            kv.v_scales = _f32(v_scales) + first // kv.group

        self.scratch = scratch if scratch is not None else Scratch()
        a.scratch = &self.scratch.base
        tile.a = a
        self.scratch_per_thread = a.per_thread = 4 * rml_tile_space(&tile, NULL)
        self.args = &self.a
        if a.n_tokens <= RML_FEW:
            spans = len(page_table) * RML_PAGE // RML_SPAN + 1
            if window > 0:
                spans = min(spans, (window + a.n_tokens) // RML_SPAN + 2)
            self.a.parts = spans * a.n_kv_heads
            a.shared = 4 * self.a.parts * a.n_tokens * a.n_shared * rml_row_size(a)
            self.scratch_shared = a.shared
            self.add_stage(attend_spans, self.a.parts)
            self.add_stage(attend_merge, a.n_tokens * q.shape[1])
        else:
            self.add_stage(attend_tiles, (a.n_tokens + a.tile - 1) // a.tile * a.n_kv_heads)

    cdef int prepare(self, int n_threads) except -1:
        require_pages(self.page_table, self.position, self.a.a.n_tokens, self.a.a.window,
                      self.n_pages)
        return Op.prepare(self, n_threads)


def attend(q, k_pages, v_pages, page_table, position, out, *, layer, scale, window=0,
           k_scales=None, v_scales=None, scratch=None, n_threads=1):
    """Twin of `attention_py.attend`."""
    Attend(q, k_pages, v_pages, page_table, position, out, layer=layer, scale=scale, window=window,
           k_scales=k_scales, v_scales=v_scales, scratch=scratch).run(n_threads)

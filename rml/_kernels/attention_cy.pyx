"""Twin of attention_py: online softmax over blocks of 32 keys, every page read once for a tile.

The order of the additions, which depends on a query's position alone, is in attention.h. The work
is laid out when the kernel runs: sequences with many rows are divided among the threads by tiles of
queries and kv heads; those with few (a decode step) by kv heads and spans of 256 keys, so that every
thread has work however few heads there are.
"""

cdef extern from "attention.h" nogil:
    enum: RML_PAGE
    enum: RML_SPAN
    enum: RML_FEW
    enum: RML_N_ROWS
    enum: RML_N_SEQUENCES
    ctypedef enum rml_kv_type:
        RML_KV_F32
        RML_KV_F16
        RML_KV_INT8
    ctypedef struct rml_kv:
        rml_kv_type type
        Py_ssize_t size, d, group, page_heads, layer_heads
        int slab_bits
        const uint64_t *k
        const uint64_t *v
        const uint64_t *k_scales
        const uint64_t *v_scales
    ctypedef struct rml_step:
        const int64_t *counts
        const int64_t *first
        const int64_t *positions
        const int32_t *owners
        const uint64_t *tables
    ctypedef struct rml_attended:
        Py_ssize_t item, merged, kept
    ctypedef struct rml_attention:
        rml_kv kv
        rml_step step
        const float *q
        float *out
        rml_attended *sequences
        Py_ssize_t n_kv_heads, n_shared, window
        float scale
        char **scratch
        Py_ssize_t shared, per_thread
    ctypedef struct rml_tile:
        const rml_attention *a
    ctypedef struct rml_place:
        pass
    const int32_t *rml_page_table(const rml_step *s, Py_ssize_t sequence)
    rml_place rml_place_of(const rml_kv *kv, int32_t page, Py_ssize_t head)
    char *rml_k_at(const rml_kv *kv, rml_place p)
    char *rml_v_at(const rml_kv *kv, rml_place p)
    float *rml_k_scales_at(const rml_kv *kv, rml_place p)
    float *rml_v_scales_at(const rml_kv *kv, rml_place p)
    Py_ssize_t rml_attend_lay_out(rml_attention *a)
    Py_ssize_t rml_tile_space(rml_tile *t, float *base)
    void rml_attend_parts(const rml_attention *a, Py_ssize_t start, Py_ssize_t stop, int thread)
    void rml_attend_merge(const rml_attention *a, Py_ssize_t start, Py_ssize_t stop)


cdef void attend_parts(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    rml_attend_parts(<rml_attention *>p, start, stop, thread)


cdef void attend_merge(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    rml_attend_merge(<rml_attention *>p, start, stop)


cdef rml_kv _kv(pages, Py_ssize_t layer):
    """One layer of a `Pages` that `checks` has accepted."""
    cdef rml_kv kv
    cdef const uint64_t *addresses = <const uint64_t *>cnp.PyArray_DATA(pages.addresses)
    cdef Py_ssize_t n_slabs = pages.addresses.shape[1]
    kv.type = {"f32": RML_KV_F32, "f16": RML_KV_F16, "int8": RML_KV_INT8}[pages.kv_type]
    kv.size = {"f32": 4, "f16": 2, "int8": 1}[pages.kv_type]
    kv.d = pages.head_dim
    kv.group = scale_group(kv.d)
    kv.page_heads = pages.n_layers * pages.n_kv_heads
    kv.layer_heads = layer * pages.n_kv_heads
    kv.slab_bits = pages.slab_bits
    kv.k = addresses
    kv.v = addresses + n_slabs
    kv.k_scales = addresses + 2 * n_slabs
    kv.v_scales = addresses + 3 * n_slabs
    return kv


cdef rml_step _step(step, Py_ssize_t group):
    """A `Step`, with the page tables of one group."""
    cdef rml_step s
    cdef Py_ssize_t n = step.table_addresses.shape[1]
    s.counts = <const int64_t *>cnp.PyArray_DATA(step.counts)
    s.first = <const int64_t *>cnp.PyArray_DATA(step.first)
    s.positions = <const int64_t *>cnp.PyArray_DATA(step.positions)
    s.owners = <const int32_t *>cnp.PyArray_DATA(step.owners)
    s.tables = <const uint64_t *>cnp.PyArray_DATA(step.table_addresses) + group * n
    return s


def check_step(step, pages, int64_t window=0):
    """Do what `Step.check` does, without the time that it takes."""
    cdef rml_step s
    cdef const int64_t *sizes
    cdef const uint64_t *slabs = <const uint64_t *>cnp.PyArray_DATA(pages.addresses)
    cdef const int32_t *table
    cdef int slab_bits = pages.slab_bits
    cdef int64_t n_pages = pages.n_pages, first, stop, start, entry
    cdef Py_ssize_t i, group = pages.group, n = step.table_sizes.shape[1]
    cdef bint good = 0 <= group < step.table_addresses.shape[0]
    if good:
        s = _step(step, group)
        sizes = <const int64_t *>cnp.PyArray_DATA(step.table_sizes) + group * n
        for i in range(s.counts[RML_N_SEQUENCES]):
            first = s.positions[s.first[i]]
            stop = first + s.first[i + 1] - s.first[i]
            good &= 0 <= first <= stop <= sizes[i] * RML_PAGE
            if not good:
                break
            start = first - window + 1 if 0 < window <= first else 0
            table = rml_page_table(&s, i)
            for entry in range(start // RML_PAGE, (stop + RML_PAGE - 1) // RML_PAGE):
                good &= 0 <= table[entry] < n_pages and slabs[table[entry] >> slab_bits] != 0
    if not good:
        step.check(pages, window)  # which says what is wrong


def check_ids(step, int64_t n_vocab):
    """Do what `Step.check_ids` does, without the time that it takes."""
    cdef const int32_t *ids = <const int32_t *>cnp.PyArray_DATA(step.ids)
    cdef const int64_t *counts = <const int64_t *>cnp.PyArray_DATA(step.counts)
    cdef bint good = True
    cdef Py_ssize_t i
    for i in range(counts[RML_N_ROWS]):
        good &= 0 <= ids[i] < n_vocab
    if not good:
        step.check_ids(n_vocab)


cdef int _shape_attention(rml_attention *a, q, pages, step, Py_ssize_t layer, Py_ssize_t window) except -1:
    """Note sizes of the arguments, and where pages and step are."""
    a.kv, a.step = _kv(pages, layer), _step(step, pages.group)
    a.n_kv_heads = pages.n_kv_heads
    a.n_shared = q.shape[1] // a.n_kv_heads
    a.window = window
    return 0


cdef Py_ssize_t _lay_out_attention(rml_attention *a) noexcept:
    """Divide work and scratch memory as the step says; return the items of the first stage."""
    cdef rml_tile tile
    cdef Py_ssize_t items = rml_attend_lay_out(a)
    tile.a = a
    a.shared = 4 * a.sequences[a.step.counts[RML_N_SEQUENCES]].kept
    a.per_thread = 4 * rml_tile_space(&tile, NULL)
    return items


cdef class Attend(Op):
    cdef rml_attention a
    cdef Py_ssize_t n_rows

    def __dealloc__(self):
        free(self.a.sequences)

    def __init__(self, q, pages, step, out, *, layer, scale, window=0, Scratch scratch=None):
        cdef rml_attention *a = &self.a
        checks.attend(q, pages, step, out, layer, scale, window)
        self.owners = (q, pages, step, out)
        self.n_rows = q.shape[0]
        _shape_attention(a, q, pages, step, layer, window)
        a.q, a.out, a.scale = _f32(q), _f32(out), scale
        self.nbytes = (step.capacity + 1) * sizeof(rml_attended)
        a.sequences = <rml_attended *>malloc(self.nbytes)
        if a.sequences == NULL:
            raise MemoryError("no memory for the sequences of a step")
        self.scratch = scratch if scratch is not None else Scratch()
        a.scratch = &self.scratch.base
        self.args, self.moves = a, True
        self.add_stage(attend_parts, 0)
        self.add_stage(attend_merge, 0)

    cdef int resize(self, Py_ssize_t n) except -1:
        return 0  # the step says all

    cdef int prepare(self, int n_threads) except -1:
        cdef rml_attention *a = &self.a
        if a.step.counts[RML_N_ROWS] > self.n_rows:
            raise ArgumentError(
                f"the step has {a.step.counts[RML_N_ROWS]} rows, but the arrays {self.n_rows}")
        self.stages[0].items = _lay_out_attention(a)
        self.stages[1].items = a.sequences[a.step.counts[RML_N_SEQUENCES]].merged
        self.scratch_shared, self.scratch_per_thread = a.shared, a.per_thread
        return Op.prepare(self, n_threads)

    # Rows of a sequence whose attention is divided by spans of so many keys, at most.
    few, span = RML_FEW, RML_SPAN

    @staticmethod
    def needs(Py_ssize_t n, q, pages, step, out, *, layer=0, window=0, **kwargs):
        """Of the rows that `step` holds; `n` does not matter."""
        cdef rml_attention a
        cdef Py_ssize_t records = (step.capacity + 1) * sizeof(rml_attended)
        memset(&a, 0, sizeof(rml_attention))
        _shape_attention(&a, q, pages, step, layer, window)
        a.sequences = <rml_attended *>malloc(records)
        if a.sequences == NULL:
            raise MemoryError("no memory for the sequences of a step")
        _lay_out_attention(&a)
        free(a.sequences)
        return records, a.shared, a.per_thread


def attend(q, pages, step, out, *, layer, scale, window=0, scratch=None, n_threads=1):
    """Twin of `attention_py.attend`."""
    op = Attend(q, pages, step, out, layer=layer, scale=scale, window=window, scratch=scratch)
    check_step(step, pages, window)
    op.run(n_threads)

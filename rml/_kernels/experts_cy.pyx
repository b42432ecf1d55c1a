"""Twin of experts_py: row groups of the chosen experts, each with all tokens of its expert.

Six stages: group the tokens by expert, quantize their inputs in that order, gate and up rows,
quantize the hidden rows, down rows (every result into a row of its own), add the rows of a token.
"""

cdef extern from "experts.h" nogil:
    ctypedef struct rml_groups:
        Py_ssize_t *n_active
        Py_ssize_t *active
        Py_ssize_t *first
        Py_ssize_t *slot
    Py_ssize_t rml_groups_bytes(Py_ssize_t n_experts, Py_ssize_t n_slots)
    rml_groups rml_groups_at(char *memory, Py_ssize_t n_experts)
    void rml_group(const int32_t *ids, Py_ssize_t n_slots, Py_ssize_t n_experts, rml_groups g)
    void rml_share_active(Py_ssize_t n_active, Py_ssize_t row_groups, Py_ssize_t nominal, Py_ssize_t *start,
                          Py_ssize_t *stop)
    Py_ssize_t rml_group_of(Py_ssize_t item, Py_ssize_t a, Py_ssize_t n_active)
    void rml_scatter_strip(const float *strip, Py_ssize_t n_tokens, int n, const Py_ssize_t *slot, float *out,
                           Py_ssize_t stride)
    void rml_add_mixture(const float *results, const int32_t *ids, const float *weights, Py_ssize_t k,
                         Py_ssize_t n_experts, Py_ssize_t n, float *out)

cdef struct ExpertsArgs:
    rml_matrix *gates     # (E,), and so are the others
    rml_matrix *ups
    rml_matrix *downs
    const float *x        # (T, K)
    const int32_t *ids    # (T, k)
    const float *weights  # (T, k)
    float *out            # (T, D)
    Py_ssize_t n_tokens, k, n_experts, n_out
    int activation
    bint floats           # gates or ups that are multiplied in float32
    rml_inputs inputs     # (S, K), by position; S = T k slots
    rml_inputs hidden     # (S, F), by position
    char **scratch        # where the base pointer is kept: memory may move between runs
    # Scratch memory begins with the codes of `inputs`, and later those of `hidden`.
    Py_ssize_t rows       # bytes before the inputs by position, and later the results by slot
    Py_ssize_t middle     # bytes before the hidden rows
    Py_ssize_t groups     # bytes before the groups
    Py_ssize_t shared     # bytes before the first thread's part
    Py_ssize_t per_thread
    Py_ssize_t strip      # bytes of one strip


cdef inline rml_groups _groups(ExpertsArgs *a) noexcept nogil:
    return rml_groups_at(a.scratch[0] + a.groups, a.n_experts)


cdef inline Py_ssize_t _row_groups(Py_ssize_t n_rows) noexcept nogil:
    return (n_rows + RML_ROWS - 1) // RML_ROWS


cdef rml_inputs _expert_inputs(ExpertsArgs *a) noexcept nogil:
    cdef rml_inputs inputs = _placed(a.inputs, a.scratch[0])
    inputs.x = <const float *>(a.scratch[0] + a.rows)
    return inputs


cdef rml_inputs _hidden_inputs(ExpertsArgs *a) noexcept nogil:
    cdef rml_inputs inputs = _placed(a.hidden, a.scratch[0])
    inputs.x = <const float *>(a.scratch[0] + a.middle)
    return inputs


cdef void experts_group(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    rml_group(a.ids, a.inputs.n_tokens, a.n_experts, _groups(a))


cdef void experts_gather(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    cdef rml_groups groups = _groups(a)
    cdef rml_inputs inputs = _expert_inputs(a)
    cdef float *rows = <float *>(a.scratch[0] + a.rows)
    cdef Py_ssize_t position, token, k = inputs.k
    for position in range(start, min(stop, groups.first[a.n_experts])):
        token = groups.slot[position] // a.k
        if a.floats:
            memcpy(rows + position * k, a.x + token * k, k * sizeof(float))
        if inputs.bytes:
            inputs.x = a.x + (token - position) * k  # its row `position` is the token's
            rml_quantize_row(&inputs, position)


cdef void _expert_rows(ExpertsArgs *a, const rml_matrix *first, const rml_matrix *second,
                       const rml_inputs *inputs, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    """Rows of the gated pairs `first` and `second`, or of `first` alone if `second` is NULL."""
    cdef rml_groups groups = _groups(a)
    cdef char *own = a.scratch[0] + a.shared + thread * a.per_thread
    cdef float *strip = <float *>own
    cdef float *up = <float *>(own + a.strip)
    cdef char *rest = own + 2 * a.strip
    cdef float *hidden = <float *>(a.scratch[0] + a.middle)
    cdef float *results = <float *>(a.scratch[0] + a.rows)
    cdef Py_ssize_t n_rows = first.rows, n_active = groups.n_active[0]
    cdef Py_ssize_t row_groups = _row_groups(n_rows)
    cdef Py_ssize_t i, expert, group, row, t, t1
    cdef int n
    rml_share_active(n_active, row_groups, a.n_experts * row_groups, &start, &stop)
    for i in range(n_active):
        expert = groups.active[i]
        for group in range(rml_group_of(start, i, n_active), rml_group_of(stop, i, n_active)):
            row = group * RML_ROWS
            n = <int>min(<Py_ssize_t>RML_ROWS, n_rows - row)
            t = groups.first[expert]
            while t < groups.first[expert + 1]:
                t1 = min(t + RML_PASS_TOKENS, groups.first[expert + 1])
                rml_rows(&first[expert], row, n, inputs, t, t1, strip, rest)
                if second != NULL:
                    rml_rows(&second[expert], row, n, inputs, t, t1, up, rest)
                    rml_gate_strip(strip, up, t1 - t, n, a.activation, hidden + t * n_rows + row, n_rows)
                else:
                    rml_scatter_strip(strip, t1 - t, n, groups.slot + t, results + row, n_rows)
                t = t1


cdef void experts_gate_up(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    cdef rml_inputs inputs = _expert_inputs(a)
    _expert_rows(a, a.gates, a.ups, &inputs, start, stop, thread)


cdef void experts_quantize_hidden(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    cdef rml_groups groups = _groups(a)
    cdef rml_inputs inputs = _hidden_inputs(a)
    cdef Py_ssize_t position
    for position in range(start, min(stop, groups.first[a.n_experts])):
        rml_quantize_row(&inputs, position)


cdef void experts_down(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    cdef rml_inputs inputs = _hidden_inputs(a)
    _expert_rows(a, a.downs, NULL, &inputs, start, stop, thread)


cdef void experts_add(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ExpertsArgs *a = <ExpertsArgs *>p
    cdef float *results = <float *>(a.scratch[0] + a.rows)
    cdef Py_ssize_t t, d = a.downs[0].rows
    for t in range(start, stop):
        rml_add_mixture(results + t * a.k * d, a.ids + t * a.k, a.weights + t * a.k, a.k,
                        a.n_experts, d, a.out + t * d)


cdef int _shape_experts(ExpertsArgs *a, x, gates, ups, downs, ids, str compute) except -1:
    """Note sizes and types of the arguments."""
    a.k, a.n_experts, a.n_out = ids.shape[1], len(gates), downs[0].rows
    a.inputs.k, a.hidden.k = x.shape[1], gates[0].rows
    a.inputs.stride, a.hidden.stride = a.inputs.k, a.hidden.k
    first = (*gates, *ups)
    a.inputs.bytes = _code_bytes(compute, first)
    a.hidden.bytes = _code_bytes(compute, downs)
    a.floats = a.inputs.bytes == 0 or any(w.type in checks.FLOAT_FORMATS for w in first)
    return 0


cdef void _size_experts(ExpertsArgs *a, Py_ssize_t n) noexcept:
    """Divide the scratch memory for `n` tokens."""
    cdef Py_ssize_t slots = n * a.k
    cdef Py_ssize_t width = max(a.n_out, a.inputs.k if a.floats else 0)
    cdef Py_ssize_t pass_tokens = min(slots, <Py_ssize_t>RML_PASS_TOKENS)
    a.n_tokens = n
    a.inputs.n_tokens = a.hidden.n_tokens = slots
    a.rows = max(rml_inputs_bytes(&a.inputs), rml_inputs_bytes(&a.hidden))
    a.middle = a.rows + _aligned(slots * width * 4)
    a.groups = a.middle + _aligned(slots * a.hidden.k * 4)
    a.shared = a.groups + _aligned(rml_groups_bytes(a.n_experts, slots))
    a.strip = _aligned(pass_tokens * RML_ROWS * 4)
    a.per_thread = 2 * a.strip + max(
        rml_rows_scratch(a.inputs.k, pass_tokens), rml_rows_scratch(a.hidden.k, pass_tokens))


cdef class MixExperts(Op):
    cdef ExpertsArgs a

    def __dealloc__(self):
        free(self.a.gates)

    def __init__(self, x, gates, ups, downs, ids, weights, out, *, activation="silu",
                 compute="int8x2", Scratch scratch=None):
        cdef ExpertsArgs *a = &self.a
        cdef int i
        checks.mix_experts(x, gates, ups, downs, ids, weights, out, activation, compute)
        self.owners = (x, gates, ups, downs, ids, weights, out)
        self.args = a
        a.x, a.weights, a.out = _f32(x), _f32(weights), _f32(out)
        a.ids = <const int32_t *>cnp.PyArray_DATA(ids)
        _shape_experts(a, x, gates, ups, downs, ids, compute)
        a.activation = {"silu": RML_SILU, "gelu_tanh": RML_GELU_TANH}[activation]
        self.nbytes = 3 * a.n_experts * sizeof(rml_matrix)
        a.gates = <rml_matrix *>malloc(self.nbytes)
        if a.gates == NULL:
            raise MemoryError("no memory for the records of a mixture of experts")
        a.ups = a.gates + a.n_experts
        a.downs = a.ups + a.n_experts
        for i in range(a.n_experts):
            _fill(&a.gates[i], gates[i])
            _fill(&a.ups[i], ups[i])
            _fill(&a.downs[i], downs[i])
        self.scratch = scratch if scratch is not None else Scratch()
        a.scratch = &self.scratch.base
        self.resize(x.shape[0])

    cdef int resize(self, Py_ssize_t n) except -1:
        """Mix the first `n` tokens."""
        cdef ExpertsArgs *a = &self.a
        cdef Py_ssize_t slots = n * a.k
        _size_experts(a, n)
        self.scratch_shared, self.scratch_per_thread = a.shared, a.per_thread
        self.n_stages = 0
        self.add_stage(experts_group, 1)
        self.add_stage(experts_gather, slots)
        self.add_stage(experts_gate_up, a.n_experts * _row_groups(a.hidden.k))
        if a.hidden.bytes:
            self.add_stage(experts_quantize_hidden, slots)
        self.add_stage(experts_down, a.n_experts * _row_groups(a.n_out))
        self.add_stage(experts_add, n)
        return 0

    @staticmethod
    def needs(Py_ssize_t n, x, gates, ups, downs, ids, weights, out, *, compute="int8x2", **kwargs):
        cdef ExpertsArgs a
        memset(&a, 0, sizeof(ExpertsArgs))
        _shape_experts(&a, x, gates, ups, downs, ids, compute)
        _size_experts(&a, n)
        return 3 * a.n_experts * sizeof(rml_matrix), a.shared, a.per_thread


def mix_experts(x, gates, ups, downs, ids, weights, out, *, activation="silu", compute="int8x2",
                scratch=None, n_threads=1):
    """Twin of `experts_py.mix_experts`.

    Within a program, where ids cannot be checked before, a token with one that is no expert's
    becomes NaN.
    """
    op = MixExperts(x, gates, ups, downs, ids, weights, out, activation=activation, compute=compute,
                    scratch=scratch)
    checks.expert_ids(ids, len(gates))
    op.run(n_threads)

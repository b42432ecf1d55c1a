"""Twin of product_py: rows of the weights in groups of 32, each with all tokens.

Inputs are prepared once for all matrices of a call (first stage, an item is a token): quantized, or
laid out for the caches where many are multiplied in float32. Then every group of 32 rows of every
matrix is an item of the second stage. The inner loops are in product_avx512.h, product_rows.h and
product_f32.h; the three kernels differ in what they do with a finished strip of results.
"""

cdef extern from "product.h" nogil:
    enum:
        RML_UNIT
        RML_ROWS
        RML_PASS_TOKENS
        F32_BLOCK
        F32_PAD
        RML_SILU
        RML_GELU_TANH
    ctypedef struct rml_matrix:
        const uint8_t *data
        Py_ssize_t rows, cols, row_bytes
        int type
    ctypedef struct rml_inputs:
        const float *x
        Py_ssize_t n_tokens, k, stride
        int bytes
    Py_ssize_t rml_inputs_bytes(const rml_inputs *inputs)
    void rml_place_inputs(rml_inputs *inputs, char *p)
    void rml_quantize_row(const rml_inputs *inputs, Py_ssize_t t)
    Py_ssize_t rml_rows_scratch(Py_ssize_t k, Py_ssize_t n_tokens)
    void rml_rows(const rml_matrix *w, Py_ssize_t row, int n, const rml_inputs *inputs, Py_ssize_t t0,
                  Py_ssize_t t1, float *strip, char *scratch)
    void rml_store_strip(const float *strip, Py_ssize_t n_tokens, int n, const float *bias, float *out,
                         Py_ssize_t stride)
    void rml_add_strip(const float *strip, Py_ssize_t n_tokens, int n, float *out, Py_ssize_t stride)
    void rml_gate_strip(float *gate, const float *up, Py_ssize_t n_tokens, int n, int activation, float *out,
                        Py_ssize_t stride)

cdef struct Job:
    rml_matrix weight
    rml_matrix up         # the second matrix of a gated pair
    const float *bias     # (rows,) or NULL
    float *out            # (T, rows)
    Py_ssize_t first      # its first item

cdef enum Ending:
    STORE
    ADD
    GATE

cdef struct ProductArgs:
    rml_inputs inputs
    Job *jobs
    int n_jobs
    Ending ending
    int activation
    bint spread           # inputs are copied to rows that are further apart
    char **scratch        # where the base pointer is kept: memory may move between runs
    Py_ssize_t shared     # bytes before the first thread's part
    Py_ssize_t per_thread
    Py_ssize_t strip      # bytes of one strip


cdef inline Py_ssize_t _aligned(Py_ssize_t nbytes) noexcept nogil:
    return (nbytes + 63) & ~<Py_ssize_t>63


cdef rml_inputs _placed(rml_inputs inputs, char *p) noexcept nogil:
    """The inputs, with their quantized form laid out in scratch memory from `p` on."""
    rml_place_inputs(&inputs, p)
    return inputs


cdef rml_inputs _prepared(ProductArgs *a) noexcept nogil:
    """The inputs as the products take them."""
    cdef rml_inputs inputs = _placed(a.inputs, a.scratch[0])
    if a.spread:
        inputs.x = <const float *>a.scratch[0]
    return inputs


cdef void prepare_tokens(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ProductArgs *a = <ProductArgs *>p
    cdef rml_inputs inputs = _placed(a.inputs, a.scratch[0])
    cdef float *rows = <float *>a.scratch[0]
    cdef Py_ssize_t t
    for t in range(start, stop):
        if a.spread:
            memcpy(rows + t * inputs.stride, inputs.x + t * inputs.k, inputs.k * sizeof(float))
        else:
            rml_quantize_row(&inputs, t)


cdef void product_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef ProductArgs *a = <ProductArgs *>p
    cdef rml_inputs inputs = _prepared(a)
    cdef char *own = a.scratch[0] + a.shared + thread * a.per_thread
    cdef float *strip = <float *>own
    cdef float *second = <float *>(own + a.strip)
    cdef char *rest = own + 2 * a.strip
    cdef Py_ssize_t item, row, t0, t1
    cdef int n, j = 0
    cdef Job *job
    cdef float *out
    cdef const float *bias
    for item in range(start, stop):
        while j + 1 < a.n_jobs and a.jobs[j + 1].first <= item:
            j += 1
        job = &a.jobs[j]
        row = (item - job.first) * RML_ROWS
        n = <int>min(<Py_ssize_t>RML_ROWS, job.weight.rows - row)
        t0 = 0
        while t0 < inputs.n_tokens:
            t1 = min(t0 + RML_PASS_TOKENS, inputs.n_tokens)
            out = job.out + t0 * job.weight.rows + row
            rml_rows(&job.weight, row, n, &inputs, t0, t1, strip, rest)
            if a.ending == GATE:
                rml_rows(&job.up, row, n, &inputs, t0, t1, second, rest)
                rml_gate_strip(strip, second, t1 - t0, n, a.activation, out, job.weight.rows)
            elif a.ending == ADD:
                rml_add_strip(strip, t1 - t0, n, out, job.weight.rows)
            else:
                bias = job.bias
                if bias != NULL:
                    bias += row
                rml_store_strip(strip, t1 - t0, n, bias, out, job.weight.rows)
            t0 = t1


cdef int _code_bytes(str compute, weights) except -1:
    """Bytes of a code of the inputs, 0 where none is needed."""
    if any(weight.type in checks.QUANTIZED_FORMATS for weight in weights):
        return {"f32": 0, "int8": 1, "int8x2": 2}[compute]
    return 0


cdef void _size_product(ProductArgs *a, Py_ssize_t n) noexcept:
    """Divide the scratch memory for `n` rows of inputs."""
    cdef Py_ssize_t k = a.inputs.k, pass_tokens = min(n, <Py_ssize_t>RML_PASS_TOKENS)
    a.inputs.n_tokens = n
    a.spread = a.inputs.bytes == 0 and n > F32_BLOCK
    a.inputs.stride = k + F32_PAD if a.spread else k
    a.shared = rml_inputs_bytes(&a.inputs)
    if a.spread:
        a.shared = _aligned(n * a.inputs.stride * sizeof(float))
    a.strip = _aligned(pass_tokens * RML_ROWS * 4)
    a.per_thread = 2 * a.strip + rml_rows_scratch(k, pass_tokens)


cdef tuple _product_needs(Py_ssize_t n, Py_ssize_t k, str compute, weights, Py_ssize_t n_jobs):
    cdef ProductArgs a
    memset(&a, 0, sizeof(ProductArgs))
    a.inputs.k, a.inputs.bytes = k, _code_bytes(compute, weights)
    _size_product(&a, n)
    return n_jobs * sizeof(Job), a.shared, a.per_thread


cdef class Product(Op):
    """What the three kernels share: inputs, jobs, scratch memory and the two stages."""

    cdef ProductArgs a
    cdef Py_ssize_t n_items   # groups of rows of all matrices

    def __dealloc__(self):
        free(self.a.jobs)

    cdef int set_up(self, cnp.ndarray x, list jobs, Ending ending, int activation, str compute,
                    Scratch scratch) except -1:
        """Each job is (weight, up or None, bias or None, out); everything has been checked."""
        cdef Py_ssize_t items = 0
        cdef int i
        cdef Job *job
        self.nbytes = len(jobs) * sizeof(Job)
        self.a.jobs = <Job *>malloc(self.nbytes)
        if self.a.jobs == NULL:
            raise MemoryError("no memory for the records of a product")
        for i, (weight, up, bias, out) in enumerate(jobs):
            job = &self.a.jobs[i]
            memset(job, 0, sizeof(Job))
            _fill(&job.weight, weight)
            if up is not None:
                _fill(&job.up, up)
            if bias is not None:
                job.bias = _f32(bias)
            job.out = _f32(out)
            job.first = items
            items += -(-weight.rows // RML_ROWS)
        self.a.n_jobs = len(jobs)
        self.a.ending = ending
        self.a.activation = activation
        self.a.inputs.x = _f32(x)
        self.a.inputs.k = x.shape[1]
        self.a.inputs.bytes = _code_bytes(
            compute, [w for weight, up, _, _ in jobs for w in (weight, up) if w is not None])
        self.owners = (x, jobs)
        self.args = &self.a
        self.scratch = scratch if scratch is not None else Scratch()
        self.a.scratch = &self.scratch.base
        self.n_items = items
        self.resize(x.shape[0])
        return 0

    cdef int resize(self, Py_ssize_t n) except -1:
        """Multiply the first `n` rows of the inputs."""
        _size_product(&self.a, n)
        self.scratch_shared = self.a.shared
        self.scratch_per_thread = self.a.per_thread
        self.n_stages = 0
        if self.a.inputs.bytes or self.a.spread:
            self.add_stage(prepare_tokens, n)
        self.add_stage(product_rows, self.n_items)
        return 0


cdef int _fill(rml_matrix *m, weight) except -1:
    m.data = _u8(weight.data)
    m.rows = weight.rows
    m.cols = weight.cols
    m.row_bytes = FORMATS[weight.type].row_bytes(weight.cols)
    m.type = FORMATS[weight.type].id
    return 0


cdef class MatmulMany(Product):
    def __init__(self, x, weights, outs, *, biases=None, compute="int8x2", scratch=None):
        checks.matmul_many(x, weights, outs, biases, compute)
        biases = [None] * len(weights) if biases is None else biases
        jobs = [(w, None, b, out) for w, b, out in zip(weights, biases, outs)]
        self.set_up(x, jobs, STORE, 0, compute, scratch)

    @staticmethod
    def needs(Py_ssize_t n, x, weights, outs, *, compute="int8x2", **kwargs):
        return _product_needs(n, x.shape[1], compute, weights, len(weights))


cdef class MatmulGlu(Product):
    def __init__(self, x, gate, up, out, *, activation="silu", compute="int8x2", scratch=None):
        checks.matmul_glu(x, gate, up, out, activation, compute)
        code = {"silu": RML_SILU, "gelu_tanh": RML_GELU_TANH}[activation]
        self.set_up(x, [(gate, up, None, out)], GATE, code, compute, scratch)

    @staticmethod
    def needs(Py_ssize_t n, x, gate, up, out, *, compute="int8x2", **kwargs):
        return _product_needs(n, x.shape[1], compute, (gate, up), 1)


cdef class Accumulate(Product):
    def __init__(self, h, weight, x, *, compute="int8x2", scratch=None):
        checks.accumulate(h, weight, x, compute)
        self.set_up(h, [(weight, None, None, x)], ADD, 0, compute, scratch)

    @staticmethod
    def needs(Py_ssize_t n, h, weight, x, *, compute="int8x2", **kwargs):
        return _product_needs(n, h.shape[1], compute, (weight,), 1)

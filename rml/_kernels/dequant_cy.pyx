"""Twin of dequant_py: blocks, or the rows of token ids, dealt to threads."""

cdef extern from "formats.h" nogil:
    void rml_expand(const uint8_t *row, int type, Py_ssize_t n, float *out)

from rml._kernels.block_formats import FORMATS

cdef struct DequantizeArgs:
    const uint8_t *data
    float *out
    int type
    Py_ssize_t length     # values in a block
    Py_ssize_t n_bytes    # bytes of a block
    Py_ssize_t blocks
    Py_ssize_t piece      # blocks in an item


cdef void dequantize_pieces(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef DequantizeArgs *a = <DequantizeArgs *>p
    cdef Py_ssize_t first = start * a.piece
    cdef Py_ssize_t last = min(stop * a.piece, a.blocks)
    if last > first:
        rml_expand(a.data + first * a.n_bytes, a.type, (last - first) * a.length,
                   a.out + first * a.length)


cdef class Dequantize(Op):
    cdef DequantizeArgs a

    def __init__(self, data, format_name, out):
        checks.dequantize(data, format_name, out)
        entry = FORMATS[format_name]
        self.owners = (data, out)
        blocks = data.shape[0] // entry.n_bytes
        self.a = DequantizeArgs(_u8(data), _f32(out), entry.id, entry.length, entry.n_bytes,
                                blocks, max(1, 1024 // entry.length))
        self.args = &self.a
        self.add_stage(dequantize_pieces, -(-blocks // self.a.piece))


def dequantize(data, format_name, out, *, n_threads=1):
    """Twin of `dequant_py.dequantize`."""
    Dequantize(data, format_name, out).run(n_threads)


cdef struct EmbedArgs:
    const int32_t *ids    # (T,)
    const uint8_t *data
    float *out            # (T, D)
    int type
    Py_ssize_t row_bytes, d
    float scale


cdef void embed_rows(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef EmbedArgs *a = <EmbedArgs *>p
    cdef Py_ssize_t t, i
    cdef float *out
    for t in range(start, stop):
        out = a.out + t * a.d
        rml_expand(a.data + a.ids[t] * a.row_bytes, a.type, a.d, out)
        for i in range(a.d):
            out[i] = out[i] * a.scale


cdef class Embed(Op):
    cdef EmbedArgs a

    def __init__(self, ids, weight, out, *, scale=1.0):
        checks.embed(ids, weight, out)
        self.owners = (ids, weight.data, out)
        self.a = EmbedArgs(<const int32_t *>cnp.PyArray_DATA(ids), _u8(weight.data), _f32(out),
                           FORMATS[weight.type].id, FORMATS[weight.type].row_bytes(weight.cols),
                           weight.cols, scale)
        self.args = &self.a
        self.add_stage(embed_rows, ids.shape[0])


def embed(ids, weight, out, *, scale=1.0, n_threads=1):
    """Twin of `dequant_py.embed`."""
    Embed(ids, weight, out, scale=scale).run(n_threads)

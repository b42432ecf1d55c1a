"""Twin of dequant_py: blocks, or the rows of token ids, dealt to threads."""

cdef extern from "expand.h" nogil:
    ctypedef struct rml_tables_t:
        uint8_t nonlinear[16]
        uint8_t e2m1[16]
        uint64_t iq1[2048]
        uint64_t iq2_xxs[256]
        uint64_t iq2_xs[512]
        uint64_t iq2_s[1024]
        uint32_t iq3_xxs[256]
        uint32_t iq3_s[512]
    rml_tables_t rml_tables
    ctypedef struct rml_format_entry:
        const char *name
        int id, length, n_bytes
    rml_format_entry rml_formats[]
    int RML_N_FORMATS
    void rml_expand(const uint8_t *row, int type, Py_ssize_t n, float *out)

from rml._kernels.block_formats import FORMATS
from rml._kernels.format_tables import E2M1_DOUBLED, GRIDS, NONLINEAR


# Quantized formats that the twins know: name -> id, length and bytes of a block.
QUANTIZED = {
    rml_formats[i].name.decode(): (rml_formats[i].id, rml_formats[i].length, rml_formats[i].n_bytes)
    for i in range(RML_N_FORMATS)
}


cdef int _copy_table(void *to, Py_ssize_t n_bytes, cnp.ndarray codes) except -1:
    """Copy codes, whose bias has been added, to a table of the headers."""
    cdef cnp.ndarray stored = codes.astype("uint8")
    assert stored.nbytes == n_bytes and (stored == codes).all()
    memcpy(to, cnp.PyArray_DATA(stored), n_bytes)
    return 0


_copy_table(rml_tables.nonlinear, sizeof(rml_tables.nonlinear), NONLINEAR.astype("int16") + 128)
_copy_table(rml_tables.e2m1, sizeof(rml_tables.e2m1), E2M1_DOUBLED + 12)
_copy_table(rml_tables.iq1, sizeof(rml_tables.iq1), GRIDS["IQ1"] * 8 + 8)
_copy_table(rml_tables.iq2_xxs, sizeof(rml_tables.iq2_xxs), GRIDS["IQ2_XXS"] + 64)
_copy_table(rml_tables.iq2_xs, sizeof(rml_tables.iq2_xs), GRIDS["IQ2_XS"] + 64)
_copy_table(rml_tables.iq2_s, sizeof(rml_tables.iq2_s), GRIDS["IQ2_S"] + 64)
_copy_table(rml_tables.iq3_xxs, sizeof(rml_tables.iq3_xxs), GRIDS["IQ3_XXS"] + 64)
_copy_table(rml_tables.iq3_s, sizeof(rml_tables.iq3_s), GRIDS["IQ3_S"] + 64)

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

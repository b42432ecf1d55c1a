"""Twin of merge_py: one word an item; short words without a heap (merge.h)."""

from rml._kernels import merge_tables

cdef extern from "merge.h" nogil:
    ctypedef struct rml_pairs:
        const int64_t *slots
        int bits
    ctypedef struct rml_tokens:
        const int64_t *slots
        const uint32_t *text
        const int64_t *ends
        const int32_t *ids
        const float *scores
        int64_t longest
        int bits
    size_t rml_merge_scratch(size_t longest)
    void rml_bpe_word(const rml_pairs *t, int32_t *symbols, size_t n, char *scratch)
    void rml_spm_word(const rml_tokens *t, const uint32_t *text, size_t n, int32_t *ids,
                      char *scratch)

cdef struct MergeArgs:
    rml_pairs pairs
    rml_tokens tokens
    const uint32_t *text     # (N,), of spm_merge
    int32_t *ids             # (N,)
    const int64_t *borders   # (W + 1,)
    char **scratch           # where the base pointer is kept: memory may move between runs
    Py_ssize_t per_thread


cdef void bpe_words(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef MergeArgs *a = <MergeArgs *>p
    cdef char *own = a.scratch[0] + thread * a.per_thread
    cdef Py_ssize_t w
    for w in range(start, stop):
        rml_bpe_word(&a.pairs, a.ids + a.borders[w], a.borders[w + 1] - a.borders[w], own)


cdef void spm_words(void *p, Py_ssize_t start, Py_ssize_t stop, int thread) noexcept nogil:
    cdef MergeArgs *a = <MergeArgs *>p
    cdef char *own = a.scratch[0] + thread * a.per_thread
    cdef Py_ssize_t w
    for w in range(start, stop):
        rml_spm_word(&a.tokens, a.text + a.borders[w], a.borders[w + 1] - a.borders[w],
                     a.ids + a.borders[w], own)


cdef inline void *_data(cnp.ndarray array) noexcept:
    return cnp.PyArray_DATA(array)


cdef class WordMerge(Op):
    cdef MergeArgs a

    cdef int set_words(self, Body body, borders) except -1:
        """Take the words; the longest one says how much scratch memory a thread needs."""
        cdef Py_ssize_t longest = int(merge_tables.word_lengths(borders).max(initial=0))
        if longest >= 1 << 30:
            raise ArgumentError(f"a word has {longest} parts; at most 2**30 can be merged")
        self.a.borders = <const int64_t *>_data(borders)
        self.scratch = Scratch()
        self.scratch_per_thread = (rml_merge_scratch(longest) + 63) & ~63
        self.a.scratch = &self.scratch.base
        self.a.per_thread = self.scratch_per_thread
        self.args = &self.a
        self.add_stage(body, len(borders) - 1)
        return 0


cdef class BPEMerge(WordMerge):
    def __init__(self, symbols, borders, table):
        checks.array("symbols", symbols, (None,), "int32", writable=True)
        merge_tables.check_words("symbols", symbols, borders)
        self.owners = (symbols, borders, table)
        self.a.pairs = rml_pairs(<const int64_t *>_data(table.slots),
                                 len(table.slots).bit_length() - 1)
        self.a.ids = <int32_t *>_data(symbols)
        self.set_words(bpe_words, borders)


cdef class SPMMerge(WordMerge):
    def __init__(self, text, borders, table, ids):
        checks.array("text", text, (None,), "uint32")
        checks.array("ids", ids, text.shape, "int32", writable=True)
        merge_tables.check_words("text", text, borders)
        self.owners = (text, borders, table, ids)
        self.a.tokens = rml_tokens(
            <const int64_t *>_data(table.slots), <const uint32_t *>_data(table.text),
            <const int64_t *>_data(table.ends), <const int32_t *>_data(table.ids),
            <const float *>_data(table.entry_scores), table.longest,
            len(table.slots).bit_length() - 1)
        self.a.text = <const uint32_t *>_data(text)
        self.a.ids = <int32_t *>_data(ids)
        self.set_words(spm_words, borders)


def bpe_merge(symbols, borders, table, *, n_threads=1):
    """Twin of `merge_py.bpe_merge`."""
    BPEMerge(symbols, borders, table).run(n_threads)


def spm_merge(text, borders, table, ids, *, n_threads=1):
    """Twin of `merge_py.spm_merge`."""
    SPMMerge(text, borders, table, ids).run(n_threads)

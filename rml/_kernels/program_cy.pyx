"""A whole step in one call: the operations of a plan, without Python between them.

The threads are started once a step. They share the items of a stage as progress.h says, and begin
the next one when it has ended; stages of a single item that follow each other are taken as one.
Each record is what `Op.run` would do with it, so a program gives the bits that its operations give
one by one.
"""

from cython.parallel cimport parallel, threadid

cdef extern from *:
    """
    #ifdef _OPENMP
    #define rml_team_size() omp_get_num_threads()
    #else
    #define rml_team_size() 1
    #endif
    """
    int rml_team_size() nogil

cdef extern from *:
    """
    #include <time.h>
    static double rml_clock(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    }
    """
    double rml_clock() nogil

cdef extern from "progress.h" nogil:
    ctypedef struct rml_progress:
        pass
    bint rml_take(rml_progress *p, Py_ssize_t items, int n_threads, Py_ssize_t *start, Py_ssize_t *stop)
    bint rml_add_done(rml_progress *p, Py_ssize_t items, Py_ssize_t n)
    void rml_end(rml_progress *p)
    bint rml_has_ended(rml_progress *p)
    void rml_wait_for_end(rml_progress *p)

cdef enum:
    MAX_CHAIN = 16  # the flag that aborts is not looked at within a chain

cdef struct ProgramRecord:
    Body body
    void *args
    Py_ssize_t items
    int operation
    bint last             # the last stage of its operation
    int chain             # records from here on that one thread runs: 1, or more with a single item

cdef struct ProgramState:
    ProgramRecord *records
    rml_progress *progress  # of every record that ends a chain, of one or of more
    int n_records
    const int32_t *abort
    double *seconds       # of every operation, or NULL: nobody wants to know
    double clock          # when the operation before ended


cdef void _take_time(ProgramState *s, ProgramRecord *r) noexcept nogil:
    cdef double now
    if r.last and s.seconds != NULL:
        now = rml_clock()
        s.seconds[r.operation] = now - s.clock
        s.clock = now


cdef void _work(ProgramState *s, int thread, int n_threads) noexcept nogil:
    cdef int i = 0, k
    cdef Py_ssize_t start, stop, items
    cdef ProgramRecord *r
    cdef rml_progress *progress
    while i < s.n_records and not s.abort[0]:
        r = &s.records[i]
        progress = &s.progress[i + r.chain - 1]
        items = max(r.items, 1)
        while rml_take(progress, items, n_threads, &start, &stop):
            if r.items > 1:
                r.body(r.args, start, stop, thread)
            else:
                for k in range(r.chain):
                    r[k].body(r[k].args, 0, r[k].items, thread)
                    if k < r.chain - 1:
                        _take_time(s, &r[k])
            if rml_add_done(progress, items, stop - start):
                _take_time(s, &r[r.chain - 1])
                rml_end(progress)
        rml_wait_for_end(progress)
        i += r.chain


cdef class Program:
    """Operations to be run in order, again and again.

    Parameters
    ----------
    ops : list of Op
        The operations; their arguments are fixed, the contents of their arrays are not.
    n_threads : int
        Threads that share every stage; results do not depend on it.
    abort : (1,) int32 array
        Setting it to something else than 0, from any thread, ends a run after the operation
        under way.
    """

    cdef list ops
    cdef object abort
    cdef ProgramState state
    cdef readonly int n_threads

    def __init__(self, list ops, int n_threads, abort):
        cdef Op op
        cdef int n = 0, i = 0, k, s
        checks.array("abort", abort, (1,), "int32", writable=True)
        self.ops = ops
        self.abort = abort
        self.n_threads = n_threads
        for op in ops:
            n += op.n_stages
        self.state.records = <ProgramRecord *>malloc(max(n, 1) * sizeof(ProgramRecord))
        self.state.progress = <rml_progress *>malloc(max(n, 1) * sizeof(rml_progress))
        if self.state.records == NULL or self.state.progress == NULL:
            raise MemoryError("no memory for the records of a program")
        for k, op in enumerate(ops):
            for s in range(op.n_stages):
                self.state.records[i] = ProgramRecord(
                    op.stages[s].body, op.args, op.stages[s].items, k, s == op.n_stages - 1, 1)
                i += 1
        for i in range(n - 2, -1, -1):
            if (self.state.records[i].items <= 1 and self.state.records[i + 1].items <= 1
                    and self.state.records[i + 1].chain < MAX_CHAIN):
                self.state.records[i].chain = self.state.records[i + 1].chain + 1
        self.state.n_records = n
        self.state.abort = <const int32_t *>cnp.PyArray_DATA(abort)

    def __dealloc__(self):
        free(self.state.records)
        free(self.state.progress)

    def run(self, seconds=None):
        """Run all operations; return whether they all ran (False after an abort).

        Parameters
        ----------
        seconds : (n_operations,) float64 array, optional
            Gets the time of every operation, waiting for the slowest thread included.
        """
        cdef Op op
        cdef ProgramState *state = &self.state
        cdef int n = self.n_threads
        state.seconds = NULL
        if seconds is not None:
            checks.array("seconds", seconds, (len(self.ops),), "float64", writable=True)
            state.seconds = <double *>cnp.PyArray_DATA(seconds)
        for op in self.ops:
            op.prepare(n)
        memset(state.progress, 0, state.n_records * sizeof(rml_progress))
        state.clock = rml_clock()
        if n == 1:
            with nogil:
                _work(state, 0, 1)
        else:
            with nogil, parallel(num_threads=n):
                # The team may be smaller than asked for.
                _work(state, threadid(), rml_team_size())
        # A stage begins when the one before has ended, so the last one tells of all.
        return state.n_records == 0 or rml_has_ended(&state.progress[state.n_records - 1])


OPS = {
    "accumulate": Accumulate,
    "add": Add,
    "attend": Attend,
    "embed": Embed,
    "matmul_glu": MatmulGlu,
    "matmul_many": MatmulMany,
    "mix_experts": MixExperts,
    "rms_norm": RmsNorm,
    "rope_angles": RopeAngles,
    "rotate": Rotate,
    "route": Route,
    "store_kv": StoreKV,
}

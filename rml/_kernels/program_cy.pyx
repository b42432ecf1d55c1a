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
    ctypedef struct rml_share:
        pass
    enum:
        RML_SHARES
    bint rml_take(rml_share *shares, int stage, Py_ssize_t items, int thread, int n_threads,
                  Py_ssize_t *start, Py_ssize_t *stop)
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

cdef struct Count:
    const int64_t *now    # or NULL: what the arrays hold
    Py_ssize_t each       # rows for each that is counted
    int64_t last          # how many there were when the stages were listed
    int record            # the operation's first stage

cdef struct ProgramState:
    ProgramRecord *records
    rml_share shares[RML_SHARES]
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
        while rml_take(s.shares, i + 1, items, thread, n_threads, &start, &stop):
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


def program_bytes(Py_ssize_t n):
    """Bytes of the records of a `Program` of `n` operations, without those of the operations."""
    return (max(n * MAX_STAGES, 1) * <Py_ssize_t>(sizeof(ProgramRecord) + sizeof(rml_progress))
            + max(n, 1) * <Py_ssize_t>sizeof(Count))


cdef class Program:
    """Operations to be run in order, again and again.

    Parameters
    ----------
    ops : list of Op
        The operations; their arguments are fixed, the contents of their arrays are not.
    counts : list, optional
        For each operation None, or ``(array, i, each)``: it computes the first ``array[i] * each``
        rows, which is read whenever the program runs; the array is int64.
    n_threads : int
        Threads that share every stage; results do not depend on it.
    abort : (1,) int32 array
        Setting it to something else than 0, from any thread, ends a run after the operation
        under way.
    """

    cdef list ops, counts
    cdef list moving          # operations that move, and their places
    cdef bint laid_out
    cdef object abort
    cdef ProgramState state
    cdef Count *count         # of every operation
    cdef readonly int n_threads

    def __init__(self, list ops, int n_threads, abort, list counts=None):
        cdef int n = len(ops), k
        checks.array("abort", abort, (1,), "int32", writable=True)
        self.ops, self.counts = ops, [None] * n if counts is None else counts
        self.abort = abort
        self.n_threads = n_threads
        self.state.records = <ProgramRecord *>malloc(max(n * MAX_STAGES, 1) * sizeof(ProgramRecord))
        self.state.progress = <rml_progress *>malloc(max(n * MAX_STAGES, 1) * sizeof(rml_progress))
        self.count = <Count *>malloc(max(n, 1) * sizeof(Count))
        if self.state.records == NULL or self.state.progress == NULL or self.count == NULL:
            raise MemoryError("no memory for the records of a program")
        for k, counted in enumerate(self.counts):
            self.count[k] = Count(NULL, 0, 0, 0)
            if counted is not None:
                array, at, each = counted
                checks.array("counts", array, (None,), "int64")
                if not 0 <= at < len(array):
                    raise ArgumentError(f"there is no count {at} among {len(array)}")
                self.count[k].now = <const int64_t *>cnp.PyArray_DATA(array) + <Py_ssize_t>at
                self.count[k].each = each
        self.state.abort = <const int32_t *>cnp.PyArray_DATA(abort)

    @property
    def nbytes(self):
        """Bytes of its records, and of those of its operations."""
        cdef Op op
        cdef Py_ssize_t found = program_bytes(len(self.ops))
        for op in self.ops:
            found += op.nbytes
        return found

    def __dealloc__(self):
        free(self.state.records)
        free(self.state.progress)
        free(self.count)

    cdef int lay_out(self) except -1:
        """List the stages, with the items that they have now."""
        cdef Op op
        cdef int n = 0, k = 0, s, i
        cdef ProgramRecord *records = self.state.records
        self.laid_out = False  # until the end: what has failed half-way is made again
        self.moving = []
        for op in self.ops:
            if self.count[k].now != NULL:
                self.count[k].last = self.count[k].now[0]
                op.resize(self.count[k].last * self.count[k].each)
            op.prepare(self.n_threads)
            self.count[k].record = n
            if op.moves:
                self.moving.append((op, k))
            for s in range(op.n_stages):
                records[n] = ProgramRecord(
                    op.stages[s].body, op.args, op.stages[s].items, k, s == op.n_stages - 1, 1)
                n += 1
            k += 1
        for i in range(n - 2, -1, -1):
            if records[i].items <= 1 and records[i + 1].items <= 1 and records[i + 1].chain < MAX_CHAIN:
                records[i].chain = records[i + 1].chain + 1
        self.state.n_records = n
        self.laid_out = True
        return 0

    cdef bint is_as_before(self) except -1:
        """Whether the list needs no other change than the items of what moves, which are noted.

        After a run the caches hold weights, so looking at every operation would cost as much as
        some of them do.
        """
        cdef Op op
        cdef int k, s
        cdef ProgramRecord *record
        if not self.laid_out:
            return False
        for k in range(len(self.ops)):
            if self.count[k].now != NULL and self.count[k].now[0] != self.count[k].last:
                return False
        for op, k in self.moving:
            op.prepare(self.n_threads)
            for s in range(op.n_stages):
                record = &self.state.records[self.count[k].record + s]
                if (record.items <= 1) != (op.stages[s].items <= 1):
                    return False  # the chains are others
                record.body, record.items = op.stages[s].body, op.stages[s].items
        return True

    def run(self, seconds=None):
        """Run all operations; return whether they all ran (False after an abort).

        Parameters
        ----------
        seconds : (n_operations,) float64 array, optional
            Gets the time of every operation, waiting for the slowest thread included.
        """
        cdef ProgramState *state = &self.state
        cdef int n = self.n_threads
        state.seconds = NULL
        if seconds is not None:
            checks.array("seconds", seconds, (len(self.ops),), "float64", writable=True)
            state.seconds = <double *>cnp.PyArray_DATA(seconds)
        if not self.is_as_before():
            self.lay_out()
        memset(state.progress, 0, state.n_records * sizeof(rml_progress))
        memset(state.shares, 0, sizeof(state.shares))
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

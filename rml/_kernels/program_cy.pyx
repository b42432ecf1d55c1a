"""A whole step in one call: the operations of a plan, without Python between them.

The threads are started once a step and wait for each other after every stage, but for stages of a
single item that follow each other, which the first thread runs alone. Each record is what `Op.run`
would do with it, so a program gives the bits that its operations give one by one.
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

cdef extern from "barrier.h" nogil:
    ctypedef struct rml_barrier:
        pass
    void rml_barrier_wait(rml_barrier *b, int n_threads)

cdef struct ProgramRecord:
    Body body
    void *args
    Py_ssize_t items
    int operation
    bint last             # the last stage of its operation
    bint wait             # whether the threads wait for each other behind it

cdef struct ProgramState:
    ProgramRecord *records
    int n_records
    rml_barrier barrier
    const int32_t *abort  # looked at before every operation
    int stopped           # the record at which the program was aborted, or -1
    double *seconds       # of every operation, or NULL: nobody wants to know
    double clock          # when the operation before ended


cdef void _take_time(ProgramState *s, int operation) noexcept nogil:
    cdef double now = rml_clock()
    s.seconds[operation] = now - s.clock
    s.clock = now


cdef void _work(ProgramState *s, int thread, int n_threads) noexcept nogil:
    cdef int i
    cdef ProgramRecord *r
    if thread == 0 and s.seconds != NULL:
        s.clock = rml_clock()
    for i in range(s.n_records):
        r = &s.records[i]
        if r.items <= 1:
            if thread == 0:
                r.body(r.args, 0, r.items, 0)
        else:
            r.body(r.args, _share(r.items, thread, n_threads),
                   _share(r.items, thread + 1, n_threads), thread)
        # One thread looks at the flag; the barrier shows the others what it saw.
        if thread == 0 and r.last and r.wait and s.abort[0]:
            s.stopped = i
        if r.wait and n_threads > 1:
            rml_barrier_wait(&s.barrier, n_threads)
        if thread == 0 and r.last and s.seconds != NULL:
            _take_time(s, r.operation)
        # Not ">= 0": thread 0 may be a stage ahead by now, and would wait there for the others.
        if s.stopped == i:
            return


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
        if self.state.records == NULL:
            raise MemoryError("no memory for the records of a program")
        for k, op in enumerate(ops):
            for s in range(op.n_stages):
                self.state.records[i] = ProgramRecord(
                    op.stages[s].body, op.args, op.stages[s].items, k, s == op.n_stages - 1, True)
                i += 1
        for i in range(n - 1):
            self.state.records[i].wait = (self.state.records[i].items > 1 or
                                          self.state.records[i + 1].items > 1)
        self.state.n_records = n
        self.state.abort = <const int32_t *>cnp.PyArray_DATA(abort)

    def __dealloc__(self):
        free(self.state.records)

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
        state.stopped = -1
        memset(&state.barrier, 0, sizeof(rml_barrier))
        if n == 1:
            with nogil:
                _work(state, 0, 1)
        else:
            with nogil, parallel(num_threads=n):
                # The team may be smaller than asked for.
                _work(state, threadid(), rml_team_size())
        return state.stopped < 0


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

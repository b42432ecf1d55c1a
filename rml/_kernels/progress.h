/* How the threads of a program share a stage and when the next one may begin.
 *
 * Threads take pieces of a stage's items until none is left, and a stage ends when all its items are
 * done, by whichever threads. A thread that the system has put aside holds up the others only if it
 * was put aside in the middle of a piece; when it comes back, it finds stages that have ended and
 * goes on to the one under way. Pieces get smaller towards the end, so that all threads end together.
 *
 * A stage takes microseconds, so waiting threads spin; after about 2000 pauses they yield.
 */
#ifndef RML_PROGRESS_H
#define RML_PROGRESS_H

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

enum { RML_PIECES = 2 }; /* a thread's share of what is left is taken in so many pieces */

/* Of one stage; zero before it. Stages are apart, so that each has a cache line of its own. */
typedef struct {
    atomic_ptrdiff_t taken, done; /* items */
    atomic_int ended;
    char apart[64 - 2 * sizeof(atomic_ptrdiff_t) - sizeof(atomic_int)];
} rml_progress;

static inline void rml_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Take items [*start, *stop) of those that nobody has taken; 0 if there are none. */
static inline int rml_take(rml_progress *p, ptrdiff_t items, int n_threads, ptrdiff_t *start, ptrdiff_t *stop) {
    ptrdiff_t from = atomic_load_explicit(&p->taken, memory_order_relaxed), n;
    do {
        if (from >= items) return 0;
        n = (items - from) / (RML_PIECES * n_threads);
        if (n < 1) n = 1;
    } while (!atomic_compare_exchange_weak_explicit(&p->taken, &from, from + n, memory_order_relaxed, memory_order_relaxed));
    *start = from;
    *stop = from + n;
    return 1;
}

/* Say that `n` items are done; whether these were the last ones. */
static inline int rml_add_done(rml_progress *p, ptrdiff_t items, ptrdiff_t n) {
    return atomic_fetch_add_explicit(&p->done, n, memory_order_acq_rel) + n == items;
}

static inline void rml_end(rml_progress *p) { atomic_store_explicit(&p->ended, 1, memory_order_release); }

static inline int rml_has_ended(rml_progress *p) { return atomic_load_explicit(&p->ended, memory_order_acquire); }

static inline void rml_wait_for_end(rml_progress *p) {
    for (int spins = 0; !rml_has_ended(p); ++spins) {
        if (spins < 2000)
            rml_pause();
        else
            sched_yield();
    }
}

#endif

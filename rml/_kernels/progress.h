/* How the threads of a program share a stage and when the next one may begin.
 *
 * Every thread has a share of a stage's items, neighbours in memory, and takes pieces of it from the
 * front: what it reads next has been fetched meanwhile. Pieces get smaller towards the end. Who has
 * finished his share takes pieces of others', so that all end together, and a thread that the system
 * has put aside holds up the others only if it was put aside in the middle of a piece; when it comes
 * back, it finds stages that have ended and goes on to the one under way.
 *
 * A stage takes microseconds, so waiting threads spin; after about 2000 pauses they yield.
 */
#ifndef RML_PROGRESS_H
#define RML_PROGRESS_H

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

/* Of one stage; zero before a run. Stages are apart, so that each has a cache line of its own. */
typedef struct {
    atomic_ptrdiff_t done; /* items */
    atomic_int ended;
    char apart[64 - sizeof(atomic_ptrdiff_t) - sizeof(atomic_int)];
} rml_progress;

enum { RML_SHARES = 32 }; /* at most: of more threads some have one together */

/* Of one share, of all stages one after another; zero before a run. */
typedef struct {
    atomic_llong taken; /* stage << 32 | items of it */
    char apart[64 - sizeof(atomic_llong)];
} rml_share;

static inline void rml_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Take items [*start, *stop) of those of a stage that nobody has taken; 0 if there are none. Stages
 * are numbered from 1 in their order; thread: 0 <= thread < n_threads. */
static inline int rml_take(rml_share *shares, int stage, ptrdiff_t items, int thread, int n_threads,
                           ptrdiff_t *start, ptrdiff_t *stop) {
    const int most = n_threads < RML_SHARES ? n_threads : RML_SHARES, n_shares = items < most ? (int)items : most;
    for (int k = 0; k < n_shares; ++k) {
        const int whose = (thread + k) % n_shares;
        const ptrdiff_t first = items * whose / n_shares, last = items * (whose + 1) / n_shares;
        long long now = atomic_load_explicit(&shares[whose].taken, memory_order_relaxed);
        for (;;) {
            const int at = (int)(now >> 32);
            if (at > stage) return 0; /* this one has ended */
            const ptrdiff_t from = first + (at == stage ? (ptrdiff_t)(now & 0xffffffff) : 0), n = (last - from + 1) / 2;
            if (n == 0) break;
            const long long then = (long long)stage << 32 | (from + n - first);
            if (atomic_compare_exchange_weak_explicit(&shares[whose].taken, &now, then, memory_order_relaxed, memory_order_relaxed)) {
                *start = from;
                *stop = from + n;
                return 1;
            }
        }
    }
    return 0;
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

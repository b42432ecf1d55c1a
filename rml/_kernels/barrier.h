/* Where the threads of a program wait for each other between two stages.
 *
 * A stage takes microseconds, so waiting threads spin; after about 2000 pauses they yield, so that
 * two threads on one processor still make progress. The last one to arrive opens the barrier.
 */
#ifndef RML_BARRIER_H
#define RML_BARRIER_H

#include <sched.h>
#include <stdatomic.h>

/* Each number in a cache line of its own. By distance, not by alignment: a barrier lives in a Python
 * object, whose memory is aligned to 16 bytes. */
typedef struct {
    char before[64];
    atomic_int arrived;
    char between[64 - sizeof(atomic_int)];
    atomic_int round;
    char behind[64];
} rml_barrier;

_Static_assert(_Alignof(rml_barrier) <= 16, "a barrier is a part of a Python object");

static inline void rml_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void rml_barrier_wait(rml_barrier *b, int n_threads) {
    const int round = atomic_load_explicit(&b->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) == n_threads - 1) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&b->round, round + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&b->round, memory_order_acquire) == round; ++spins) {
        if (spins < 2000)
            rml_pause();
        else
            sched_yield();
    }
}

#endif

/* How threads share work, and wait for one another. */
#ifndef KVSTITCH_WORK_H
#define KVSTITCH_WORK_H

#include "bfloat16.h"

#include <sched.h>
#include <stddef.h>

/* About 10 us. Who waits longer gives the core to others: where cores are shared, the thread that
 * it waits for may need it. */
#define SPINS 500

/* Takes the next strips for a thread, *first..*end, out of *next..all; returns 0 when none is left.
 * Runs are long at first, which reads memory fastest, and get ever shorter, so that a slower thread
 * takes fewer strips. */
INLINE int next_run(ptrdiff_t *next, ptrdiff_t all, int threads, ptrdiff_t *first, ptrdiff_t *end)
{
    *first = __atomic_load_n(next, __ATOMIC_RELAXED);
    do {
        if (*first >= all)
            return 0;
        ptrdiff_t run = (all - *first) / (2 * threads);
        *end = *first + (run > 1 ? run : 1);
    } while (!__atomic_compare_exchange_n(next, first, *end, 0, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return 1;
}

/* A point that all threads reach before any goes on. Zeros at first. */
struct barrier {
    int arrived, passed;
};

/* The OpenMP library's own barriers sleep at once where its wait policy is passive. */
INLINE void wait_for_all(struct barrier *barrier, int threads)
{
    int passed = __atomic_load_n(&barrier->passed, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->passed, passed + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&barrier->passed, __ATOMIC_ACQUIRE) == passed; spins++)
        if (spins < SPINS)
            _mm_pause();
        else
            sched_yield();
}

#endif

/* How threads share work, and wait for one another; and how memory is cut up for it. */
#ifndef KVSTITCH_WORK_H
#define KVSTITCH_WORK_H

#include "bfloat16.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 40 us: longer than a thread waits whose partner is running, shorter than any time slice. */
#define SPINS 2000
#define EVERYBODY 0x7fffffff

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
    int arrived, passed, asleep;
};

/* Who waits longer than others compute sleeps, because where cores are shared the thread that it
 * waits for may need this one. It must not yield instead: that gives away the rest of a thread's
 * share, not only its turn, and whoever is there takes whole time slices, whatever its priority.
 * The OpenMP library's own barriers sleep at once where its wait policy is passive. */
INLINE void wait_for_all(struct barrier *barrier, int threads)
{
    int passed = __atomic_load_n(&barrier->passed, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&barrier->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier->passed, passed + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&barrier->asleep, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &barrier->passed, FUTEX_WAKE_PRIVATE, EVERYBODY, NULL, NULL, 0);
        return;
    }
    for (int spins = 0; spins < SPINS; spins++) {
        if (__atomic_load_n(&barrier->passed, __ATOMIC_ACQUIRE) != passed)
            return;
        _mm_pause();
    }
    __atomic_add_fetch(&barrier->asleep, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&barrier->passed, __ATOMIC_SEQ_CST) == passed)
        syscall(SYS_futex, &barrier->passed, FUTEX_WAIT_PRIVATE, passed, NULL, NULL, 0);
    __atomic_sub_fetch(&barrier->asleep, 1, __ATOMIC_SEQ_CST);
}

/* Takes the next `count` values of 2 or 4 bytes from memory that is cut up. */
INLINE void *cut(char **memory, ptrdiff_t count, size_t size)
{
    void *part = *memory;
    *memory += ((size_t)count * size + 63) / 64 * 64;
    return part;
}

#endif

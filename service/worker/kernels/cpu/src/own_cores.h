/* Keeps the threads of a step apart, one to a core.
 *
 * Threads that sleep while they wait are put where the system finds room. Beside a process that
 * computes all the time, though with the least priority, two of them often share the other core, and
 * then take turns at every operation: a step takes two and a half times as long.
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>

/* Fills in the cores that the calling thread may run on. Returns whether there are as many as
 * threads; with fewer threads others compute too, and the system knows better. */
static int as_many_cores(cpu_set_t *cores, int threads)
{
    return threads > 1 && !sched_getaffinity(0, sizeof *cores, cores) && CPU_COUNT(cores) == threads;
}

/* Puts the calling thread on core `number` of these; costs little where it is there already. */
static void take_core(const cpu_set_t *cores, int number)
{
    int core = 0;
    for (int before = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, cores) && before++ == number)
            break;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* Lets the calling thread, which starts others elsewhere, run on all of these again. */
static void leave_core(const cpu_set_t *cores)
{
    sched_setaffinity(0, sizeof *cores, cores);
}

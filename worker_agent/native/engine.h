/* What the worker's and the root's engine share besides packets and labels: threads, the lock and its wake-up, sleeping,
 * and what any configuration must fulfil. */
#ifndef INART_ENGINE_H
#define INART_ENGINE_H

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "packet_io.h"

#define WAKE_SPACING (INART_NS / 5000) /* wake-ups for packets are at least this far apart */
#define SPARSE 8                       /* ... when fewer than this came at a time */

/* ---- threads ---- */

/* Signals stay with the program's own threads: Python's main thread must be the one that Ctrl-C interrupts. 0 or an errno. */
static inline int inart_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

/* CPU time of a running thread; 0: unknown. */
static inline uint64_t inart_thread_cpu(pthread_t thread)
{
    clockid_t clock;
    struct timespec cpu;
    if (pthread_getcpuclockid(thread, &clock) || clock_gettime(clock, &cpu))
        return 0;
    return (uint64_t)cpu.tv_sec * INART_NS + (uint64_t)cpu.tv_nsec;
}

/* ---- the lock of an I/O thread: others come before it; and what wakes it ---- */

struct engine_lock {
    pthread_mutex_t mutex;
    atomic_int waiters;
    int event;
};

static inline int engine_lock_make(struct engine_lock *l) /* 0 or -1 */
{
    pthread_mutex_init(&l->mutex, NULL);
    l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return l->event < 0 ? -1 : 0;
}

static inline void engine_lock_free(struct engine_lock *l)
{
    if (l->event >= 0)
        close(l->event);
    l->event = -1;
}

static inline void engine_enter(struct engine_lock *l)
{
    atomic_fetch_add(&l->waiters, 1);
    pthread_mutex_lock(&l->mutex);
    atomic_fetch_sub(&l->waiters, 1);
}

static inline void engine_leave(struct engine_lock *l) { pthread_mutex_unlock(&l->mutex); }

static inline void engine_wake(struct engine_lock *l)
{
    uint64_t one = 1;
    if (write(l->event, &one, sizeof one) < 0) { /* full: it is awake already */
    }
}

static inline void engine_woken(struct engine_lock *l)
{
    uint64_t count;
    if (read(l->event, &count, sizeof count) < 0) { /* somebody else's wake-up was enough */
    }
}

/* The I/O thread, after sleeping: lets those who wait go first. */
static inline void engine_return(struct engine_lock *l)
{
    while (atomic_load(&l->waiters))
        sched_yield();
    pthread_mutex_lock(&l->mutex);
}

/* Until a descriptor has something, or `until` (CLOCK_MONOTONIC; UINT64_MAX: no limit). */
static inline void pause_until(struct pollfd *descriptors, unsigned count, uint64_t until)
{
    struct timespec wait, *limit = NULL;
    if (until != UINT64_MAX) {
        uint64_t now = inart_now(), ns = until > now ? until - now : 0;
        wait = (struct timespec){.tv_sec = (time_t)(ns / INART_NS), .tv_nsec = (long)(ns % INART_NS)};
        limit = &wait;
    }
    ppoll(descriptors, count, limit, NULL);
}

/* ---- configurations: 0, or -1 with the reason in `error` ---- */

static inline int check_job(uint32_t workers, uint32_t values, uint32_t job, char *error, size_t size)
{
    if (workers >= 1 && workers <= INART_MAX_WORKERS && values >= INART_MIN_VALUES && values <= INART_MAX_VALUES && job <= UINT16_MAX)
        return 0;
    snprintf(error, size, "%u workers, %u values a packet, job %u: at most %d workers, %d to %d values, job below 65536", workers, values, job,
             INART_MAX_WORKERS, INART_MIN_VALUES, INART_MAX_VALUES);
    return -1;
}

static inline int check_slots(uint32_t tree, uint32_t slots, char *error, size_t size)
{
    if (slots >= 1 && slots <= 1u << 24 && !(slots & (slots - 1)))
        return 0;
    snprintf(error, size, "tree %u has %u slots: they must be a power of two", tree, slots);
    return -1;
}

#endif

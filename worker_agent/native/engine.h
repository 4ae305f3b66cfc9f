/* What the worker's and the root's engine share besides packets and labels: I/O threads, each with its own lock, lanes and
 * buffers; their sleep; and what any configuration must fulfil. */
#ifndef INART_ENGINE_H
#define INART_ENGINE_H

#include <fenv.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "io_backends.h"
#include "labels.h"

#define WAKE_SPACING (INART_NS / 5000) /* wake-ups for packets are at least this far apart in the long run */
#define SPARSE 8                       /* ... when fewer than this came at a time, */
#define QUICK 16                       /* ... but so many may come at once: what comes now and then is taken at once */
#define MOST_THREADS INART_PORTS_PER_JOB
#define ROUNDS 8                       /* of receiving, before it is time to send */

/* ---- shared with worker_agent/io_options.py (ctypes), which compares the sizes ---- */
/* The link of a host on which a worker and a parameter server run: what both send over it counts here, so that together they never
 * send more than it carries. Each packet takes its time of the link, one after the other, as if it were sent at once. New results
 * always go, as the plan has room for them; contributions, and whatever is sent once more, wait until the link has come to them. */
struct inart_uplink {
    _Atomic uint64_t free_at; /* CLOCK_MONOTONIC: when all that was sent so far is on the wire */
    double ns_a_byte;
};
struct inart_io_config {
    char interface[IFNAMSIZ];
    uint32_t address;       /* of the data interface, host order; 0: its first */
    uint32_t receive_bytes; /* of the kernel's receive buffer; 0: as much as there is */
    int32_t backend;        /* INART_UDP, INART_RAW */
    uint32_t threads;
    int32_t core[MOST_THREADS]; /* of each thread; -1: any */
    struct inart_uplink *uplink; /* outlives the engine; NULL: it shares the link with no other */
};
struct inart_io_stats {
    uint64_t messages_sent, messages_received, foreign, receive_buffer, segments;
    char trouble[INART_TROUBLE];
};
struct inart_packet_stats {
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received, malformed, unknown, other_epoch, other_source, send_errors, kernel_drops;
    uint64_t wakeups, cpu_ns;
};
/* ------------------------------------------------------------------------------------ */

struct engine_sleep {
    uint64_t until;
    bool listen; /* wake for packets */
    uint64_t spacing; /* ... not sooner after the last wake-up: few are of no use */
    bool sparse;      /* they come few at a time: such wake-ups are rationed (WAKE_SPACING) */
};

struct engine_thread {
    pthread_mutex_t mutex; /* covers all of the thread's own state */
    atomic_int waiters;    /* for it; they come before the thread */
    int event;
    int link; /* readable when the kernel has news of interfaces; -1: it gives none */
    struct owned owned; /* these descriptors */
    pthread_t thread;
    bool started, closing;
    bool look; /* whether the lanes' interface is still the same must be looked at */
    int core;
    struct inart_uplink *uplink; /* NULL: shared with nobody */
    const char *name;
    struct engine_sleep (*work)(struct engine_thread *); /* one round; says how long nothing will happen by itself */
    struct io *io, *retired;                             /* retired: to be closed, once the thread no longer looks */
    struct io *opened;                                   /* to be used next, see engine_open; NULL: the present ones */
    uint64_t wakeups;
    uint64_t rationed; /* when its wake-ups so far would have ended, each given WAKE_SPACING */
    /* What it sleeps for, while it sleeps (holding the lock to read it): who does its work meanwhile knows if it must be woken. */
    struct engine_sleep asleep;
    /* A request: the thread opens lanes, because it is in the right network namespace and on the right core. */
    const struct io_spec *wanted;
    bool good; /* the answer */
    char *error;
    size_t error_size;
    pthread_cond_t answered;
};

/* ---- the link that a worker and a parameter server on one host share ---- */

#define UPLINK_AHEAD (INART_NS / 250) /* of the link's time that may be taken in advance, */
#define UPLINK_PACKETS 4              /* ... and packets at least: a link's own queue holds more */

/* Packets of so many bytes in all are sent over it. */
static inline void uplink_take(struct inart_uplink *u, uint32_t bytes, uint64_t now)
{
    if (!u)
        return;
    uint64_t before = atomic_load(&u->free_at), after;
    do
        after = (before > now ? before : now) + (uint64_t)(u->ns_a_byte * bytes);
    while (!atomic_compare_exchange_weak(&u->free_at, &before, after));
}

/* When a packet of so many bytes may go that can wait. `now` or earlier: at once. */
static inline uint64_t uplink_due(const struct inart_uplink *u, uint32_t bytes, uint64_t now)
{
    if (!u)
        return now;
    uint64_t packets = (uint64_t)(UPLINK_PACKETS * u->ns_a_byte * bytes), ahead = packets > UPLINK_AHEAD ? packets : UPLINK_AHEAD;
    uint64_t free_at = atomic_load(&u->free_at);
    return free_at > now + ahead ? free_at - ahead : now;
}

/* ---- the lock ---- */

static inline void engine_enter(struct engine_thread *t)
{
    atomic_fetch_add(&t->waiters, 1);
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_sub(&t->waiters, 1);
}

static inline void engine_leave(struct engine_thread *t) { pthread_mutex_unlock(&t->mutex); }

static inline void engine_wake(struct engine_thread *t)
{
    uint64_t one = 1;
    if (write(t->event, &one, sizeof one) < 0) { /* full: it is awake already */
    }
}

/* ---- the thread ---- */

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

/* Why a thread is awake, beside packets and its own timers. */
struct engine_woken {
    bool asked, link; /* by another thread; by news of interfaces */
};

/* Sleeps as `sleep` says, not holding the lock; which sources of `io` have packets, and what else woke it. Others
 * may give the thread other lanes meanwhile: these stay open until it is back. */
static inline struct engine_woken engine_rest(struct engine_thread *t, const struct io *io, const struct engine_sleep *sleep, uint64_t woken,
                                              uint32_t *ready)
{
    struct pollfd descriptors[3] = {
        {.fd = t->event, .events = POLLIN}, {.fd = t->link, .events = POLLIN}, {.fd = io ? io->any : -1, .events = POLLIN}};
    uint64_t now = inart_now(), spacing = sleep->spacing;
    bool looked = false;
    if (sleep->sparse && spacing < WAKE_SPACING && t->rationed > now + QUICK * WAKE_SPACING)
        spacing = WAKE_SPACING;
    if (sleep->until > now) {
        if (sleep->listen && woken + spacing > now) {
            uint64_t until = woken + spacing;
            pause_until(descriptors, 2, until < sleep->until ? until : sleep->until);
        }
        if (!descriptors[0].revents && !descriptors[1].revents) {
            pause_until(descriptors, sleep->listen ? 3 : 2, sleep->until);
            looked = sleep->listen;
        }
    }
    *ready = !io || (looked && !descriptors[2].revents) ? 0 : io_waiting(io);
    return (struct engine_woken){.asked = descriptors[0].revents & POLLIN, .link = descriptors[1].revents};
}

/* Where the kernel tells of interfaces and addresses that come, change and go; -1: nowhere, and then only what cannot be sent, and a
 * new configuration, show that an interface was made again. */
static inline int engine_hear_links(void)
{
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* What the news are does not matter: the interface is looked at. */
static inline void engine_forget_news(struct engine_thread *t)
{
    char nothing[1];
    while (recv(t->link, nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC) >= 0 || errno == ENOBUFS) {
    }
}

/* From now on the thread uses `io` (holding its lock). */
static inline void engine_change(struct engine_thread *t, struct io *io)
{
    if (t->io) {
        io->counters = t->io->counters; /* they count since the engine was made */
        io->counters.kernel_drops += t->io->backend->drops(t->io);
        t->io->next = t->retired;
        t->retired = t->io;
    }
    t->io = io;
}

/* Looks whether the lanes' interface is still the one that they were opened on, and opens them on the one that has its name now. What
 * was built and not sent is lost with the old ones, as on any link that goes down. While there is none, news of it are waited for. */
static inline void engine_follow(struct engine_thread *t)
{
    char error[INART_TROUBLE];
    struct io *io = t->io;
    if (t->look)
        io->retry = io->refused_wait = 0;
    t->look = io->failed = false;
    if (!io_moved(io))
        return;
    struct io *again = io_open(&io->spec, error, sizeof error);
    if (again)
        engine_change(t, again);
    else
        memcpy(io->trouble, error, sizeof error);
}

static inline void *engine_run(void *argument)
{
    struct engine_thread *t = argument;
    uint64_t woken = 0;
    fesetenv(FE_DFL_ENV); /* the creating thread may flush subnormals to zero */
    pthread_setname_np(pthread_self(), t->name);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: bursts are a few tens of microseconds apart at high rates */
    if (t->core >= 0) {
        cpu_set_t cores;
        CPU_ZERO(&cores);
        CPU_SET(t->core, &cores);
        pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
    }
    owned_lock();
    t->link = engine_hear_links();
    if (t->link >= 0)
        owned_add(&t->owned, t->link);
    owned_unlock();
    pthread_mutex_lock(&t->mutex);
    while (!t->closing) {
        if (t->wanted) {
            bool same = t->io && !memcmp(&t->io->spec, t->wanted, sizeof *t->wanted) && !io_moved(t->io);
            t->opened = same ? NULL : io_open(t->wanted, t->error, t->error_size);
            t->good = same || t->opened;
            t->wanted = NULL;
            pthread_cond_broadcast(&t->answered);
        }
        if (t->io && (t->look || t->io->failed))
            engine_follow(t);
        while (t->retired) {
            struct io *old = t->retired;
            t->retired = old->next;
            io_close(old);
        }
        struct engine_sleep sleep = t->work(t);
        t->asleep = sleep;
        t->wakeups++;
        const struct io *io = t->io;
        engine_leave(t);
        uint32_t ready = 0;
        struct engine_woken by = engine_rest(t, io, &sleep, woken, &ready);
        if (by.asked) {
            uint64_t count;
            if (read(t->event, &count, sizeof count) < 0) { /* somebody else's wake-up was enough */
            }
        }
        if (by.link)
            engine_forget_news(t);
        woken = inart_now();
        t->rationed = (t->rationed > woken ? t->rationed : woken) + WAKE_SPACING;
        while (atomic_load(&t->waiters))
            sched_yield();
        pthread_mutex_lock(&t->mutex);
        t->look |= by.link;
        if (t->io)
            t->io->ready |= ready;
    }
    engine_leave(t);
    return NULL;
}

/* 0, or an errno. Signals stay with the program's own threads: Python's main thread must be the one that Ctrl-C interrupts. */
static inline int engine_start(struct engine_thread *t, const char *name, int core, struct engine_sleep (*work)(struct engine_thread *))
{
    t->name = name;
    t->core = core;
    t->work = work;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->answered, NULL);
    t->link = -1;
    owned_lock();
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->event >= 0)
        owned_add(&t->owned, t->event);
    owned_unlock();
    if (t->event < 0)
        return errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&t->thread, NULL, engine_run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->started = result == 0; /* else engine_free closes what there is */
    return result;
}

/* Ends the thread and closes its lanes. */
static inline void engine_join(struct engine_thread *t)
{
    if (!t->started)
        return;
    engine_enter(t);
    t->closing = true;
    engine_leave(t);
    engine_wake(t);
    pthread_join(t->thread, NULL);
    t->started = false;
}

static inline void engine_free(struct engine_thread *t) /* after engine_join; also of one that never started */
{
    if (!t->name)
        return;
    owned_lock();
    owned_give_up(&t->owned);
    if (t->event >= 0)
        close(t->event);
    if (t->link >= 0)
        close(t->link);
    owned_unlock();
    io_close(t->io);
    io_close(t->opened);
    while (t->retired) {
        struct io *old = t->retired;
        t->retired = old->next;
        io_close(old);
    }
    t->io = t->opened = NULL;
}

/* Lanes as `spec` says, opened by the thread for engine_use or engine_discard; its present ones do when they are the same. 0, or -1 with
 * the reason in `error`. */
static inline int engine_open(struct engine_thread *t, const struct io_spec *spec, char *error, size_t size)
{
    engine_enter(t);
    t->error = error;
    t->error_size = size;
    t->wanted = spec;
    engine_wake(t);
    while (t->wanted)
        pthread_cond_wait(&t->answered, &t->mutex);
    bool good = t->good;
    engine_leave(t);
    return good ? 0 : -1;
}

/* What was opened is not used (holding the lock). */
static inline void engine_discard(struct engine_thread *t)
{
    io_close(t->opened);
    t->opened = NULL;
}

/* From now on the thread uses what was opened (holding its lock). */
static inline void engine_use(struct engine_thread *t)
{
    if (t->opened)
        engine_change(t, t->opened);
    t->opened = NULL;
    io_clear(t->io);
    t->io->last_errno = 0;
    t->io->trouble[0] = 0;
    t->look = true; /* it may have changed since then */
}

/* What is to be opened for the trees of one thread: its lanes are their ports, and where these lead (enum io_reach). -1: more than
 * INART_MOST_LANES. */
static inline int spec_add(struct io_spec *spec, uint32_t port, uint32_t reach, uint32_t *lane)
{
    for (*lane = 0; *lane < spec->lanes; ++*lane)
        if (spec->port[*lane] == port && spec->reach[*lane] == reach)
            return 0;
    if (spec->lanes == INART_MOST_LANES)
        return -1;
    spec->port[spec->lanes] = (uint16_t)port;
    spec->reach[spec->lanes++] = (uint8_t)reach;
    return 0;
}

static inline struct io_spec spec_of(const struct inart_io_config *config, uint32_t values)
{
    struct io_spec spec;
    memset(&spec, 0, sizeof spec); /* compared with memcmp */
    memcpy(spec.interface, config->interface, sizeof spec.interface);
    spec.interface[IFNAMSIZ - 1] = 0;
    spec.address = config->address;
    spec.values = values;
    spec.receive_bytes = config->receive_bytes;
    spec.backend = config->backend;
    return spec;
}

static inline uint64_t engine_drops(const struct engine_thread *t)
{
    return t->io ? t->io->counters.kernel_drops + t->io->backend->drops(t->io) : 0;
}

/* CPU time of a running thread; 0: unknown. */
static inline uint64_t engine_cpu(const struct engine_thread *t)
{
    clockid_t clock;
    struct timespec cpu;
    if (pthread_getcpuclockid(t->thread, &clock) || clock_gettime(clock, &cpu))
        return 0;
    return (uint64_t)cpu.tv_sec * INART_NS + (uint64_t)cpu.tv_nsec;
}

/* Of one thread, added to `sum` (holding its lock): what it counted itself, and its I/O for it. */
static inline void engine_packets(const struct engine_thread *t, const struct inart_packet_stats *counted, struct inart_packet_stats *sum)
{
    sum->packets_sent += counted->packets_sent;
    sum->packets_received += counted->packets_received + t->io->counters.malformed;
    sum->bytes_sent += counted->bytes_sent;
    sum->bytes_received += counted->bytes_received;
    sum->malformed += counted->malformed + t->io->counters.malformed;
    sum->unknown += counted->unknown;
    sum->other_epoch += counted->other_epoch;
    sum->other_source += counted->other_source;
    sum->send_errors += t->io->counters.send_errors;
    sum->kernel_drops += engine_drops(t);
    sum->wakeups += t->wakeups;
    sum->cpu_ns += engine_cpu(t);
}

/* Of one thread, added to `stats` (holding its lock). */
static inline void engine_statistics(const struct engine_thread *t, struct inart_io_stats *stats)
{
    const struct io *io = t->io;
    if (!io)
        return;
    stats->messages_sent += io->counters.messages_sent;
    stats->messages_received += io->counters.messages_received;
    stats->foreign += io->counters.foreign;
    if (!stats->receive_buffer || io->receive_buffer < stats->receive_buffer)
        stats->receive_buffer = io->receive_buffer;
    if (!stats->segments || io->segments < stats->segments)
        stats->segments = io->segments;
    if (io->trouble[0])
        memcpy(stats->trouble, io->trouble, sizeof stats->trouble);
}

/* ---- who may send ---- */

/* Addresses that packets may come from; of none: anybody's. -1: out of memory. */
static inline int sources_make(struct label_map *map, const uint32_t *source, uint32_t count)
{
    if (label_map_make(map, count))
        return -1;
    for (uint32_t i = 0; i < count; i++)
        label_map_set(map, source[i], 0);
    return 0;
}

/* Whether a message comes from where it may; else its packets are counted. */
static inline bool sources_have(const struct label_map *map, bool any, const struct io_in *in, struct inart_packet_stats *stats)
{
    if (any || label_map_get(map, in->source) >= 0)
        return true;
    uint32_t packets = in->segment ? (in->bytes + in->segment - 1) / in->segment : 1;
    stats->packets_received += packets;
    stats->bytes_received += in->bytes + (uint64_t)packets * INART_OFFSET_HEADER;
    stats->other_source += packets;
    return false;
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

static inline int check_tree(uint32_t tree, uint32_t slots, uint32_t port, uint32_t thread, uint32_t threads, char *error, size_t size)
{
    if (slots < 1 || slots > 1u << 24 || slots & (slots - 1))
        snprintf(error, size, "tree %u has %u slots: they must be a power of two", tree, slots);
    else if (port > UINT16_MAX || (port & INART_UDP_PORT_MASK) != INART_UDP_PORT_BASE)
        snprintf(error, size, "tree %u has UDP port %u: ports %u to %u are ours", tree, port, INART_UDP_PORT_BASE,
                 INART_UDP_PORT_BASE | (~INART_UDP_PORT_MASK & 0xffff));
    else if (thread >= threads)
        snprintf(error, size, "tree %u is on I/O thread %u of %u", tree, thread, threads);
    else
        return 0;
    return -1;
}

#endif

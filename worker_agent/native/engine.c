/* The I/O threads of both engines: how they sleep, open their lanes and follow their interface (engine.h). */
#include <errno.h>
#include <fenv.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "engine.h"

/* The reasons for which a thread is awake, beside packets and its own timers. */
struct engine_woken {
    bool asked, link; /* by another thread; by news of interfaces */
};

/* Sleeps until a descriptor is readable, or until `until` (CLOCK_MONOTONIC; UINT64_MAX: no limit). */
static void pause_until(struct pollfd *descriptors, unsigned count, uint64_t until) {
    struct timespec wait, *limit = NULL;
    if (until != UINT64_MAX) {
        uint64_t now = inart_now(), ns = until > now ? until - now : 0;
        wait = (struct timespec){.tv_sec = (time_t)(ns / INART_NS), .tv_nsec = (long)(ns % INART_NS)};
        limit = &wait;
    }
    ppoll(descriptors, count, limit, NULL);
}

/* Sleeps as `sleep` says, without holding the lock. Sets *ready to the sources of `io` that have packets, and returns
 * what else woke the thread. Other threads may give it other lanes meanwhile: the old ones stay open until it is back.
 */
static struct engine_woken engine_rest(struct engine_thread *t, const struct io *io, const struct engine_sleep *sleep,
                                       uint64_t woken, uint32_t *ready) {
    struct pollfd descriptors[3] = {{.fd = t->event, .events = POLLIN},
                                    {.fd = t->link, .events = POLLIN},
                                    {.fd = io ? io->any : -1, .events = POLLIN}};
    uint64_t now = inart_now(), spacing = sleep->spacing;
    bool looked = false;
    if (sleep->sparse && spacing < WAKE_SPACING && t->rationed > now + QUICK * WAKE_SPACING) spacing = WAKE_SPACING;
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

/* Returns a socket on which the kernel tells of interfaces and addresses that come, change and go. -1: there is none,
 * and then only a failure to send, or a new configuration, shows that an interface was made again. */
static int engine_hear_links(void) {
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Reads and forgets the kernel's messages: their content does not matter, because the interface is looked at. */
static void engine_forget_news(struct engine_thread *t) {
    char nothing[1];
    while (recv(t->link, nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC) >= 0 || errno == ENOBUFS) {
    }
}

/* Makes the thread use `io` from now on; the caller holds its lock. */
static void engine_change(struct engine_thread *t, struct io *io) {
    if (t->io) {
        io->counters = t->io->counters; /* they count since the engine was made */
        io->counters.kernel_drops += io_backend.drops(t->io);
        t->io->next = t->retired;
        t->retired = t->io;
    }
    t->io = io;
}

/* Checks whether the lanes' interface is still the one that they were opened on, and opens them on the interface that
 * has its name now. Packets that were built and not sent are lost with the old lanes, as on any link that goes down.
 * While there is no such interface, the thread waits for the kernel's messages. */
static void engine_follow(struct engine_thread *t) {
    char error[INART_TROUBLE];
    struct io *io = t->io;
    if (t->look) io->retry = io->refused_wait = 0;
    t->look = io->failed = false;
    if (!io_moved(io)) return;
    struct io *again = io_open(&io->spec, error, sizeof error);
    if (again)
        engine_change(t, again);
    else
        memcpy(io->trouble, error, sizeof error);
}

static void *engine_run(void *argument) {
    struct engine_thread *t = argument;
    uint64_t woken = 0;
    fesetenv(FE_DFL_ENV); /* the creating thread may flush subnormals to zero */
    pthread_setname_np(pthread_self(), t->name);
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns: bursts are a few tens of microseconds apart at high rates */
    owned_lock();
    t->link = engine_hear_links();
    if (t->link >= 0) owned_add(&t->owned, t->link);
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
        if (t->io && (t->look || t->io->failed)) engine_follow(t);
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
        if (by.link) engine_forget_news(t);
        woken = inart_now();
        t->rationed = (t->rationed > woken ? t->rationed : woken) + WAKE_SPACING;
        while (atomic_load(&t->waiters)) sched_yield();
        pthread_mutex_lock(&t->mutex);
        t->look |= by.link;
        if (t->io) t->io->ready |= ready;
    }
    engine_leave(t);
    return NULL;
}

int engine_start(struct engine_thread *t, const char *name, struct engine_sleep (*work)(struct engine_thread *)) {
    t->name = name;
    t->work = work;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->answered, NULL);
    t->link = -1;
    owned_lock();
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->event >= 0) owned_add(&t->owned, t->event);
    owned_unlock();
    if (t->event < 0) return errno;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&t->thread, NULL, engine_run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    t->started = result == 0; /* else engine_free closes what there is */
    return result;
}

void engine_join(struct engine_thread *t) {
    if (!t->started) return;
    engine_enter(t);
    t->closing = true;
    engine_leave(t);
    engine_wake(t);
    pthread_join(t->thread, NULL);
    t->started = false;
}

void engine_free(struct engine_thread *t) /* after engine_join; also of one that never started */
{
    if (!t->name) return;
    owned_lock();
    owned_give_up(&t->owned);
    if (t->event >= 0) close(t->event);
    if (t->link >= 0) close(t->link);
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

int engine_open(struct engine_thread *t, const struct io_spec *spec, char *error, size_t size) {
    engine_enter(t);
    t->error = error;
    t->error_size = size;
    t->wanted = spec;
    engine_wake(t);
    while (t->wanted) pthread_cond_wait(&t->answered, &t->mutex);
    bool good = t->good;
    engine_leave(t);
    return good ? 0 : -1;
}

void engine_discard(struct engine_thread *t) {
    io_close(t->opened);
    t->opened = NULL;
}

void engine_use(struct engine_thread *t) {
    if (t->opened) engine_change(t, t->opened);
    t->opened = NULL;
    io_clear(t->io);
    t->io->last_errno = 0;
    t->io->trouble[0] = 0;
    t->look = true; /* it may have changed since then */
}

/* Adds the lanes of a port, one over each link where it leads there (enum io_reach), to those that are opened for one
 * thread, unless they are among them. Sets *lane to the first of them; they are one after the other. Returns -1 for
 * more than INART_MOST_LANES. */
static int spec_add(struct io_spec *spec, uint32_t port, uint32_t reach, uint32_t *lane) {
    unsigned links = reach == INART_HERE ? 1 : 1 + spec->more;
    for (*lane = 0; *lane < spec->lanes; ++*lane)
        if (spec->port[*lane] == port && spec->reach[*lane] == reach) return 0;
    if (spec->lanes + links > INART_MOST_LANES) return -1;
    for (unsigned link = 0; link < links; link++) {
        spec->port[spec->lanes] = (uint16_t)port;
        spec->link[spec->lanes] = (uint8_t)link;
        spec->reach[spec->lanes++] = (uint8_t)reach;
    }
    return 0;
}

uint32_t engine_lane_over(const struct io_spec *spec, uint32_t lane, uint32_t link) {
    if (link > spec->more || spec->reach[lane] == INART_HERE) return lane;
    return lane - spec->link[lane] + link;
}

struct io_spec engine_spec(const struct inart_io_config *config, uint32_t values) {
    struct io_spec spec;
    memset(&spec, 0, sizeof spec); /* compared with memcmp */
    memcpy(spec.interface, config->interface, sizeof spec.interface);
    spec.interface[IFNAMSIZ - 1] = 0;
    spec.more = config->more < INART_MOST_LINKS ? config->more : INART_MOST_LINKS - 1;
    for (unsigned i = 0; i < spec.more; i++) {
        memcpy(spec.further[i], config->further[i], IFNAMSIZ);
        spec.further[i][IFNAMSIZ - 1] = 0;
    }
    spec.address = config->address;
    spec.values = values;
    spec.receive_bytes = config->receive_bytes;
    spec.service = (uint8_t)(config->dscp << 2 | INART_ECN_CAPABLE);
    return spec;
}

static uint64_t engine_drops(const struct engine_thread *t) {
    return t->io ? t->io->counters.kernel_drops + io_backend.drops(t->io) : 0;
}

/* Returns the CPU time of a running thread in ns; 0: unknown. */
static uint64_t engine_cpu(const struct engine_thread *t) {
    clockid_t clock;
    struct timespec cpu;
    if (pthread_getcpuclockid(t->thread, &clock) || clock_gettime(clock, &cpu)) return 0;
    return (uint64_t)cpu.tv_sec * INART_NS + (uint64_t)cpu.tv_nsec;
}

void engine_packets(const struct engine_thread *t, const struct inart_packet_stats *counted,
                    struct inart_packet_stats *sum) {
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

void engine_statistics(const struct engine_thread *t, struct inart_io_stats *stats) {
    const struct io *io = t->io;
    if (!io) return;
    stats->messages_sent += io->counters.messages_sent;
    stats->messages_received += io->counters.messages_received;
    if (!stats->receive_buffer || io->receive_buffer < stats->receive_buffer)
        stats->receive_buffer = io->receive_buffer;
    if (!stats->segments || io->segments < stats->segments) stats->segments = io->segments;
    if (io->trouble[0]) memcpy(stats->trouble, io->trouble, sizeof stats->trouble);
}

int engine_sources_make(struct label_map *map, const uint32_t *source, uint32_t count) {
    if (label_map_make(map, count)) return -1;
    for (uint32_t i = 0; i < count; i++) label_map_set(map, source[i], 0);
    return 0;
}

int engine_lane(struct io_spec *spec, uint32_t port, uint32_t reach, uint32_t link, uint32_t *lane, char *error,
                size_t size) {
    if (link > spec->more) {
        snprintf(error, size, "a tree goes over link %u of %u of this host: give its interfaces in their order",
                 link + 1, spec->more + 1);
        return -1;
    }
    if (!spec_add(spec, port, reach, lane)) {
        *lane = engine_lane_over(spec, *lane, link);
        return 0;
    }
    snprintf(error, size, "the trees of one I/O thread have more than %d ports", INART_MOST_LANES);
    return -1;
}

int engine_check_job(uint32_t workers, uint32_t values, uint32_t job, char *error, size_t size) {
    if (workers >= 1 && workers <= INART_MAX_WORKERS && values >= INART_MIN_VALUES && values <= INART_MAX_VALUES &&
        job <= UINT16_MAX)
        return 0;
    snprintf(error, size,
             "%u workers, %u values a packet, job %u: at most %d workers, %d to %d values, job below 65536", workers,
             values, job, INART_MAX_WORKERS, INART_MIN_VALUES, INART_MAX_VALUES);
    return -1;
}

int engine_check_tree(uint32_t tree, uint32_t slots, uint32_t port, uint32_t thread, uint32_t threads, char *error,
                      size_t size) {
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

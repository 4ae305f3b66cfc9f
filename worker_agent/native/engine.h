/* The common part of the worker's and the root's engine, besides packets and labels: I/O threads, each with its own
 * lock, lanes and buffers; their sleep; and the conditions that any configuration must fulfil. */
#ifndef INART_ENGINE_H
#define INART_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "labels.h"
#include "uplink.h"

/* Marks what Python calls; all other functions are seen within their library only. */
#ifdef __clang__
#define INART_PUBLIC __attribute__((visibility("default")))
#else
#define INART_PUBLIC __attribute__((visibility("default"), externally_visible))
#endif

#define WAKE_SPACING (INART_NS / 5000) /* wake-ups for packets are at least this far apart in the long run */
#define SPARSE 8                       /* ... when fewer than this came at a time, */
#define QUICK 16                       /* ... but so many may come at once: what comes now and then is taken at once */
#define MOST_THREADS INART_PORTS_PER_JOB
#define ROUNDS 8 /* of receiving, before it is time to send */
#define SLOWEST_WAIT (4 * INART_NS)
#define SLOWEST_PACKETS 2

/* ---- shared with worker_agent/io_options.py, which reads the fields here (worker_agent/c_structures.py) ---- */
struct inart_io_config {
    char interface[IFNAMSIZ];
    uint32_t more; /* further links of the host, by their interfaces (io.h) */
    char further[INART_MOST_LINKS - 1][IFNAMSIZ];
    uint32_t address;       /* of the data interface, host order; 0: its first */
    uint32_t receive_bytes; /* of the kernel's receive buffer; 0: as much as there is */
    uint32_t dscp;          /* of the packets that it sends (RFC 2474) */
    uint32_t threads;
    struct inart_uplink *uplink; /* outlives the engine; NULL: it shares the link with no other */
};
struct inart_io_stats {
    uint64_t messages_sent, messages_received, receive_buffer, segments;
    char trouble[INART_TROUBLE];
};
struct inart_packet_stats {
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received, malformed, unknown, other_epoch, other_source,
        send_errors, kernel_drops;
    uint64_t wakeups, cpu_ns;
};
/* ------------------------------------------------------------------------------------ */

struct engine_sleep {
    uint64_t until;
    bool listen;      /* wake for packets */
    uint64_t spacing; /* ... not sooner after the last wake-up: few are of no use */
    bool sparse;      /* they come few at a time: such wake-ups are rationed (WAKE_SPACING) */
};

struct engine_thread {
    pthread_mutex_t mutex; /* covers all of the thread's own state */
    atomic_int waiters;    /* for it; they come before the thread */
    int event;
    int link;           /* readable when the kernel has news of interfaces; -1: it gives none */
    struct owned owned; /* these descriptors */
    pthread_t thread;
    bool started, closing;
    bool look;                   /* whether the lanes' interface is still the same must be looked at */
    struct inart_uplink *uplink; /* NULL: shared with nobody */
    const char *name;
    struct engine_sleep (*work)(struct engine_thread *); /* one round; says how long nothing will happen by itself */
    struct io *io, *retired;                             /* retired: to be closed, once the thread no longer looks */
    bool congested;                                      /* the packet that is taken now was marked: io_in */
    struct io *opened;                                   /* to be used next, see engine_open; NULL: the present ones */
    uint64_t wakeups;
    uint64_t rationed; /* when its wake-ups so far would have ended, each given WAKE_SPACING */
    /* What the thread sleeps for, while it sleeps (read it with the lock held): another thread that does its work
     * meanwhile knows by it whether it must be woken. */
    struct engine_sleep asleep;
    /* A request that the thread opens these lanes, because it is in the right network namespace. */
    const struct io_spec *wanted;
    bool good; /* the answer */
    char *error;
    size_t error_size;
    pthread_cond_t answered;
};

/* ---- the lock ---- */

static inline void engine_enter(struct engine_thread *t) {
    atomic_fetch_add(&t->waiters, 1);
    pthread_mutex_lock(&t->mutex);
    atomic_fetch_sub(&t->waiters, 1);
}

static inline void engine_leave(struct engine_thread *t) { pthread_mutex_unlock(&t->mutex); }

static inline void engine_wake(struct engine_thread *t) {
    uint64_t one = 1;
    if (write(t->event, &one, sizeof one) < 0) { /* full: it is awake already */
    }
}

/* ---- the thread ---- */

/* Starts the thread; returns 0, or an errno. Signals stay with the program's own threads: Python's main thread must be
 * the one that Ctrl-C interrupts. */
int engine_start(struct engine_thread *t, const char *name, struct engine_sleep (*work)(struct engine_thread *));

/* Ends the thread and closes its lanes. */
void engine_join(struct engine_thread *t);

void engine_free(struct engine_thread *t);

/* Has the thread open lanes as `spec` says, for engine_use or engine_discard; its present lanes are kept when they are
 * the same. Returns 0, or -1 with the reason in `error`. */
int engine_open(struct engine_thread *t, const struct io_spec *spec, char *error, size_t size);

/* Closes what engine_open opened, without using it; the caller holds the lock. */
void engine_discard(struct engine_thread *t);

/* Makes the thread use what engine_open opened; the caller holds its lock. */
void engine_use(struct engine_thread *t);

struct io_spec engine_spec(const struct inart_io_config *config, uint32_t values);

/* Adds a thread's packet counters to `sum`: those that it counted itself, and those of its I/O; the caller holds its
 * lock. */
void engine_packets(const struct engine_thread *t, const struct inart_packet_stats *counted,
                    struct inart_packet_stats *sum);

/* Adds a thread's I/O counters to `stats`; the caller holds its lock. */
void engine_statistics(const struct engine_thread *t, struct inart_io_stats *stats);

/* ---- who may send ---- */

/* Makes the set of addresses that packets may come from; with none, they may come from anywhere. Returns -1 when out of
 * memory. */
int engine_sources_make(struct label_map *map, const uint32_t *source, uint32_t count);

/* Returns whether a message comes from an address in the set; otherwise its packets are counted. */
static inline bool engine_sources_have(const struct label_map *map, bool any, const struct io_in *in,
                                       struct inart_packet_stats *stats) {
    if (any || label_map_get(map, in->source) >= 0) return true;
    uint32_t packets = in->segment ? (in->bytes + in->segment - 1) / in->segment : 1;
    stats->packets_received += packets;
    stats->bytes_received += in->bytes + (uint64_t)packets * INART_OFFSET_HEADER;
    stats->other_source += packets;
    return false;
}

/* Handles a packet that has come; the thread holds its lock. */
typedef void engine_take(struct engine_thread *t, uint8_t *packet, size_t bytes, uint64_t now);

/* Gives `take` the packets from the sources of `io`, of senders that may send, in at most ROUNDS rounds, and returns
 * their number. With `flush`, packets that `take` built leave after each round. */
static inline int engine_receive(struct engine_thread *t, engine_take *take, const struct label_map *sources,
                                 bool any_source, struct inart_packet_stats *stats, bool flush, uint64_t now) {
    struct io *io = t->io;
    int received = 0;
    for (int rounds = 0; rounds < ROUNDS && io->ready; rounds++) {
        for (unsigned source = 0; source < io->sources; source++) {
            if (!(io->ready >> source & 1)) continue;
            int n = io_receive(io, source);
            for (int i = 0; i < n; i++) {
                const struct io_in *in = &io->in[i];
                if (!engine_sources_have(sources, any_source, in, stats)) continue;
                t->congested = in->congested;
                for (uint32_t at = 0; at < in->bytes || !at; at += in->segment ? in->segment : 1, received++) {
                    io_fetch(in, at);
                    take(t, in->data + at, in->bytes - at < in->segment ? in->bytes - at : in->segment, now);
                }
            }
        }
        io->ready &= (uint32_t)((1ull << io->sources) - 1);
        if (flush) io_flush(io, now);
    }
    return received;
}

/* Finds the lane of a port over one of the links. There is a lane over each link, so that a tree may change to another
 * link (engine_lane_over). Returns 0, or -1 with the reason in `error`. */
int engine_lane(struct io_spec *spec, uint32_t port, uint32_t reach, uint32_t link, uint32_t *lane, char *error,
                size_t size);

/* Returns the lane of the same port over another link; `lane` itself where there is no such link, or its packets stay
 * on this host. */
uint32_t engine_lane_over(const struct io_spec *spec, uint32_t lane, uint32_t link);

/* ---- timers ---- */

/* Returns the time (ns) of so many packets of a tree, for timers for packets that may be lost; 0 where its rate is not
 * known. A tree may be planned for a packet in many seconds: no such timer waits longer than SLOWEST_WAIT, or than the
 * time of SLOWEST_PACKETS where that is more, because a peer that did not begin at the same moment is so late. */
static inline double engine_turn(double packets_per_second, int packets) {
    if (!(packets_per_second > 0)) return 0;
    double turn = packets * 1e9 / packets_per_second, most = SLOWEST_PACKETS * 1e9 / packets_per_second;
    if (most < SLOWEST_WAIT) most = SLOWEST_WAIT;
    return turn < most ? turn : most;
}

/* ---- configurations: 0, or -1 with the reason in `error` ---- */

int engine_check_job(uint32_t workers, uint32_t values, uint32_t job, char *error, size_t size);

int engine_check_tree(uint32_t tree, uint32_t slots, uint32_t port, uint32_t thread, uint32_t threads, char *error,
                      size_t size);

#endif

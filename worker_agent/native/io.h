/* Packets in and out of one interface for one I/O thread: what the engines see of it. A back end does the work behind
 * it: io_udp.c, or that of the network in virtual time (evaluation/recovery).
 *
 * A lane is a UDP port: all packets of a tree have the tree's port as destination, so ports keep trees, and with them
 * threads, apart. Packets travel in super-frames: up to 120 of one lane and one size, one after another, that the
 * kernel takes and gives as one message (segmentation offload). They are built in place, in the buffer that the kernel
 * reads, and taken apart in the one that it wrote. Nothing here blocks.
 */
#ifndef INART_IO_H
#define INART_IO_H

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "owned.h"
#include "packet.h"

#define INART_NS 1000000000ull
#define INART_MS (INART_NS / 1000)
#define INART_MOST_LINKS 8 /* interfaces of a host that a job uses */
/* a port may be received from twice: what comes over links, and what stays here; */
#define INART_MOST_SOURCES (2 * INART_PORTS_PER_JOB)
/* and sent to over each link, and here */
#define INART_MOST_LANES ((INART_MOST_LINKS + 1) * INART_PORTS_PER_JOB)
#define INART_SEGMENTS 120    /* packets in a super-frame at most: kernels take 128, */
#define INART_SEGMENTS_OLD 60 /* older ones 64 */
#define INART_MESSAGE 65536   /* bytes of the longest message */
#define INART_OUT 32          /* super-frames that wait for the kernel at most */
#define INART_IN 32           /* messages that are received at once at most, */
#define INART_IN_LEAST 2
/* ... and about as many bytes: a core's cache still holds them when they are read */
#define INART_IN_BYTES (2 * INART_MESSAGE)
/* of a buffer: an odd number of cache lines, so that buffers do not share sets */
#define INART_ROOM (INART_MESSAGE + 17 * 64)
#define INART_FETCH 2048 /* bytes: how far ahead of what is read */
#define INART_TROUBLE 192
#define INART_RETRY (INART_NS / 1000) /* ns until a kernel without room is asked again; */
/* one that refuses (no such interface, a filter) at first as soon, later less often */
#define INART_RETRY_MOST (64 * INART_RETRY)
#define INART_DOUBT INART_NS /* ns: a kernel that did not take a super-frame is offered one again after so long */

/* Where a lane leads. A host may be worker and parameter server at once, whose packets to each other stay on the host.
 * LINK: over the interface. HERE: to engines on this host only (a worker's packets to its own parameter server). BOTH:
 * over the interface, and to this host (the packets of a parameter server with a worker beside it). */
enum io_reach { INART_LINK, INART_HERE, INART_BOTH };

/* What to open. A host may have several links, each an interface (dual-homed, rails): packets of a lane are sent over
 * one of them, and come over any. Link 0 is `interface`. */
struct io_spec {
    char interface[IFNAMSIZ];
    uint32_t more; /* further links, */
    char further[INART_MOST_LINKS - 1][IFNAMSIZ];
    uint32_t address; /* of ours, host order: the packets' source; 0: the interface's first */
    uint32_t values;
    uint32_t receive_bytes; /* wanted of the kernel's receive buffer; 0: as much as there is */
    uint32_t lanes;
    uint16_t port[INART_MOST_LANES];
    uint8_t reach[INART_MOST_LANES];
    uint8_t link[INART_MOST_LANES]; /* over which it is sent, unless it stays here */
    uint8_t service;                /* IPv4's type of service: the DSCP, and that switches may mark (ECN) */
};

/* A super-frame to send: `packets` packets from `sent` on are built and not yet handed to the kernel. */
struct io_out {
    uint8_t *data;
    uint32_t packets, sent, lane;
};

/* A received message: packets of `segment` bytes one after another; the last may be shorter. */
struct io_in {
    uint8_t *data;
    uint32_t bytes, segment;
    uint32_t source; /* address of its sender, host order */
    bool congested;  /* a switch has marked it: a queue on the way is too long */
};

struct io_counters {
    uint64_t messages_received, messages_sent, send_errors, kernel_drops, malformed;
};

struct io {
    struct io_spec spec;
    unsigned interface, further[INART_MOST_LINKS - 1]; /* the links' indices */
    size_t packet_bytes, frame_bytes;
    unsigned segments;       /* packets a message now: 1 when the kernel does not segment */
    unsigned segments_most;  /* ... when nothing has been refused */
    uint64_t segments_doubt; /* until when fewer leave at a time than that, because the kernel has refused more */
    bool opened;             /* the back end has it, until it is closed */
    unsigned sources;        /* descriptors with packets to receive */
    int source[INART_MOST_SOURCES];
    int here;                       /* sends to engines on this host; -1: nobody needs it */
    int over[INART_MOST_LINKS - 1]; /* sends over a further link; -1: there is none */
    int any;                        /* readable when a source is: the only one, or an epoll of all */
    uint32_t ready;                 /* bitmap of the sources that may have some */
    unsigned wanted;                /* messages to receive at once */
    bool full;                      /* the last call of receive filled all of them: there may be more */
    uint8_t *out_memory, *in_memory;
    struct io_out out[INART_OUT];
    unsigned out_head, out_count; /* [head, count) are not all sent */
    int open[INART_MOST_LANES];   /* of each lane, the super-frame that takes more packets; -1: none */
    uint64_t retry;               /* the kernel took nothing: not again before this time; 0: no reason to wait */
    uint64_t refused_wait;        /* ns between attempts while the kernel refuses what is sent; 0: it does not */
    bool failed;                  /* it has refused something since the interface was last looked at */
    struct io_in in[INART_IN];
    struct mmsghdr message[INART_IN], sending[INART_SEGMENTS];
    struct sockaddr_in from[INART_IN];
    struct iovec in_iov[INART_IN], out_iov[2 * INART_SEGMENTS];
    uint8_t control[INART_IN][64];
    uint32_t receive_buffer;     /* bytes of the kernel's receive buffer that we got, a source */
    int last_errno;              /* of the last failing system call */
    char trouble[INART_TROUBLE]; /* what it means, for messages; empty: nothing has failed */
    struct io_counters counters;
    void *state;        /* the back end's own */
    struct io *next;    /* in a list of those to close */
    struct owned owned; /* its descriptors */
};

struct io_backend {
    int (*open)(struct io *io, char *error, size_t size); /* 0 or -1 with the reason */
    void (*close)(struct io *io);
    int (*receive)(struct io *io, unsigned source); /* messages, now in io->in; sets io->full */
    int (*send)(struct io *io);       /* from out[out_head] on, moving out_head and `sent`; 0, or an errno */
    uint64_t (*drops)(struct io *io); /* packets that found the kernel's receive buffer full, since it was opened */
};

static inline uint64_t inart_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * INART_NS + (uint64_t)t.tv_nsec;
}

/* Checks that no packet is larger than the MTU; returns 0, or -1 with advice in `error`. */
int io_check_mtu(const struct io_spec *spec, int fd, char *error, size_t size);

/* Makes the kernel's buffers as large as it allows (SO_RCVBUFFORCE needs CAP_NET_ADMIN), and returns the bytes of the
 * receive buffer. */
uint32_t io_buffers(int fd, uint32_t wanted);

/* Returns the most packets of a super-frame: IPv4 and UDP count 64 KiB with their headers. */
unsigned io_segments(uint32_t values);

/* ---- sending ---- */

void io_clear(struct io *io);

static inline bool io_room(const struct io *io, unsigned lane) {
    return io->open[lane] >= 0 || io->out_count < INART_OUT;
}

/* Returns whether the lane's super-frame is as long as they get. Flushed now, the next one is built in the same memory,
 * which the core's cache still holds. */
static inline bool io_complete(const struct io *io, unsigned lane) {
    return io->segments > 1 && io->out_count && io->open[lane] < 0;
}

static inline bool io_unsent(const struct io *io) { return io->out_count != 0; }

/* Returns the next packet of a lane, with its header filled in (there must be room); the caller writes the values. */
static inline uint8_t *io_build(struct io *io, unsigned lane, const struct inart_header *h) {
    if (io->open[lane] < 0) {
        unsigned number = io->out_count++;
        io->open[lane] = (int)number;
        io->out[number] = (struct io_out){.data = io->out_memory + (size_t)number * INART_ROOM, .lane = lane};
    }
    struct io_out *out = &io->out[io->open[lane]];
    uint8_t *packet = out->data + out->packets * io->packet_bytes;
    if (++out->packets >= io->segments) io->open[lane] = -1;
    inart_write_header(packet, h);
    return packet;
}

/* Returns how many packets of `out` from `at` on go as one message. */
static inline unsigned io_message(const struct io *io, const struct io_out *out, unsigned at) {
    return out->packets - at < io->segments ? out->packets - at : io->segments;
}

/* Hands the packets that are built to the kernel. Packets that it does not take (full queue, interface down) stay for a
 * later call. */
void io_flush(struct io *io, uint64_t now);

/* ---- opening and closing ---- */

void io_close(struct io *io);

extern const struct io_backend io_backend; /* the one that is linked: io_udp.c's in an agent */

/* Returns a bitmap of the sources that have packets. */
uint32_t io_waiting(const struct io *io);

/* Returns whether an interface that `io` was opened on is gone, or another one has its name by now. An interface that
 * is made again has another index, and the kernel never again gives packets to the sockets of the old one. */
bool io_moved(const struct io *io);

/* Returns the name of a link's interface, and the index that it had when it was opened. */
static inline const char *io_interface(const struct io_spec *spec, unsigned link) {
    return link ? spec->further[link - 1] : spec->interface;
}

static inline unsigned io_index(const struct io *io, unsigned link) {
    return link ? io->further[link - 1] : io->interface;
}

/* Opens the lanes of `spec` in the calling thread's network namespace. Returns NULL with the reason in `error` where
 * that fails. */
struct io *io_open(const struct io_spec *spec, char *error, size_t size);

/* Prefetches the packets after the one at `at`, which is about to be read. Memory that the kernel has copied is seldom
 * in the nearest cache. */
static inline void io_fetch(const struct io_in *in, uint32_t at) {
    uint32_t from = at ? at + INART_FETCH : 0, to = at + in->segment + INART_FETCH;
    for (uint32_t i = from; i < to && i < in->bytes; i += 64) __builtin_prefetch(in->data + i);
}

/* Receives the messages of one source that have come, to io->in[0 ..], and returns their number (0: none). */
int io_receive(struct io *io, unsigned source);

#endif

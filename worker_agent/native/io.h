/* Packets in and out of one interface for one I/O thread: what the engines see of it. Two back ends do the work behind it:
 * `udp` (io_udp.h) and `raw` (io_raw.h).
 *
 * A lane is a UDP port: all packets of a tree have the tree's port as destination, so ports keep trees, and with them
 * threads, apart. Packets travel in super-frames: up to 120 of one lane and one size, one after another, that the kernel takes
 * and gives as one message (segmentation offload). They are built in place, in the buffer that the kernel reads, and taken
 * apart in the one that it wrote. Nothing here blocks.
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
#define INART_MOST_LANES (2 * INART_PORTS_PER_JOB) /* a port may be two: with what comes over the link, and with what stays here */
#define INART_SEGMENTS 120  /* packets in a super-frame at most: kernels take 128, */
#define INART_SEGMENTS_OLD 60 /* older ones 64 */
#define INART_MESSAGE 65536 /* bytes of the longest message */
#define INART_OUT 32        /* super-frames that wait for the kernel at most */
#define INART_IN 32         /* messages that are received at once at most, */
#define INART_IN_LEAST 2
#define INART_IN_BYTES (2 * INART_MESSAGE) /* ... and about as many bytes: a core's cache still holds them when they are read */
#define INART_ROOM (INART_MESSAGE + 17 * 64) /* of a buffer: an odd number of cache lines, so that buffers do not share sets */
#define INART_FETCH 2048 /* bytes: how far ahead of what is read */
#define INART_TROUBLE 192
#define INART_RETRY (INART_NS / 1000)  /* ns until a kernel without room is asked again; */
#define INART_RETRY_MOST (64 * INART_RETRY) /* one that refuses (no such interface, a filter) at first as soon, later less often */
#define INART_DOUBT INART_NS /* ns: a kernel that did not take a super-frame is offered one again after so long */

enum { INART_UDP, INART_RAW, INART_BACKENDS };

/* Where a lane leads. A host may be worker and parameter server at once: what one sends to the other stays on the host. LINK: over
 * the interface. HERE: to engines on this host only (a worker's packets to its own parameter server). BOTH: over the interface, and
 * to this host (what a parameter server with a worker beside it sends). */
enum io_reach { INART_LINK, INART_HERE, INART_BOTH };

/* What to open. */
struct io_spec {
    char interface[IFNAMSIZ];
    uint32_t address; /* of ours, host order: the packets' source; 0: the interface's first */
    uint32_t values;
    uint32_t receive_bytes; /* wanted of the kernel's receive buffer; 0: as much as there is */
    uint32_t lanes;
    uint16_t port[INART_MOST_LANES];
    uint8_t reach[INART_MOST_LANES];
    int32_t backend;
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
};

struct io_counters {
    uint64_t messages_received, messages_sent, send_errors, kernel_drops, malformed, foreign;
};

struct io {
    struct io_spec spec;
    const struct io_backend *backend;
    unsigned interface;
    uint32_t address;
    size_t packet_bytes, frame_bytes;
    unsigned segments; /* packets a message now: 1 when the kernel does not segment */
    unsigned segments_most;  /* ... when nothing has been refused */
    uint64_t segments_doubt; /* until when fewer leave at a time than that, because the kernel has refused more */
    unsigned sources;  /* descriptors with packets to receive */
    int source[INART_MOST_LANES];
    int here; /* sends to engines on this host; -1: nobody needs it */
    int any; /* readable when a source is: the only one, or an epoll of all */
    uint32_t ready; /* bitmap of the sources that may have some */
    unsigned wanted; /* messages to receive at once */
    bool full;       /* the last call of receive filled all of them: there may be more */
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
    uint32_t receive_buffer; /* bytes of the kernel's receive buffer that we got, a source */
    int last_errno;          /* of the last failing system call */
    char trouble[INART_TROUBLE]; /* what it means, for messages; empty: nothing has failed */
    struct io_counters counters;
    void *state;     /* the back end's own */
    struct io *next; /* in a list of those to close */
    struct owned owned; /* its descriptors */
};

struct io_backend {
    const char *name;
    int (*open)(struct io *io, char *error, size_t size); /* 0 or -1 with the reason */
    void (*close)(struct io *io);
    int (*receive)(struct io *io, unsigned source); /* messages, now in io->in; sets io->full */
    int (*send)(struct io *io);          /* from out[out_head] on, moving out_head and `sent`; 0, or an errno */
    uint64_t (*drops)(struct io *io);    /* packets that found the kernel's receive buffer full, since it was opened */
};

static inline uint64_t inart_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * INART_NS + (uint64_t)t.tv_nsec;
}

/* MTU of the interface; 0: unknown. Any socket will do. */
static inline int io_mtu(const struct io_spec *spec, int fd)
{
    struct ifreq request = {0};
    memcpy(request.ifr_name, spec->interface, sizeof request.ifr_name);
    return ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

/* 0, or -1 with advice: a packet is larger than the MTU. */
static inline int io_check_mtu(const struct io_spec *spec, int fd, char *error, size_t size)
{
    int mtu = io_mtu(spec, fd), needed = (int)INART_IPV4_LENGTH(spec->values);
    if (!mtu || mtu >= needed)
        return 0;
    snprintf(error, size, "the MTU of %s is %d, but a packet of %u values needs %d: ip link set %s mtu %d", spec->interface, mtu,
             spec->values, needed, spec->interface, needed);
    return -1;
}

/* The kernel's buffers as large as it lets them be: FORCE needs CAP_NET_ADMIN. Returns what there is to receive into. */
static inline uint32_t io_buffers(int fd, uint32_t wanted)
{
    int receive = wanted ? (int)wanted : 32 << 20, send = 4 << 20, got = 0;
    socklen_t size = sizeof got;
    if (wanted || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof receive))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof send))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof send);
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &size);
    return (uint32_t)got / 2; /* the kernel doubles it, for its own share */
}

/* Packets of a super-frame at most: IPv4 and UDP count 64 KiB with their headers. */
static inline unsigned io_segments(uint32_t values)
{
    unsigned fit = (unsigned)((INART_MESSAGE - 256) / INART_PAYLOAD_BYTES(values));
    return fit < INART_SEGMENTS ? fit : INART_SEGMENTS;
}

/* ---- sending ---- */

static inline void io_clear(struct io *io) /* what is built and not sent is forgotten */
{
    io->out_head = io->out_count = 0;
    for (unsigned lane = 0; lane < INART_MOST_LANES; lane++)
        io->open[lane] = -1;
}

static inline bool io_room(const struct io *io, unsigned lane) { return io->open[lane] >= 0 || io->out_count < INART_OUT; }

/* The lane's super-frame is as long as they get: flushed now, the next one is built in the same memory, which the core's cache
 * still holds. */
static inline bool io_complete(const struct io *io, unsigned lane) { return io->segments > 1 && io->out_count && io->open[lane] < 0; }

static inline bool io_unsent(const struct io *io) { return io->out_count != 0; }

/* The next packet of a lane with its header filled in (there must be room): the caller writes the values. */
static inline uint8_t *io_build(struct io *io, unsigned lane, const struct inart_header *h)
{
    if (io->open[lane] < 0) {
        unsigned number = io->out_count++;
        io->open[lane] = (int)number;
        io->out[number] = (struct io_out){.data = io->out_memory + (size_t)number * INART_ROOM, .lane = lane};
    }
    struct io_out *out = &io->out[io->open[lane]];
    uint8_t *packet = out->data + out->packets * io->packet_bytes;
    if (++out->packets >= io->segments)
        io->open[lane] = -1;
    inart_write_header(packet, h);
    return packet;
}

/* Packets of `out` from `at` on that go as one message. */
static inline unsigned io_message(const struct io *io, const struct io_out *out, unsigned at)
{
    return out->packets - at < io->segments ? out->packets - at : io->segments;
}

/* What a failed call means; looks for an MTU that has become too small. */
static inline void io_say(struct io *io, int error)
{
    io->last_errno = error;
    io->counters.send_errors++;
    if ((error != EMSGSIZE && error != EINVAL) || !io->sources
        || io_check_mtu(&io->spec, io->source[0], io->trouble, sizeof io->trouble) == 0)
        snprintf(io->trouble, sizeof io->trouble, "%s", strerror(error));
}

/* The kernel took nothing. One that is full has room again soon. One that refuses (no interface, no address, a filter) may do so for
 * hours, so it is asked less and less often; engine.h hears when the interface changes, and asks at once. */
static inline void io_later(struct io *io, int error, uint64_t now)
{
    if (error == EAGAIN || error == ENOBUFS) {
        io->retry = now + INART_RETRY;
        return;
    }
    io_say(io, error);
    io->failed = true;
    io->refused_wait = io->refused_wait ? 2 * io->refused_wait : INART_RETRY;
    if (io->refused_wait > INART_RETRY_MOST)
        io->refused_wait = INART_RETRY_MOST;
    io->retry = now + io->refused_wait;
}

/* Hands what is built to the kernel. What it does not take (full queue, interface down) stays for a later call. */
static inline void io_flush(struct io *io, uint64_t now)
{
    if (!io->out_count) {
        io->retry = 0;
        return;
    }
    if (io->refused_wait && now < io->retry)
        return;
    io->retry = 0;
    if (io->segments < io->segments_most && now >= io->segments_doubt)
        io->segments = io->segments_most;
    for (unsigned lane = 0; lane < io->spec.lanes; lane++)
        io->open[lane] = -1;
    while (io->out_head < io->out_count) {
        int error = io->backend->send(io);
        if (!error) {
            io->refused_wait = 0;
            continue;
        }
        if (error == EINTR)
            continue;
        if ((error == EIO || error == EINVAL) && io->segments > 1
            && io_check_mtu(&io->spec, io->source[0], io->trouble, sizeof io->trouble) == 0) {
            /* An older kernel; there, an interface without checksum offload does not segment at all. But an interface that has no
             * address for a moment is refused with the same words: so it is tried again. */
            io->segments = error == EINVAL && io->segments > INART_SEGMENTS_OLD ? INART_SEGMENTS_OLD : 1;
            io->segments_doubt = now + INART_DOUBT;
            continue;
        }
        io_later(io, error, now);
        return;
    }
    io_clear(io);
}

/* ---- opening and closing ---- */

static inline void io_close(struct io *io)
{
    if (!io)
        return;
    owned_lock();
    owned_give_up(&io->owned);
    if (io->backend) {
        if (io->sources > 1)
            close(io->any);
        io->backend->close(io);
    }
    owned_unlock();
    free(io->out_memory);
    free(io->in_memory);
    free(io);
}

static const struct io_backend *const io_backends[INART_BACKENDS]; /* in io_backends.h */

/* 0, or -1. A poll of many lanes costs more than the packets that come at low rates; an epoll knows who has some. */
static inline int io_watch(struct io *io)
{
    if (io->sources <= 1) {
        io->any = io->sources ? io->source[0] : -1;
        return 0;
    }
    io->any = epoll_create1(EPOLL_CLOEXEC);
    if (io->any < 0)
        return -1;
    for (unsigned i = 0; i < io->sources; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(io->any, EPOLL_CTL_ADD, io->source[i], &event)) {
            close(io->any);
            return -1;
        }
    }
    return 0;
}

/* Bitmap of the sources that have packets. */
static inline uint32_t io_waiting(const struct io *io)
{
    if (io->sources <= 1)
        return ~0u; /* asking costs as much as receiving */
    struct epoll_event events[INART_MOST_LANES];
    uint32_t ready = 0;
    for (int n = epoll_wait(io->any, events, INART_MOST_LANES, 0); n > 0; n--)
        ready |= 1u << events[n - 1].data.u32;
    return ready;
}

/* Sockets and what watches them, of an `io` that has its memory. 0, or -1 with the reason in `error`, and nothing is open. No
 * process is forked meanwhile, so that none inherits what nobody has noted yet. */
static inline int io_open_sockets(struct io *io, char *error, size_t size)
{
    const struct io_backend *backend = io_backends[io->spec.backend];
    owned_lock();
    int result = backend->open(io, error, size);
    if (!result && io_watch(io)) {
        snprintf(error, size, "cannot watch %u sockets: %s", io->sources, strerror(errno));
        backend->close(io);
        result = -1;
    }
    if (!result) {
        io->backend = backend;
        for (unsigned i = 0; i < io->sources; i++)
            owned_add(&io->owned, io->source[i]);
        if (io->sources > 1)
            owned_add(&io->owned, io->any);
        if (io->here >= 0)
            owned_add(&io->owned, io->here);
    }
    owned_unlock();
    return result;
}

/* Whether the interface that `io` was opened on is gone, or another one has its name by now. An interface that is made again has
 * another index, and the kernel gives the sockets of the old one nothing for ever. */
static inline bool io_moved(const struct io *io)
{
    return if_nametoindex(io->spec.interface) != io->interface || (io->spec.backend == INART_RAW && !io->address);
}

/* Opens what `spec` says, in the calling thread's network namespace. NULL with the reason in `error`. */
static inline struct io *io_open(const struct io_spec *spec, char *error, size_t size)
{
    struct io *io = calloc(1, sizeof *io);
    if (io) {
        io->out_memory = aligned_alloc(64, (size_t)INART_ROOM * INART_OUT);
        io->in_memory = aligned_alloc(64, (size_t)INART_ROOM * INART_IN);
    }
    if (!io || !io->out_memory || !io->in_memory) {
        snprintf(error, size, "out of memory for packet buffers");
        io_close(io);
        return NULL;
    }
    io->spec = *spec;
    io->here = -1;
    io->packet_bytes = INART_PAYLOAD_BYTES(spec->values);
    io->frame_bytes = INART_FRAME_BYTES(spec->values);
    io->segments = io_segments(spec->values);
    io->interface = if_nametoindex(spec->interface);
    io_clear(io);
    if (!io->interface) {
        snprintf(error, size, "there is no interface %s in this network namespace", spec->interface);
        io_close(io);
        return NULL;
    }
    if (io_open_sockets(io, error, size)) {
        io_close(io);
        return NULL;
    }
    io->segments_most = io->segments;
    io->ready = ~0u;
    io->wanted = INART_IN;
    return io;
}

/* Before the packet at `at` is read: fetches those after it. What the kernel has copied is seldom in the nearest cache. */
static inline void io_fetch(const struct io_in *in, uint32_t at)
{
    uint32_t from = at ? at + INART_FETCH : 0, to = at + in->segment + INART_FETCH;
    for (uint32_t i = from; i < to && i < in->bytes; i += 64)
        __builtin_prefetch(in->data + i);
}

/* Messages of one source that had come (0: none), now io->in[0 ..]. */
static inline int io_receive(struct io *io, unsigned source)
{
    int n = io->backend->receive(io, source);
    if (!io->full)
        io->ready &= ~(1u << source);
    io->counters.messages_received += (unsigned)n;
    if (n) {
        uint64_t bytes = 1;
        for (int i = 0; i < n; i++)
            bytes += io->in[i].bytes;
        uint64_t fit = INART_IN_BYTES * (uint64_t)n / bytes;
        io->wanted = fit < INART_IN_LEAST ? INART_IN_LEAST : fit > INART_IN ? INART_IN : (unsigned)fit;
    }
    return n;
}

#endif

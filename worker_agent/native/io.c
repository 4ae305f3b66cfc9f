/* Packets in and out of one interface, whichever back end does the work (io.h). */
#include "io.h"

/* Returns the MTU of an interface; 0: unknown. `fd` may be any socket. */
static int io_mtu(const char *interface, int fd) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, interface, sizeof request.ifr_name);
    return ioctl(fd, SIOCGIFMTU, &request) == 0 ? request.ifr_mtu : 0;
}

int io_check_mtu(const struct io_spec *spec, int fd, char *error, size_t size) {
    int needed = (int)INART_IPV4_LENGTH(spec->values);
    for (unsigned link = 0; link <= spec->more; link++) {
        const char *name = io_interface(spec, link);
        int mtu = io_mtu(name, fd);
        if (!mtu || mtu >= needed) continue;
        snprintf(error, size, "the MTU of %s is %d, but a packet of %u values needs %d: ip link set %s mtu %d", name,
                 mtu, spec->values, needed, name, needed);
        return -1;
    }
    return 0;
}

uint32_t io_buffers(int fd, uint32_t wanted) {
    int receive = wanted ? (int)wanted : 32 << 20, send = 4 << 20, got = 0;
    socklen_t size = sizeof got;
    if (wanted || setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof receive))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof send))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof send);
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &size);
    return (uint32_t)got / 2; /* the kernel doubles it, for its own share */
}

unsigned io_segments(uint32_t values) {
    unsigned fit = (unsigned)((INART_MESSAGE - 256) / INART_PAYLOAD_BYTES(values));
    return fit < INART_SEGMENTS ? fit : INART_SEGMENTS;
}

void io_clear(struct io *io) /* what is built and not sent is forgotten */
{
    io->out_head = io->out_count = 0;
    for (unsigned lane = 0; lane < INART_MOST_LANES; lane++) io->open[lane] = -1;
}

/* Records a failed call in words; looks for an MTU that has become too small. */
static void io_say(struct io *io, int error) {
    io->last_errno = error;
    io->counters.send_errors++;
    if ((error != EMSGSIZE && error != EINVAL) || !io->sources ||
        io_check_mtu(&io->spec, io->source[0], io->trouble, sizeof io->trouble) == 0)
        snprintf(io->trouble, sizeof io->trouble, "%s", strerror(error));
}

/* Decides when to try again after the kernel took nothing. A full queue has room again soon. A kernel that refuses (no
 * interface, no address, a filter) may do so for hours, so it is asked less and less often; engine.c hears when the
 * interface changes, and asks at once. */
static void io_later(struct io *io, int error, uint64_t now) {
    if (error == EAGAIN || error == ENOBUFS) {
        io->retry = now + INART_RETRY;
        return;
    }
    io_say(io, error);
    io->failed = true;
    io->refused_wait = io->refused_wait ? 2 * io->refused_wait : INART_RETRY;
    if (io->refused_wait > INART_RETRY_MOST) io->refused_wait = INART_RETRY_MOST;
    io->retry = now + io->refused_wait;
}

void io_flush(struct io *io, uint64_t now) {
    if (!io->out_count) {
        io->retry = 0;
        return;
    }
    if (io->refused_wait && now < io->retry) return;
    io->retry = 0;
    if (io->segments < io->segments_most && now >= io->segments_doubt) io->segments = io->segments_most;
    for (unsigned lane = 0; lane < io->spec.lanes; lane++) io->open[lane] = -1;
    while (io->out_head < io->out_count) {
        int error = io_backend.send(io);
        if (!error) {
            io->refused_wait = 0;
            continue;
        }
        if (error == EINTR) continue;
        if ((error == EIO || error == EINVAL) && io->segments > 1 &&
            io_check_mtu(&io->spec, io->source[0], io->trouble, sizeof io->trouble) == 0) {
            /* An older kernel; there, an interface without checksum offload does not segment at all. But an interface
             * that has no address for a moment is refused with the same words: so it is tried again. */
            io->segments = error == EINVAL && io->segments > INART_SEGMENTS_OLD ? INART_SEGMENTS_OLD : 1;
            io->segments_doubt = now + INART_DOUBT;
            continue;
        }
        if (io->spec.more && error != EAGAIN && error != ENOBUFS) {
            /* One of several links is down: the packets for it are lost, as they would be on the way, and the others go
             * on. */
            io_say(io, error);
            io->failed = true;
            io->out_head++;
            continue;
        }
        io_later(io, error, now);
        return;
    }
    io_clear(io);
}

void io_close(struct io *io) {
    if (!io) return;
    owned_lock();
    owned_give_up(&io->owned);
    if (io->opened) {
        if (io->sources > 1) close(io->any);
        io_backend.close(io);
    }
    owned_unlock();
    free(io->out_memory);
    free(io->in_memory);
    free(io);
}

/* Makes the descriptor by which the thread waits for all sources; returns 0, or -1. A poll of many lanes costs more
 * than the packets that come at low rates; an epoll knows which lanes have packets. */
static int io_watch(struct io *io) {
    if (io->sources <= 1) {
        io->any = io->sources ? io->source[0] : -1;
        return 0;
    }
    io->any = epoll_create1(EPOLL_CLOEXEC);
    if (io->any < 0) return -1;
    for (unsigned i = 0; i < io->sources; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        if (epoll_ctl(io->any, EPOLL_CTL_ADD, io->source[i], &event)) {
            close(io->any);
            return -1;
        }
    }
    return 0;
}

uint32_t io_waiting(const struct io *io) {
    if (io->sources <= 1) return ~0u; /* asking costs as much as receiving */
    struct epoll_event events[INART_MOST_SOURCES];
    uint32_t ready = 0;
    for (int n = epoll_wait(io->any, events, INART_MOST_SOURCES, 0); n > 0; n--) ready |= 1u << events[n - 1].data.u32;
    return ready;
}

/* Opens the sockets, and the descriptor that watches them, of an `io` that has its memory. Returns 0, or -1 with the
 * reason in `error`, and then nothing is open. No process is forked meanwhile, so that none inherits a descriptor that
 * is not recorded yet. */
static int io_open_sockets(struct io *io, char *error, size_t size) {
    owned_lock();
    int result = io_backend.open(io, error, size);
    if (!result && io_watch(io)) {
        snprintf(error, size, "cannot watch %u sockets: %s", io->sources, strerror(errno));
        io_backend.close(io);
        result = -1;
    }
    if (!result) {
        io->opened = true;
        for (unsigned i = 0; i < io->sources; i++) owned_add(&io->owned, io->source[i]);
        if (io->sources > 1) owned_add(&io->owned, io->any);
        if (io->here >= 0) owned_add(&io->owned, io->here);
        for (unsigned i = 0; i < INART_MOST_LINKS - 1; i++)
            if (io->over[i] >= 0) owned_add(&io->owned, io->over[i]);
    }
    owned_unlock();
    return result;
}

bool io_moved(const struct io *io) {
    for (unsigned link = 0; link <= io->spec.more; link++)
        if (if_nametoindex(io_interface(&io->spec, link)) != io_index(io, link)) return true;
    return false;
}

struct io *io_open(const struct io_spec *spec, char *error, size_t size) {
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
    for (unsigned i = 0; i < INART_MOST_LINKS - 1; i++) io->over[i] = -1;
    io->packet_bytes = INART_PAYLOAD_BYTES(spec->values);
    io->frame_bytes = INART_FRAME_BYTES(spec->values);
    io->segments = io_segments(spec->values);
    io_clear(io);
    for (unsigned link = 0; link <= spec->more; link++) {
        unsigned *index = link ? &io->further[link - 1] : &io->interface;
        *index = if_nametoindex(io_interface(spec, link));
        if (*index) continue;
        snprintf(error, size, "there is no interface %s in this network namespace", io_interface(spec, link));
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

int io_receive(struct io *io, unsigned source) {
    int n = io_backend.receive(io, source);
    if (!io->full) io->ready &= ~(1u << source);
    io->counters.messages_received += (unsigned)n;
    if (n) {
        uint64_t bytes = 1;
        for (int i = 0; i < n; i++) bytes += io->in[i].bytes;
        uint64_t fit = INART_IN_BYTES * (uint64_t)n / bytes;
        io->wanted = fit < INART_IN_LEAST ? INART_IN_LEAST : fit > INART_IN ? INART_IN : (unsigned)fit;
    }
    return n;
}

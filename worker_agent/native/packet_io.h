/* Packet input and output that the worker and the root share: frames in and out of one interface, many per system call.
 *
 * Values start on a 64-byte boundary in every buffer (INART_PAD bytes before the frame), so that loops over them
 * vectorise without peeling. Nothing here blocks.
 */
#ifndef INART_PACKET_IO_H
#define INART_PACKET_IO_H

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "protocol.h"

#define INART_BATCH 64
#define INART_PAD 26 /* 26 + 38 = 64 */
_Static_assert((INART_PAD + INART_OFFSET_VALUES) % 64 == 0, "values must start on a 64-byte boundary");
#define INART_MIN_VALUES 4
#define INART_MAX_VALUES 2048
#define INART_NS 1000000000ull

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

static inline uint64_t inart_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * INART_NS + (uint64_t)t.tv_nsec;
}

/* The fields of one frame, in host order. */
struct inart_header {
    uint8_t flags;
    uint16_t job;
    uint32_t label, epoch, sequence;
    uint64_t bitmap;
};

static inline uint16_t inart_get16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t inart_get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t inart_get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void inart_put16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void inart_put32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void inart_put64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the agents' C engine is for little-endian machines");

/* 0, or -1 when the frame is malformed. `length` is what was on the wire. */
static inline int inart_parse(const uint8_t *frame, size_t length, size_t frame_bytes, struct inart_header *h)
{
    if (length != frame_bytes || inart_get16(frame + 12) != INART_ETHERTYPE || frame[INART_OFFSET_VERSION] != INART_VERSION
        || (frame[INART_OFFSET_FLAGS] & ~(INART_FLAG_RESEND | INART_FLAG_RESULT | INART_FLAG_MAXIMUM)))
        return -1;
    h->flags = frame[INART_OFFSET_FLAGS];
    h->job = inart_get16(frame + INART_OFFSET_JOB);
    h->label = inart_get32(frame + INART_OFFSET_LABEL);
    h->epoch = inart_get32(frame + INART_OFFSET_EPOCH);
    h->sequence = inart_get32(frame + INART_OFFSET_SEQUENCE);
    h->bitmap = inart_get64(frame + INART_OFFSET_BITMAP);
    return 0;
}

static inline int32_t *inart_values(uint8_t *frame) { return (int32_t *)(frame + INART_OFFSET_VALUES); }

struct packet_io {
    int fd;
    uint8_t mac[6];
    size_t frame_bytes, stride;
    uint8_t *rx_memory, *tx_memory;
    struct mmsghdr rx[INART_BATCH], tx[INART_BATCH];
    struct iovec rx_iov[INART_BATCH], tx_iov[INART_BATCH];
    unsigned tx_head, tx_count; /* frames [head, count) are built and not yet handed to the kernel */
    uint64_t tx_retry;          /* the kernel had no room: not again before this time; 0: no reason to wait */
    int last_errno;             /* of the last failing system call, for messages */
    uint64_t send_errors, kernel_drops;
};

static inline uint8_t *inart_rx_frame(struct packet_io *io, int i) { return io->rx_memory + (size_t)i * io->stride + INART_PAD; }
static inline uint8_t *inart_tx_frame(struct packet_io *io, unsigned i) { return io->tx_memory + i * io->stride + INART_PAD; }

/* Frames of `values` values: (re)makes the buffers. 0 or -1 (no memory). */
static inline int packet_io_size(struct packet_io *io, size_t values)
{
    io->frame_bytes = INART_FRAME_BYTES(values);
    io->stride = (INART_PAD + io->frame_bytes + 63) & ~(size_t)63;
    free(io->rx_memory);
    free(io->tx_memory);
    io->rx_memory = aligned_alloc(64, io->stride * INART_BATCH);
    io->tx_memory = aligned_alloc(64, io->stride * INART_BATCH);
    if (!io->rx_memory || !io->tx_memory)
        return -1;
    memset(io->tx_memory, 0, io->stride * INART_BATCH);
    io->tx_head = io->tx_count = 0;
    for (int i = 0; i < INART_BATCH; i++) {
        io->rx_iov[i] = (struct iovec){inart_rx_frame(io, i), io->frame_bytes};
        io->rx[i].msg_hdr = (struct msghdr){.msg_iov = &io->rx_iov[i], .msg_iovlen = 1};
        io->tx_iov[i] = (struct iovec){inart_tx_frame(io, (unsigned)i), io->frame_bytes};
        io->tx[i].msg_hdr = (struct msghdr){.msg_iov = &io->tx_iov[i], .msg_iovlen = 1};
    }
    return 0;
}

/* Opens `interface` for frames of our EtherType. 0, or -1 with the reason in `error`. */
static inline int packet_io_open(struct packet_io *io, const char *interface, size_t values, char *error, size_t error_size)
{
    memset(io, 0, sizeof *io);
    io->fd = -1;
    unsigned index = if_nametoindex(interface);
    if (!index) {
        snprintf(error, error_size, "there is no interface %s in this network namespace", interface);
        return -1;
    }
    /* Protocol 0 receives nothing; bind() below starts reception, when everything is set. */
    io->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (io->fd < 0) {
        snprintf(error, error_size, "cannot open a packet socket (%s): this needs root or CAP_NET_RAW", strerror(errno));
        return -1;
    }
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    if (ioctl(io->fd, SIOCGIFMTU, &request) == 0 && (size_t)request.ifr_mtu < INART_FRAME_BYTES(values) - INART_ETHERNET_BYTES) {
        snprintf(error, error_size, "the MTU of %s is %d, but a packet of %zu values needs %zu: ip link set %s mtu %zu",
                 interface, request.ifr_mtu, values, INART_FRAME_BYTES(values) - INART_ETHERNET_BYTES, interface,
                 INART_FRAME_BYTES(values) - INART_ETHERNET_BYTES);
        goto fail;
    }
    if (ioctl(io->fd, SIOCGIFHWADDR, &request) == 0)
        memcpy(io->mac, request.ifr_hwaddr.sa_data, 6);
    /* The kernel charges about 2.3 KB for a 1 KiB frame. */
    int receive = 32 << 20, send = 4 << 20, one = 1;
    if (setsockopt(io->fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof receive))
        setsockopt(io->fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive);
    if (setsockopt(io->fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof send))
        setsockopt(io->fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof send);
    setsockopt(io->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    struct packet_mreq member = {.mr_ifindex = (int)index, .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6};
    memcpy(member.mr_address, (const uint8_t[])INART_GROUP_MAC, 6);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(INART_ETHERTYPE), .sll_ifindex = (int)index};
    if (setsockopt(io->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &member, sizeof member)
        || bind(io->fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, error_size, "cannot listen on %s: %s", interface, strerror(errno));
        goto fail;
    }
    if (packet_io_size(io, values)) {
        snprintf(error, error_size, "out of memory for packet buffers");
        goto fail;
    }
    return 0;
fail:
    close(io->fd);
    io->fd = -1;
    return -1;
}

static inline void packet_io_close(struct packet_io *io)
{
    if (io->fd >= 0)
        close(io->fd);
    io->fd = -1;
    free(io->rx_memory);
    free(io->tx_memory);
    io->rx_memory = io->tx_memory = NULL;
}

/* The number of frames received (0: none waiting). Frame i has io->rx[i].msg_len bytes (as on the wire, also if cut). */
static inline int packet_io_receive(struct packet_io *io)
{
    int n = recvmmsg(io->fd, io->rx, INART_BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            io->last_errno = errno;
        return 0;
    }
    return n;
}

static inline unsigned packet_io_room(const struct packet_io *io) { return INART_BATCH - io->tx_count; }

/* The next buffer with its header filled in (there must be room): the caller writes the values. */
static inline uint8_t *packet_io_build(struct packet_io *io, const struct inart_header *h)
{
    uint8_t *f = inart_tx_frame(io, io->tx_count++);
    memcpy(f, (const uint8_t[])INART_GROUP_MAC, 6);
    memcpy(f + 6, io->mac, 6);
    inart_put16(f + 12, INART_ETHERTYPE);
    f[INART_OFFSET_VERSION] = INART_VERSION;
    f[INART_OFFSET_FLAGS] = h->flags;
    inart_put16(f + INART_OFFSET_JOB, h->job);
    inart_put32(f + INART_OFFSET_LABEL, h->label);
    inart_put32(f + INART_OFFSET_EPOCH, h->epoch);
    inart_put32(f + INART_OFFSET_SEQUENCE, h->sequence);
    inart_put64(f + INART_OFFSET_BITMAP, h->bitmap);
    return f;
}

/* Hands the built frames to the kernel. What it does not take (full queue, interface down) stays for a later call. */
static inline void packet_io_flush(struct packet_io *io, uint64_t now)
{
    io->tx_retry = 0;
    while (io->tx_head < io->tx_count) {
        int n = sendmmsg(io->fd, io->tx + io->tx_head, io->tx_count - io->tx_head, MSG_DONTWAIT);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno != EAGAIN && errno != ENOBUFS) {
                io->last_errno = errno;
                io->send_errors++;
            }
            io->tx_retry = now + INART_NS / 1000;
            return;
        }
        io->tx_head += (unsigned)n;
    }
    io->tx_head = io->tx_count = 0;
}

/* Frames that the kernel dropped because our buffer was full (since the socket was opened). */
static inline uint64_t packet_io_drops(struct packet_io *io)
{
    struct tpacket_stats stats;
    socklen_t size = sizeof stats;
    if (io->fd >= 0 && getsockopt(io->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size) == 0)
        io->kernel_drops += stats.tp_drops;
    return io->kernel_drops;
}

#endif

/* The hub's ports: packet sockets with virtio-net headers, so that super-frames come and go whole. */
#ifndef HUB_IO_H
#define HUB_IO_H

#include <linux/if_packet.h>
#include <linux/virtio_net.h>

#include "io_raw.h"

#define MESSAGES 16
#define SUPER 32 /* super-frames that wait for the kernel at most */
#define HEAD INART_OFFSET_HEADER
#define BUFFER INART_ROOM

struct port_io {
    int fd;
    size_t packet_bytes;
    unsigned segments, head, count;
    uint32_t packets[SUPER];
    uint8_t *memory, *in[MESSAGES], *out[SUPER];
    struct mmsghdr rx[MESSAGES], tx[SUPER];
    struct iovec rx_iov[MESSAGES], tx_iov[SUPER];
};

static int port_open(struct port_io *io, const char *interface, size_t packet_bytes, char *error, size_t size)
{
    memset(io, 0, sizeof *io);
    io->packet_bytes = packet_bytes;
    io->segments = io_segments((uint32_t)((packet_bytes - INART_HEADER_BYTES) / INART_VALUE_BYTES));
    int one = 1, receive = 32 << 20, send = 4 << 20;
    io->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(INART_ETHERTYPE_IPV4), .sll_ifindex = (int)if_nametoindex(interface)};
    struct packet_mreq member = {.mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC};
    io->memory = aligned_alloc(64, (size_t)(MESSAGES + SUPER) * BUFFER);
    if (io->fd < 0 || !io->memory || setsockopt(io->fd, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof receive)
        || setsockopt(io->fd, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof send)
        || setsockopt(io->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one)
        || setsockopt(io->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)
        || setsockopt(io->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &member, sizeof member)
        || bind(io->fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, size, "cannot listen on %s: %s", interface, strerror(errno));
        return -1;
    }
    for (unsigned i = 0; i < MESSAGES + SUPER; i++) {
        uint8_t *buffer = io->memory + (size_t)i * BUFFER; /* after the headers, values are 4-byte aligned */
        if (i < MESSAGES) {
            io->in[i] = buffer;
            io->rx_iov[i] = (struct iovec){buffer, BUFFER - 64};
            io->rx[i].msg_hdr = (struct msghdr){.msg_iov = &io->rx_iov[i], .msg_iovlen = 1};
        } else {
            io->out[i - MESSAGES] = buffer;
            io->tx[i - MESSAGES].msg_hdr = (struct msghdr){.msg_iov = &io->tx_iov[i - MESSAGES], .msg_iovlen = 1};
        }
    }
    return 0;
}

static void port_close(struct port_io *io)
{
    if (io->fd >= 0)
        close(io->fd);
    free(io->memory);
}

static int port_receive(struct port_io *io)
{
    int n = recvmmsg(io->fd, io->rx, MESSAGES, MSG_DONTWAIT | MSG_TRUNC, NULL);
    return n < 0 ? 0 : n;
}

/* As docs/protocol.md has it: IPv4 without options, UDP, the group, a port of our range. */
static bool is_ours(const uint8_t *f, size_t length)
{
    return length >= HEAD && inart_get16(f + 12) == INART_ETHERTYPE_IPV4 && f[INART_OFFSET_IPV4] == INART_VERSION_AND_WORDS
           && f[INART_OFFSET_IPV4_PROTOCOL] == INART_PROTOCOL_UDP && inart_get32(f + INART_OFFSET_IPV4_DESTINATION) == INART_GROUP
           && (inart_get16(f + INART_OFFSET_IPV4_FRAGMENT) & INART_FRAGMENT_MASK
               || (inart_get16(f + INART_OFFSET_UDP_DESTINATION_PORT) & INART_UDP_PORT_MASK) == INART_UDP_PORT_BASE);
}

static bool is_whole(const uint8_t *f, size_t payload)
{
    return !(inart_get16(f + INART_OFFSET_IPV4_FRAGMENT) & INART_FRAGMENT_MASK)
           && inart_get16(f + INART_OFFSET_IPV4_TOTAL_LENGTH) == INART_IPV4_BYTES + INART_UDP_BYTES + payload
           && inart_get16(f + INART_OFFSET_UDP_LENGTH) == INART_UDP_BYTES + payload;
}

static void port_finish(struct port_io *io, unsigned i)
{
    uint8_t *frame = io->out[i] + sizeof(struct virtio_net_hdr);
    size_t payload = io->packets[i] * io->packet_bytes;
    struct virtio_net_hdr offload = {0};
    inart_put16(frame + INART_OFFSET_IPV4_TOTAL_LENGTH, (uint16_t)(INART_IPV4_BYTES + INART_UDP_BYTES + payload));
    inart_put16(frame + INART_OFFSET_UDP_LENGTH, (uint16_t)(INART_UDP_BYTES + payload));
    inart_put16(frame + INART_OFFSET_IPV4_CHECKSUM, 0);
    inart_put16(frame + INART_OFFSET_IPV4_CHECKSUM, (uint16_t)~sum16(frame + INART_OFFSET_IPV4, INART_IPV4_BYTES, 0));
    inart_put16(frame + INART_OFFSET_UDP_CHECKSUM, 0);
    if (io->packets[i] > 1) {
        uint32_t length = (uint32_t)(INART_UDP_BYTES + payload);
        inart_put16(frame + INART_OFFSET_UDP_CHECKSUM, (uint16_t)sum16(frame + INART_OFFSET_IPV4_SOURCE, 8, INART_PROTOCOL_UDP + length));
        offload = (struct virtio_net_hdr){
            .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .gso_type = VIRTIO_NET_HDR_GSO_UDP_L4, .hdr_len = HEAD,
            .gso_size = (uint16_t)io->packet_bytes, .csum_start = INART_OFFSET_UDP,
            .csum_offset = INART_OFFSET_UDP_CHECKSUM - INART_OFFSET_UDP};
    }
    memcpy(io->out[i], &offload, sizeof offload);
    io->tx_iov[i] = (struct iovec){io->out[i], sizeof offload + HEAD + payload};
}

static void port_flush(struct port_io *io)
{
    if (!io->count)
        return;
    if (io->packets[io->count - 1] && !io->tx_iov[io->count - 1].iov_len)
        port_finish(io, io->count - 1);
    while (io->head < io->count) {
        int n = sendmmsg(io->fd, io->tx + io->head, io->count - io->head, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return;
        io->head += (unsigned)n;
    }
    io->head = io->count = 0;
}

/* A packet behind `head`; with others of its flow in one super-frame. */
static void port_put(struct port_io *io, const uint8_t *head, const uint8_t *packet)
{
    unsigned last = io->count - 1;
    uint8_t *frame = io->count ? io->out[last] + sizeof(struct virtio_net_hdr) : NULL;
    bool fits = frame && !io->tx_iov[last].iov_len && io->packets[last] < io->segments
                && memcmp(frame, head, INART_OFFSET_IPV4_TOTAL_LENGTH) == 0
                && memcmp(frame + INART_OFFSET_IPV4_SOURCE, head + INART_OFFSET_IPV4_SOURCE, 12) == 0;
    if (!fits) {
        if (frame && !io->tx_iov[last].iov_len)
            port_finish(io, last);
        if (io->count == SUPER)
            port_flush(io);
        if (io->count == SUPER) /* the port's queue is full: drop, as a switch does */
            return;
        last = io->count++;
        io->packets[last] = 0;
        io->tx_iov[last].iov_len = 0;
        frame = io->out[last] + sizeof(struct virtio_net_hdr);
        memcpy(frame, head, HEAD);
    }
    memcpy(frame + HEAD + io->packets[last]++ * io->packet_bytes, packet, io->packet_bytes);
}

#endif

/* The back end `raw`: one packet socket for all lanes, the same frames; needs CAP_NET_RAW. For hosts whose kernel
 * cannot do what `udp` asks for, or whose routes or filters are in its way: it is before all of them.
 *
 * Where the kernel has virtio-net headers on packet sockets, super-frames go and come whole (they would come whole, and
 * too long, without them). The kernel's filter lets through UDP to the group: our ports, and fragments.
 */

#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>

#include "io.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

struct raw_prefix { /* what comes before the packets of one message */
    struct virtio_net_hdr offload;
    uint8_t frame[INART_OFFSET_HEADER];
} __attribute__((packed));

struct raw_state {
    bool offload;
    uint8_t mac[6];
    uint64_t drops;
    struct raw_prefix prefix[INART_SEGMENTS];
};

static void raw_close(struct io *io) {
    if (io->sources) close(io->source[0]);
    for (unsigned i = 0; i < io->claims; i++) close(io->claim[i]);
    io->sources = io->claims = 0;
    free(io->state);
}

/* Keeps other users from a port. A packet socket alone does not, and they would hear all results. While a socket has
 * the port with SO_REUSEPORT, Linux lets nobody but this user bind it. This socket has not joined the group, so it
 * hears nothing. It is bound to the interface, which sets it apart from the sockets of `udp` that hear (udp_socket says
 * why). */
static int raw_claim(struct io *io, uint16_t port, char *error, size_t size) {
    const char *interface = io->spec.interface;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), one = 1, zero = 0;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INART_GROUP)};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) ||
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &zero, sizeof zero) ||
        setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface, (socklen_t)strlen(interface)) ||
        bind(fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, size, "cannot keep UDP port %u of " INART_GROUP_TEXT " to this user: %s%s", port,
                 strerror(errno), errno == EADDRINUSE ? " (a program of another user has it)" : "");
        if (fd >= 0) close(fd);
        return -1;
    }
    io->claim[io->claims++] = fd;
    return 0;
}

static int raw_claim_ports(struct io *io, char *error, size_t size) {
    for (unsigned lane = 0; lane < io->spec.lanes; lane++) {
        bool claimed = false;
        for (unsigned i = 0; i < lane; i++) claimed |= io->spec.port[i] == io->spec.port[lane];
        if (!claimed && raw_claim(io, io->spec.port[lane], error, size)) return -1;
    }
    return 0;
}

static int raw_filter(struct io *io, int fd) {
    unsigned lanes = io->spec.lanes, n = 0;
    struct sock_filter code[16 + INART_MOST_LANES];
    /* Jumps are from the next instruction; `no` and `yes` are the last two. */
    unsigned no = 11 + lanes, yes = no + 1;
#define LOAD(size, offset) code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | (size) | BPF_ABS, (offset))
#define NEED(value) \
    code[n] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (uint8_t)(no - n - 1)), n++
    LOAD(BPF_H, 12);
    NEED(INART_ETHERTYPE_IPV4);
    LOAD(BPF_B, INART_OFFSET_IPV4);
    NEED(INART_VERSION_AND_WORDS);
    LOAD(BPF_W, INART_OFFSET_IPV4_DESTINATION);
    NEED(INART_GROUP);
    LOAD(BPF_B, INART_OFFSET_IPV4_PROTOCOL);
    NEED(INART_PROTOCOL_UDP);
    LOAD(BPF_H, INART_OFFSET_IPV4_FRAGMENT);
    code[n] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, INART_FRAGMENT_MASK, (uint8_t)(yes - n - 1), 0);
    n++;
    LOAD(BPF_H, INART_OFFSET_UDP_DESTINATION_PORT);
    for (unsigned lane = 0; lane < lanes; lane++, n++)
        code[n] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, io->spec.port[lane], (uint8_t)(yes - n - 1), 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0x40000);
#undef LOAD
#undef NEED
    struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

static int raw_open(struct io *io, char *error, size_t size) {
    struct raw_state *s = io->state = calloc(1, sizeof *s);
    if (!s) {
        snprintf(error, size, "out of memory");
        return -1;
    }
    if (io->spec.more) {
        snprintf(error, size, "a packet socket is of one interface: a host of several links needs INART_IO=udp");
        free(s);
        return -1;
    }
    /* Protocol 0 receives nothing; bind() below starts reception, when everything is set. */
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd < 0) {
        snprintf(error, size,
                 "cannot open a packet socket (%s): this needs root or CAP_NET_RAW; INART_IO=udp needs neither",
                 strerror(errno));
        free(s);
        return -1;
    }
    io->source[io->sources++] = fd;
    struct ifreq request = {0};
    memcpy(request.ifr_name, io->spec.interface, sizeof request.ifr_name);
    if (io_check_mtu(&io->spec, fd, error, size) || raw_claim_ports(io, error, size)) goto fail;
    if (ioctl(fd, SIOCGIFHWADDR, &request) == 0) memcpy(s->mac, request.ifr_hwaddr.sa_data, 6);
    io->address = io->spec.address;
    if (!io->address && ioctl(fd, SIOCGIFADDR, &request) == 0)
        io->address = ntohl(((const struct sockaddr_in *)(const void *)&request.ifr_addr)->sin_addr.s_addr);
    io->receive_buffer = io_buffers(fd, io->spec.receive_bytes);
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    s->offload = setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0;
    if (!s->offload) io->segments = 1;
    struct packet_mreq member = {.mr_ifindex = (int)io->interface, .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6};
    memcpy(member.mr_address, (const uint8_t[])INART_GROUP_MAC, 6);
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(INART_ETHERTYPE_IPV4), .sll_ifindex = (int)io->interface};
    if (raw_filter(io, fd) || setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &member, sizeof member) ||
        bind(fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, size, "cannot listen on %s: %s", io->spec.interface, strerror(errno));
        goto fail;
    }
    return 0;
fail:
    raw_close(io);
    return -1;
}

/* Takes one frame, and sets `in` to the packets that it carries; returns false where it carries none, which is counted.
 */
static bool raw_take(struct io *io, uint8_t *frame, size_t length, unsigned segment, struct io_in *in) {
    const struct raw_state *s = io->state;
    if (length > INART_OFFSET_UDP && memcmp(frame + 6, s->mac, 6) == 0 &&
        inart_get32(frame + INART_OFFSET_IPV4_SOURCE) == io->address) {
        io->counters.foreign++; /* our own, reflected: the kernel's sockets do not get these either */
        return false;
    }
    size_t ip = length < INART_OFFSET_HEADER ? 0 : inart_get16(frame + INART_OFFSET_IPV4_TOTAL_LENGTH);
    if (ip < INART_IPV4_BYTES + INART_UDP_BYTES || length != INART_ETHERNET_BYTES + ip ||
        inart_get16(frame + INART_OFFSET_IPV4_FRAGMENT) & INART_FRAGMENT_MASK ||
        inart_get16(frame + INART_OFFSET_UDP_LENGTH) != ip - INART_IPV4_BYTES) {
        io->counters.malformed++;
        return false;
    }
    uint32_t bytes = (uint32_t)(length - INART_OFFSET_HEADER);
    *in = (struct io_in){frame + INART_OFFSET_HEADER, bytes, segment ? segment : bytes,
                         inart_get32(frame + INART_OFFSET_IPV4_SOURCE),
                         (frame[INART_OFFSET_IPV4_SERVICE] & INART_ECN_BITS) == INART_ECN_CONGESTED};
    return true;
}

static int raw_receive(struct io *io, unsigned source) {
    const struct raw_state *s = io->state;
    size_t before = s->offload ? sizeof(struct virtio_net_hdr) : 0;
    for (unsigned i = 0; i < io->wanted; i++) {
        /* After the headers, values are 4-byte aligned. */
        io->in_iov[i] = (struct iovec){io->in_memory + (size_t)i * INART_ROOM + 10 - before, INART_ROOM - 64};
        io->message[i].msg_hdr = (struct msghdr){.msg_iov = &io->in_iov[i], .msg_iovlen = 1};
    }
    int n = recvmmsg(io->source[source], io->message, io->wanted, MSG_DONTWAIT | MSG_TRUNC, NULL), taken = 0;
    io->full = n == (int)io->wanted;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) io->last_errno = errno;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        uint8_t *data = io->in_iov[i].iov_base;
        size_t length = io->message[i].msg_len;
        struct virtio_net_hdr offload = {0};
        if (length < before || length > INART_ROOM - 64) {
            io->counters.malformed++;
            continue;
        }
        memcpy(&offload, data, before);
        unsigned segment = offload.gso_type == VIRTIO_NET_HDR_GSO_UDP_L4 ? offload.gso_size : 0;
        if (raw_take(io, data + before, length - before, segment, &io->in[taken])) taken++;
    }
    return taken;
}

static uint32_t sum16(const uint8_t *data, size_t bytes, uint32_t sum) {
    for (size_t i = 0; i < bytes; i += 2) sum += inart_get16(data + i);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void raw_headers(const struct io *io, struct raw_prefix *p, uint16_t port, size_t payload) {
    const struct raw_state *s = io->state;
    uint8_t *f = p->frame;
    bool super = payload > io->packet_bytes;
    p->offload = (struct virtio_net_hdr){0};
    memset(f, 0, sizeof p->frame);
    memcpy(f, (const uint8_t[])INART_GROUP_MAC, 6);
    memcpy(f + 6, s->mac, 6);
    inart_put16(f + 12, INART_ETHERTYPE_IPV4);
    f[INART_OFFSET_IPV4] = INART_VERSION_AND_WORDS;
    f[INART_OFFSET_IPV4_SERVICE] = io->spec.service;
    inart_put16(f + INART_OFFSET_IPV4_TOTAL_LENGTH, (uint16_t)(INART_IPV4_BYTES + INART_UDP_BYTES + payload));
    inart_put16(f + INART_OFFSET_IPV4_FRAGMENT, INART_DO_NOT_FRAGMENT);
    f[INART_OFFSET_IPV4_TTL] = INART_TTL;
    f[INART_OFFSET_IPV4_PROTOCOL] = INART_PROTOCOL_UDP;
    inart_put32(f + INART_OFFSET_IPV4_SOURCE, io->address);
    inart_put32(f + INART_OFFSET_IPV4_DESTINATION, INART_GROUP);
    inart_put16(f + INART_OFFSET_IPV4_CHECKSUM, (uint16_t)~sum16(f + INART_OFFSET_IPV4, INART_IPV4_BYTES, 0));
    inart_put16(f + INART_OFFSET_UDP_SOURCE_PORT, port);
    inart_put16(f + INART_OFFSET_UDP_DESTINATION_PORT, port);
    inart_put16(f + INART_OFFSET_UDP_LENGTH, (uint16_t)(INART_UDP_BYTES + payload));
    if (!s->offload) return; /* no checksum: it would be for us to compute */
    uint32_t pseudo =
        sum16(f + INART_OFFSET_IPV4_SOURCE, 8, INART_PROTOCOL_UDP + (uint32_t)(INART_UDP_BYTES + payload));
    inart_put16(f + INART_OFFSET_UDP_CHECKSUM, (uint16_t)pseudo);
    p->offload = (struct virtio_net_hdr){.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                         .csum_start = INART_OFFSET_UDP,
                                         .csum_offset = INART_OFFSET_UDP_CHECKSUM - INART_OFFSET_UDP};
    if (super) {
        p->offload.gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
        p->offload.hdr_len = INART_OFFSET_HEADER;
        p->offload.gso_size = (uint16_t)io->packet_bytes;
    }
}

static int raw_send(struct io *io) {
    struct raw_state *s = io->state;
    size_t skip = s->offload ? 0 : sizeof(struct virtio_net_hdr);
    unsigned count = 0;
    for (unsigned i = io->out_head; i < io->out_count && count < INART_SEGMENTS; i++) {
        struct io_out *out = &io->out[i];
        for (unsigned at = out->sent; at < out->packets && count < INART_SEGMENTS; count++) {
            unsigned packets = io_message(io, out, at);
            struct iovec *v = &io->out_iov[2 * count];
            raw_headers(io, &s->prefix[count], io->spec.port[out->lane], packets * io->packet_bytes);
            v[0] = (struct iovec){(uint8_t *)&s->prefix[count] + skip, sizeof s->prefix[count] - skip};
            v[1] = (struct iovec){out->data + at * io->packet_bytes, packets * io->packet_bytes};
            io->sending[count].msg_hdr = (struct msghdr){.msg_iov = v, .msg_iovlen = 2};
            at += packets;
        }
    }
    int n = sendmmsg(io->source[0], io->sending, count, MSG_DONTWAIT);
    if (n < 0) return errno;
    io->counters.messages_sent += (unsigned)n;
    for (int i = 0; i < n; i++) {
        struct io_out *out = &io->out[io->out_head];
        out->sent += (unsigned)(io->out_iov[2 * i + 1].iov_len / io->packet_bytes);
        if (out->sent == out->packets) io->out_head++;
    }
    return 0;
}

static uint64_t raw_drops(struct io *io) {
    struct raw_state *s = io->state;
    struct tpacket_stats stats;
    socklen_t size = sizeof stats;
    if (getsockopt(io->source[0], SOL_PACKET, PACKET_STATISTICS, &stats, &size) == 0) s->drops += stats.tp_drops;
    return s->drops;
}

const struct io_backend io_raw_backend = {"raw", raw_open, raw_close, raw_receive, raw_send, raw_drops};

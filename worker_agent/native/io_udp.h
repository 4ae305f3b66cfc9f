/* The back end `udp`: one socket a lane, bound to the group and the lane's port; needs no privilege.
 *
 * A socket that is bound to the group's address gets what is sent to it and nothing else, and the kernel's GRO looks sockets
 * up by that address. UDP_SEGMENT sends a super-frame by one call; with UDP_GRO one comes whole. A kernel without either is
 * sent, and gives, packet by packet.
 */
#ifndef INART_IO_UDP_H
#define INART_IO_UDP_H

#include <linux/sock_diag.h>

#include "io.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

struct udp_state {
    struct sockaddr_in group[INART_MOST_LANES];
};

static inline int udp_socket(struct io *io, uint16_t port, char *error, size_t size)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, zero = 0, ttl = INART_TTL;
    if (fd < 0) {
        snprintf(error, size, "cannot open a UDP socket: %s", strerror(errno));
        return -1;
    }
    struct ip_mreqn member = {.imr_multiaddr.s_addr = htonl(INART_GROUP), .imr_ifindex = (int)io->interface};
    struct ip_mreqn source = {.imr_address.s_addr = htonl(io->spec.address), .imr_ifindex = (int)io->interface};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INART_GROUP)};
    int discover = IP_PMTUDISC_DO; /* never fragmented */
    io->receive_buffer = io_buffers(fd, io->spec.receive_bytes);
    /* The same port on one machine: a worker and a server, or the engine of the next plan beside this one's. With SO_REUSEPORT
     * the kernel lets nobody bind it but this user (SO_REUSEADDR would let everybody), and still gives each socket its copy. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one)
        || setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &zero, sizeof zero)
        || setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &zero, sizeof zero)
        || setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, sizeof ttl)
        || setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover)
        || setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &source, sizeof source)) {
        snprintf(error, size, "cannot set a UDP socket up on %s: %s", io->spec.interface, strerror(errno));
        close(fd);
        return -1;
    }
    setsockopt(fd, SOL_UDP, UDP_GRO, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, size, "cannot bind UDP port %u of " INART_GROUP_TEXT ": %s%s", port, strerror(errno),
                 errno == EADDRINUSE ? " (a program of another user has it: all agents of a host run as one user)" : "");
        close(fd);
        return -1;
    }
    if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member)) {
        snprintf(error, size, "cannot join " INART_GROUP_TEXT " on %s: %s", io->spec.interface, strerror(errno));
        close(fd);
        return -1;
    }
    return fd;
}

static void udp_close(struct io *io)
{
    for (unsigned i = 0; i < io->sources; i++)
        close(io->source[i]);
    io->sources = 0;
    free(io->state);
}

static int udp_open(struct io *io, char *error, size_t size)
{
    struct udp_state *s = io->state = calloc(1, sizeof *s);
    if (!s) {
        snprintf(error, size, "out of memory");
        return -1;
    }
    for (unsigned lane = 0; lane < io->spec.lanes; lane++) {
        int fd = udp_socket(io, io->spec.port[lane], error, size);
        if (fd < 0)
            goto fail;
        io->source[io->sources++] = fd;
        if (io_check_mtu(&io->spec, fd, error, size))
            goto fail;
        s->group[lane] = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons(io->spec.port[lane]), .sin_addr.s_addr = htonl(INART_GROUP)};
    }
    int segment = (int)io->packet_bytes;
    /* The first socket sends for all lanes. */
    if (!io->sources || setsockopt(io->source[0], SOL_UDP, UDP_SEGMENT, &segment, sizeof segment))
        io->segments = 1;
    return 0;
fail:
    udp_close(io);
    return -1;
}

static int udp_receive(struct io *io, unsigned source)
{
    for (unsigned i = 0; i < io->wanted; i++) {
        io->in_iov[i] = (struct iovec){io->in_memory + (size_t)i * INART_ROOM, INART_ROOM};
        io->message[i].msg_hdr = (struct msghdr){.msg_name = &io->from[i], .msg_namelen = sizeof io->from[i],
                                                 .msg_iov = &io->in_iov[i], .msg_iovlen = 1, .msg_control = io->control[i],
                                                 .msg_controllen = sizeof io->control[i]};
    }
    int n = recvmmsg(io->source[source], io->message, io->wanted, MSG_DONTWAIT | MSG_TRUNC, NULL);
    io->full = n == (int)io->wanted;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            io->last_errno = errno;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        struct msghdr *m = &io->message[i].msg_hdr;
        uint32_t bytes = io->message[i].msg_len, segment = bytes;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
            if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
                segment = (uint32_t)*(const int *)(const void *)CMSG_DATA(c);
        io->in[i] = (struct io_in){io->in_iov[i].iov_base, bytes, segment, ntohl(io->from[i].sin_addr.s_addr)};
    }
    return n;
}

static int udp_send(struct io *io)
{
    struct udp_state *s = io->state;
    unsigned count = 0;
    for (unsigned i = io->out_head; i < io->out_count && count < INART_SEGMENTS; i++) {
        struct io_out *out = &io->out[i];
        for (unsigned at = out->sent; at < out->packets && count < INART_SEGMENTS; count++) {
            unsigned packets = io_message(io, out, at);
            io->out_iov[count] = (struct iovec){out->data + at * io->packet_bytes, packets * io->packet_bytes};
            io->sending[count].msg_hdr = (struct msghdr){.msg_name = &s->group[out->lane], .msg_namelen = sizeof s->group[0],
                                                         .msg_iov = &io->out_iov[count], .msg_iovlen = 1};
            at += packets;
        }
    }
    int n = sendmmsg(io->source[0], io->sending, count, MSG_DONTWAIT);
    if (n < 0)
        return errno;
    io->counters.messages_sent += (unsigned)n;
    for (int i = 0; i < n; i++) {
        struct io_out *out = &io->out[io->out_head];
        out->sent += (unsigned)(io->out_iov[i].iov_len / io->packet_bytes);
        if (out->sent == out->packets)
            io->out_head++;
    }
    return 0;
}

static uint64_t udp_drops(struct io *io)
{
    uint64_t drops = 0;
    for (unsigned i = 0; i < io->sources; i++) {
        uint32_t memory[SK_MEMINFO_VARS] = {0};
        socklen_t size = sizeof memory;
        if (getsockopt(io->source[i], SOL_SOCKET, SO_MEMINFO, memory, &size) == 0)
            drops += memory[SK_MEMINFO_DROPS];
    }
    return drops;
}

static const struct io_backend udp_backend = {"udp", udp_open, udp_close, udp_receive, udp_send, udp_drops};

#endif

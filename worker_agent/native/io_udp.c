/* The back end of agents: one UDP socket a lane, bound to the group and the lane's port; needs no privilege.
 *
 * A socket that is bound to the group's address gets what is sent to it and nothing else, and the kernel's GRO looks
 * sockets up by that address. UDP_SEGMENT sends a super-frame by one call; with UDP_GRO one comes whole. A kernel
 * without either is sent, and gives, packet by packet.
 */

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
    unsigned way, way_lane; /* the source that sends over link 0 for all lanes; the lane that it was opened for */
};

#define UDP_LOOPBACK "lo"

static inline int udp_join(int fd, unsigned interface, const char *name, char *error, size_t size) {
    struct ip_mreqn member = {.imr_multiaddr.s_addr = htonl(INART_GROUP), .imr_ifindex = (int)interface};
    if (!setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member)) return 0;
    snprintf(error, size, "cannot join " INART_GROUP_TEXT " on %s: %s", name, strerror(errno));
    return -1;
}

/* Sets how packets leave by a socket: over this interface, with this host's address, and never in fragments. Returns 0,
 * or -1 with errno. */
static inline int udp_leaves(const struct io *io, int fd, unsigned interface) {
    int zero = 0, ttl = INART_TTL, service = io->spec.service, discover = IP_PMTUDISC_DO;
    struct ip_mreqn source = {.imr_address.s_addr = htonl(io->spec.address), .imr_ifindex = (int)interface};
    return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &zero, sizeof zero) ||
                   setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, sizeof ttl) ||
                   setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &discover, sizeof discover) ||
                   setsockopt(fd, IPPROTO_IP, IP_TOS, &service, sizeof service) ||
                   setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &source, sizeof source)
               ? -1
               : 0;
}

/* Prepares a socket that only sends: its buffer is as large as possible, and it sends super-frames where the kernel
 * cuts them. */
static inline int udp_sends(struct io *io, int fd) {
    int segment = (int)io->packet_bytes, buffer = 4 << 20;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof buffer))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment)) io->segments = 1;
    return fd;
}

/* Opens a socket of its own for packets over a further link, with the same address. */
static inline int udp_over(struct io *io, unsigned link, char *error, size_t size) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !udp_leaves(io, fd, io_index(io, link))) return udp_sends(io, fd);
    snprintf(error, size, "cannot send over %s: %s", io_interface(&io->spec, link), strerror(errno));
    if (fd >= 0) close(fd);
    return -1;
}

/* Opens another socket for packets that stay on this host, with the address that they would have on the link. */
static inline int udp_here(struct io *io, char *error, size_t size) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ip_mreqn source = {.imr_address.s_addr = htonl(io->spec.address),
                              .imr_ifindex = (int)if_nametoindex(UDP_LOOPBACK)};
    if (fd >= 0 && io->spec.address && source.imr_ifindex &&
        !setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &source, sizeof source))
        return udp_sends(io, fd);
    snprintf(error, size, "cannot send to this host itself over %s: %s", UDP_LOOPBACK,
             io->spec.address ? strerror(errno) : "the address of its data interface is not known");
    if (fd >= 0) close(fd);
    return -1;
}

static inline int udp_socket(struct io *io, uint16_t port, enum io_reach reach, char *error, size_t size) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1, zero = 0;
    if (fd < 0) {
        snprintf(error, size, "cannot open a UDP socket: %s", strerror(errno));
        return -1;
    }
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INART_GROUP)};
    io->receive_buffer = io_buffers(fd, io->spec.receive_bytes);
    /* The same port on one machine: a worker and a server, or the engine of the next plan beside this one's. With
     * SO_REUSEPORT the kernel lets nobody bind it but this user (SO_REUSEADDR would let everybody), and still gives
     * each socket its copy. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) ||
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &zero, sizeof zero) ||
        setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof one) || udp_leaves(io, fd, io->interface)) {
        snprintf(error, size, "cannot set a UDP socket up on %s: %s", io->spec.interface, strerror(errno));
        close(fd);
        return -1;
    }
    setsockopt(fd, SOL_UDP, UDP_GRO, &one, sizeof one);
    /* Where one socket alone has joined on the interface that a packet comes from, Linux (since 6.5) gives the packet
     * to any of the port's sockets that share SO_REUSEPORT, by a hash of its sender, also to one that has not joined
     * there. So what hears this host only is bound to it, which sets it apart; where that is not allowed (before 5.7)
     * it joins on the interface, too, and drops what is the other's. */
    bool apart = reach == INART_HERE && !setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, UDP_LOOPBACK, sizeof UDP_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) {
        snprintf(error, size, "cannot bind UDP port %u of " INART_GROUP_TEXT ": %s%s", port, strerror(errno),
                 errno == EADDRINUSE ? " (a program of another user has it: all agents of a host run as one user)"
                                     : "");
        close(fd);
        return -1;
    }
    bool joined = true;
    for (unsigned link = 0; !apart && joined && link <= io->spec.more; link++)
        joined = !udp_join(fd, io_index(io, link), io_interface(&io->spec, link), error, size);
    if (!joined || (reach != INART_LINK && udp_join(fd, if_nametoindex(UDP_LOOPBACK), UDP_LOOPBACK, error, size))) {
        close(fd);
        return -1;
    }
    return fd;
}

static void udp_close(struct io *io) {
    if (io->here >= 0) close(io->here);
    io->here = -1;
    for (unsigned i = 0; i < INART_MOST_LINKS - 1; i++) {
        if (io->over[i] >= 0) close(io->over[i]);
        io->over[i] = -1;
    }
    for (unsigned i = 0; i < io->sources; i++) close(io->source[i]);
    io->sources = 0;
    free(io->state);
}

/* Returns whether an earlier lane receives the same packets already; the two differ only in the link that they send
 * over. */
static inline bool udp_received(const struct io_spec *spec, unsigned lane) {
    for (unsigned i = 0; i < lane; i++)
        if (spec->port[i] == spec->port[lane] && spec->reach[i] == spec->reach[lane]) return true;
    return false;
}

static int udp_open(struct io *io, char *error, size_t size) {
    struct udp_state *s = io->state = calloc(1, sizeof *s);
    if (!s) {
        snprintf(error, size, "out of memory");
        return -1;
    }
    for (unsigned lane = 0; lane < io->spec.lanes; lane++) {
        unsigned link = io->spec.link[lane];
        s->group[lane] = (struct sockaddr_in){
            .sin_family = AF_INET, .sin_port = htons(io->spec.port[lane]), .sin_addr.s_addr = htonl(INART_GROUP)};
        if (link && io->over[link - 1] < 0 && (io->over[link - 1] = udp_over(io, link, error, size)) < 0) goto fail;
        if (udp_received(&io->spec, lane)) continue;
        int fd = udp_socket(io, io->spec.port[lane], io->spec.reach[lane], error, size);
        if (fd < 0) goto fail;
        if (io->spec.reach[lane] != INART_HERE && io->spec.reach[s->way_lane] == INART_HERE) {
            s->way = io->sources;
            s->way_lane = lane;
        }
        io->source[io->sources++] = fd;
        if (io_check_mtu(&io->spec, fd, error, size)) goto fail;
        if (io->spec.reach[lane] != INART_LINK && io->here < 0 && (io->here = udp_here(io, error, size)) < 0) goto fail;
    }
    int segment = (int)io->packet_bytes;
    if (!io->sources || setsockopt(io->source[s->way], SOL_UDP, UDP_SEGMENT, &segment, sizeof segment))
        io->segments = 1;
    return 0;
fail:
    udp_close(io);
    return -1;
}

static int udp_receive(struct io *io, unsigned source) {
    for (unsigned i = 0; i < io->wanted; i++) {
        io->in_iov[i] = (struct iovec){io->in_memory + (size_t)i * INART_ROOM, INART_ROOM};
        io->message[i].msg_hdr = (struct msghdr){.msg_name = &io->from[i],
                                                 .msg_namelen = sizeof io->from[i],
                                                 .msg_iov = &io->in_iov[i],
                                                 .msg_iovlen = 1,
                                                 .msg_control = io->control[i],
                                                 .msg_controllen = sizeof io->control[i]};
    }
    int n = recvmmsg(io->source[source], io->message, io->wanted, MSG_DONTWAIT | MSG_TRUNC, NULL);
    io->full = n == (int)io->wanted;
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) io->last_errno = errno;
        return 0;
    }
    for (int i = 0; i < n; i++) {
        struct msghdr *m = &io->message[i].msg_hdr;
        uint32_t bytes = io->message[i].msg_len, segment = bytes;
        uint8_t service = 0;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
            if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
                segment = (uint32_t)*(const int *)(const void *)CMSG_DATA(c);
            else if (c->cmsg_level == SOL_IP && c->cmsg_type == IP_TOS)
                service = *CMSG_DATA(c);
        io->in[i] = (struct io_in){io->in_iov[i].iov_base, bytes, segment, ntohl(io->from[i].sin_addr.s_addr),
                                   (service & INART_ECN_BITS) == INART_ECN_CONGESTED};
    }
    return n;
}

static int udp_send(struct io *io) {
    struct udp_state *s = io->state;
    unsigned count = 0;
    unsigned first = io->out[io->out_head].lane, link = io->spec.link[first]; /* one call is for one of the ways */
    enum io_reach reach = io->spec.reach[first];
    for (unsigned i = io->out_head; i < io->out_count && count < INART_SEGMENTS; i++) {
        struct io_out *out = &io->out[i];
        if (io->spec.reach[out->lane] != reach || io->spec.link[out->lane] != link) break;
        for (unsigned at = out->sent; at < out->packets && count < INART_SEGMENTS; count++) {
            unsigned packets = io_message(io, out, at);
            io->out_iov[count] = (struct iovec){out->data + at * io->packet_bytes, packets * io->packet_bytes};
            io->sending[count].msg_hdr = (struct msghdr){.msg_name = &s->group[out->lane],
                                                         .msg_namelen = sizeof s->group[0],
                                                         .msg_iov = &io->out_iov[count],
                                                         .msg_iovlen = 1};
            at += packets;
        }
    }
    int way = reach == INART_HERE ? io->here : link ? io->over[link - 1] : io->source[s->way];
    int n = sendmmsg(way, io->sending, count, MSG_DONTWAIT);
    if (n < 0) return errno;
    if (reach == INART_BOTH && n) /* what does not get through is lost, as on a link */
        sendmmsg(io->here, io->sending, (unsigned)n, MSG_DONTWAIT);
    io->counters.messages_sent += (unsigned)n;
    for (int i = 0; i < n; i++) {
        struct io_out *out = &io->out[io->out_head];
        out->sent += (unsigned)(io->out_iov[i].iov_len / io->packet_bytes);
        if (out->sent == out->packets) io->out_head++;
    }
    return 0;
}

static uint64_t udp_drops(struct io *io) {
    uint64_t drops = 0;
    for (unsigned i = 0; i < io->sources; i++) {
        uint32_t memory[SK_MEMINFO_VARS] = {0};
        socklen_t size = sizeof memory;
        if (getsockopt(io->source[i], SOL_SOCKET, SO_MEMINFO, memory, &size) == 0) drops += memory[SK_MEMINFO_DROPS];
    }
    return drops;
}

const struct io_backend io_backend = {udp_open, udp_close, udp_receive, udp_send, udp_drops};

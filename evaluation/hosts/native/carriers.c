/* One end of a veth pair that carries packets of one size as fast as it can, by one of the ways that Linux has.
 *
 *   carriers send|receive packet|udp|super|xdp|xdp-generic INTERFACE PACKETS PAYLOAD
 *
 * packet: AF_PACKET, frame by frame; udp: the same with UDP; super: UDP_SEGMENT and UDP_GRO; xdp: AF_XDP in copy mode,
 * with XDP in the driver, or generic. All send and take batches. A receiver says "ready", takes packets until none has
 * come for half a second, and prints how many, and its CPU seconds; so does a sender.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xdp/xsk.h>

#define GROUP "239.73.78.65"
#define PORT 0x5000
#define HEADERS 42
#define BATCH 60 /* packets handed over at a time, whichever way */
#define MESSAGES 32
#define IDLE_MS 500
#define RING 2048
#define CHUNK 2048

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static double cpu(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static uint8_t *frame_of(uint8_t *f, unsigned payload) {
    uint32_t sum = 0;
    memset(f, 1, HEADERS + payload);
    memcpy(f, (const uint8_t[]){1, 0, 0x5e, 0x49, 0x4e, 0x41, 2, 0, 0, 0, 0, 1, 8, 0}, 14);
    uint8_t ip[28] = {0x45,
                      0,
                      (uint8_t)((28 + payload) >> 8),
                      (uint8_t)(28 + payload),
                      0,
                      0,
                      0x40,
                      0,
                      64,
                      17,
                      0,
                      0,
                      10,
                      9,
                      0,
                      1,
                      239,
                      73,
                      78,
                      65,
                      PORT >> 8,
                      PORT & 255,
                      PORT >> 8,
                      PORT & 255,
                      (uint8_t)((8 + payload) >> 8),
                      (uint8_t)(8 + payload)};
    for (int i = 0; i < 20; i += 2) sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    ip[10] = (uint8_t)(~sum >> 8);
    ip[11] = (uint8_t)~sum;
    memcpy(f + 14, ip, sizeof ip);
    return f;
}

static int udp_socket(const char *interface, bool super, unsigned payload, bool receive) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 32 << 20, one = 1, segment = (int)payload;
    struct ip_mreqn member = {.imr_multiaddr.s_addr = inet_addr(GROUP), .imr_ifindex = (int)if_nametoindex(interface)};
    struct sockaddr_in group = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr = member.imr_multiaddr};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    if (receive) {
        if (super) setsockopt(fd, SOL_UDP, UDP_GRO, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&group, sizeof group) ||
            setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member))
            fail("group");
    } else {
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &member, sizeof member);
        if ((super && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment)) ||
            connect(fd, (struct sockaddr *)&group, sizeof group))
            fail("UDP_SEGMENT");
    }
    return fd;
}

static int packet_socket(const char *interface, bool receive) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0), size = 32 << 20, one = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(interface)};
    address.sll_protocol = receive ? htons(ETH_P_IP) : 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    if (!receive) setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) fail("packet socket");
    return fd;
}

/* ---- sockets that take messages ---- */

static uint64_t messages_send(int fd, bool super, uint8_t *data, unsigned bytes, uint64_t packets) {
    static struct mmsghdr messages[BATCH];
    struct iovec iov = {data, super ? (size_t)BATCH * bytes : bytes};
    unsigned count = super ? 1 : BATCH;
    for (unsigned i = 0; i < count; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov, .msg_iovlen = 1};
    uint64_t sent = 0;
    while (sent < packets) {
        int n = sendmmsg(fd, messages, count, 0);
        if (n < 0 && errno != ENOBUFS && errno != EINTR) fail("sendmmsg");
        if (n > 0) sent += super ? BATCH : (unsigned)n;
    }
    return sent;
}

static uint64_t messages_receive(int fd, unsigned bytes) {
    static uint8_t room[MESSAGES][65536];
    static struct mmsghdr messages[MESSAGES];
    static struct iovec iov[MESSAGES];
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    uint64_t got = 0;
    for (unsigned i = 0; i < MESSAGES; i++) {
        iov[i] = (struct iovec){room[i], sizeof room[i]};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    while (poll(&wait, 1, got ? IDLE_MS : 10000) > 0) {
        int n = recvmmsg(fd, messages, MESSAGES, MSG_DONTWAIT, NULL);
        for (int i = 0; i < n; i++) got += (messages[i].msg_len + bytes - 1) / bytes;
    }
    return got;
}

/* ---- AF_XDP ---- */

struct xdp {
    struct xsk_ring_prod fill, tx;
    struct xsk_ring_cons completion, rx;
    struct xsk_umem *umem;
    struct xsk_socket *socket;
    uint8_t *area;
};

static void xdp_open(struct xdp *x, const char *interface, bool generic, bool receive) {
    size_t size = (size_t)2 * RING * CHUNK;
    struct xsk_umem_config umem = {.fill_size = RING, .comp_size = RING, .frame_size = CHUNK};
    struct xsk_socket_config config = {.rx_size = RING, .tx_size = RING, .bind_flags = XDP_COPY};
    config.xdp_flags = generic ? 1u << 1 : 1u << 2; /* XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE */
    if (!receive) config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
    x->area = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (x->area == MAP_FAILED || (errno = -xsk_umem__create(&x->umem, x->area, size, &x->fill, &x->completion, &umem)))
        fail("umem");
    errno = -xsk_socket__create(&x->socket, interface, 0, x->umem, receive ? &x->rx : NULL, receive ? NULL : &x->tx,
                                &config);
    if (errno) fail("AF_XDP socket");
}

static uint64_t xdp_send(struct xdp *x, uint64_t packets, unsigned payload) {
    uint64_t sent = 0;
    unsigned under_way = 0;
    for (unsigned i = 0; i < RING; i++) frame_of(x->area + (size_t)i * CHUNK, payload);
    while (sent < packets || under_way) {
        uint32_t at, n;
        if (sent < packets && under_way + BATCH <= RING && xsk_ring_prod__reserve(&x->tx, BATCH, &at) == BATCH) {
            for (unsigned i = 0; i < BATCH; i++)
                *xsk_ring_prod__tx_desc(&x->tx, at + i) =
                    (struct xdp_desc){.addr = (sent + i) % RING * CHUNK, .len = HEADERS + payload};
            xsk_ring_prod__submit(&x->tx, BATCH);
            sent += BATCH;
            under_way += BATCH;
        }
        sendto(xsk_socket__fd(x->socket), NULL, 0, MSG_DONTWAIT, NULL, 0);
        while ((n = xsk_ring_cons__peek(&x->completion, RING, &at))) {
            xsk_ring_cons__release(&x->completion, n);
            under_way -= n;
        }
    }
    return sent;
}

static uint64_t xdp_receive(struct xdp *x) {
    struct pollfd wait = {.fd = xsk_socket__fd(x->socket), .events = POLLIN};
    uint64_t got = 0;
    uint32_t at, to, n;
    if (xsk_ring_prod__reserve(&x->fill, RING, &to) != RING) fail("fill ring");
    for (unsigned i = 0; i < RING; i++) *xsk_ring_prod__fill_addr(&x->fill, to + i) = (uint64_t)i * CHUNK;
    xsk_ring_prod__submit(&x->fill, RING);
    while (poll(&wait, 1, got ? IDLE_MS : 10000) > 0)
        while ((n = xsk_ring_cons__peek(&x->rx, 64, &at))) {
            while (xsk_ring_prod__reserve(&x->fill, n, &to) != n) {
            }
            for (unsigned i = 0; i < n; i++)
                *xsk_ring_prod__fill_addr(&x->fill, to + i) =
                    xsk_ring_cons__rx_desc(&x->rx, at + i)->addr & ~(uint64_t)(CHUNK - 1);
            xsk_ring_prod__submit(&x->fill, n);
            xsk_ring_cons__release(&x->rx, n);
            got += n;
        }
    return got;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    bool receive = !strcmp(arguments[1], "receive"), super = !strcmp(arguments[2], "super"),
         udp = super || !strcmp(arguments[2], "udp");
    const char *interface = arguments[3];
    uint64_t packets = strtoull(arguments[4], NULL, 10), done;
    unsigned payload = (unsigned)atoi(arguments[5]);
    static uint8_t data[BATCH * CHUNK];
    static struct xdp x;
    int fd = -1;
    if (udp)
        fd = udp_socket(interface, super, payload, receive);
    else if (!strcmp(arguments[2], "packet"))
        fd = packet_socket(interface, receive);
    else
        xdp_open(&x, interface, !strcmp(arguments[2], "xdp-generic"), receive);
    puts("ready");
    fflush(stdout);
    double before = cpu();
    if (receive)
        done = fd < 0 ? xdp_receive(&x) : messages_receive(fd, udp ? payload : payload + HEADERS);
    else if (fd < 0)
        done = xdp_send(&x, packets, payload);
    else
        done =
            messages_send(fd, super, udp ? data : frame_of(data, payload), udp ? payload : payload + HEADERS, packets);
    printf("%llu %.6f\n", (unsigned long long)done, cpu() - before);
    if (fd < 0) {
        xsk_socket__delete(x.socket);
        xsk_umem__delete(x.umem);
    }
    return 0;
}

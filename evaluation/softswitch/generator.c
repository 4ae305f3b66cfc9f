/* A packet generator: sends a ring of frames on an interface in batches, at full speed or at a given rate.
 *
 *   generator INTERFACE FRAMES SECONDS PACKETS_PER_SECOND OFFSET
 *
 * FRAMES is a file of frames, each a 4-byte little-endian length, a 4-byte segment size and the bytes. A frame with a
 * segment size is a super-frame: headers of UDP over IPv4, whose checksum the kernel is to complete, and payload of
 * many packets. Every time the ring has been sent, the 32-bit big-endian number at OFFSET of every packet is increased
 * by one (OFFSET -1: packets stay as they are). PACKETS_PER_SECOND 0 means as fast as possible. Prints the number of
 * packets that the kernel took.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define HEADERS 42u /* Ethernet, IPv4, UDP */

struct vnet { /* struct virtio_net_hdr */
    uint8_t flags, gso_type;
    uint16_t hdr_len, gso_size, csum_start, csum_offset;
};

struct frame {
    struct vnet vnet;
    struct iovec iov[2];
    unsigned packets;
};

static uint64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void increase(uint8_t *p) {
    for (int i = 3; i >= 0 && ++p[i] == 0; i--) {
    }
}

/* The frames of a file, and how many there are; 0: the file cannot be read, or has none, which has been said. */
static size_t load(const char *name, struct frame **all) {
    FILE *file = fopen(name, "rb");
    if (!file) {
        perror(name);
        return 0;
    }
    struct frame *frames = NULL;
    size_t n = 0;
    uint32_t head[2];
    while (fread(head, sizeof head, 1, file) == 1) {
        uint32_t len = head[0], size = head[1];
        frames = realloc(frames, (n + 1) * sizeof *frames);
        struct frame *f = &frames[n];
        memset(f, 0, sizeof *f);
        f->packets = 1;
        if (size) {
            f->packets = (len - HEADERS + size - 1) / size;
            f->vnet = (struct vnet){1, 5, HEADERS, (uint16_t)size, 34, 6};
        }
        f->iov[1] = (struct iovec){malloc(len), len};
        if (fread(f->iov[1].iov_base, 1, len, file) != len) break;
        n++;
    }
    for (size_t i = 0; i < n; i++) frames[i].iov[0] = (struct iovec){&frames[i].vnet, sizeof frames[i].vnet};
    fclose(file);
    if (n == 0) fprintf(stderr, "%s: no frames\n", name);
    *all = frames;
    return n;
}

/* A packet socket on the interface; -1: it cannot be opened, which has been said. */
static int open_socket(const char *interface) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0), one = 1;
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(interface)};
    if (fd < 0 || !address.sll_ifindex || bind(fd, (struct sockaddr *)&address, sizeof address)) {
        perror(interface);
        return -1;
    }
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
    setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one);
    return fd;
}

/* How many of `left` frames may go now: at most a batch, and what the rate allows; 0 after a short pause. */
static unsigned allowed(const struct frame *frames, size_t left, double due) {
    if (due < 1) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
        return 0;
    }
    unsigned fit = 0;
    for (; fit < BATCH && fit < left && due >= 1; fit++) due -= frames[fit].packets;
    return fit;
}

/* Increases the number at `offset` of every packet. */
static void renumber(struct frame *frames, size_t n, long offset) {
    for (size_t i = 0; offset >= 0 && i < n; i++)
        for (unsigned p = 0; p < frames[i].packets; p++) {
            size_t place = (size_t)offset + (size_t)p * frames[i].vnet.gso_size;
            if (place + 4 <= frames[i].iov[1].iov_len) increase((uint8_t *)frames[i].iov[1].iov_base + place);
        }
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: %s INTERFACE FRAMES SECONDS PACKETS_PER_SECOND OFFSET\n", argv[0]);
        return 2;
    }
    struct frame *frames = NULL;
    size_t n = load(argv[2], &frames), at = 0;
    if (n == 0) return 1;
    uint64_t duration = (uint64_t)(atof(argv[3]) * 1e9);
    double rate = atof(argv[4]);
    long offset = atol(argv[5]);
    int fd = open_socket(argv[1]);
    if (fd < 0) return 1;
    struct mmsghdr messages[BATCH];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr.msg_iovlen = 2;
    uint64_t start = now_ns(), sent = 0;
    for (;;) {
        uint64_t now = now_ns();
        if (now - start >= duration) break;
        double due = rate > 0 ? (double)(now - start) * 1e-9 * rate - (double)sent : 1e18;
        unsigned batch = allowed(frames + at, n - at, due);
        if (batch == 0) continue;
        for (unsigned i = 0; i < batch; i++) messages[i].msg_hdr.msg_iov = frames[at + i].iov;
        int result = sendmmsg(fd, messages, batch, 0);
        if (result <= 0) {
            if (errno == ENOBUFS || errno == EAGAIN || errno == EINTR) continue;
            perror("sendmmsg");
            return 1;
        }
        for (int i = 0; i < result; i++) sent += frames[at++].packets;
        if (at == n) {
            at = 0;
            renumber(frames, n, offset);
        }
    }
    printf("%llu\n", (unsigned long long)sent);
    return 0;
}

/* Ports on Linux interfaces: AF_PACKET sockets, one that receives (with offload information) and one that sends. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#define VNET_NEEDS_CSUM 1
#define SOCKET_BUFFER (8 << 20)
#define SS_SUPER_BATCH 8 /* few, so that they stay in the cache until they are cut */
#define OVERFLOW (SS_MAX_FRAME - SS_SMALL)

struct ss_rx {
    struct mmsghdr messages[SS_BATCH];
    struct iovec iov[SS_BATCH][2];
    struct ss_buf *bufs[SS_BATCH];
    struct {
        struct cmsghdr header;
        uint8_t data[64];
    } control[SS_BATCH];
    uint8_t *overflow; /* SS_BATCH times OVERFLOW bytes, for the part of a frame that does not fit into its buffer */
};

struct ss_rx *ss_rx_new(void) {
    struct ss_rx *rx = calloc(1, sizeof *rx);
    if (rx) rx->overflow = malloc((size_t)SS_BATCH * OVERFLOW);
    if (rx && !rx->overflow) {
        free(rx);
        return NULL;
    }
    return rx;
}

void ss_rx_free(struct ss_rx *rx) {
    if (!rx) return;
    for (int i = 0; i < SS_BATCH; i++)
        if (rx->bufs[i]) ss_buf_free(rx->bufs[i]);
    free(rx->overflow);
    free(rx);
}

static int set_int(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int failed(int fd) {
    int error = errno;
    if (fd >= 0) close(fd);
    return -error;
}

static int open_socket(unsigned index, bool receive) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || set_int(fd, SOL_PACKET, PACKET_VNET_HDR, 1)) return failed(fd);
    if (receive) {
        if (set_int(fd, SOL_PACKET, PACKET_AUXDATA, 1) || set_int(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1))
            return failed(fd);
        if (set_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER)) set_int(fd, SOL_SOCKET, SO_RCVBUF, SOCKET_BUFFER);
    } else {
        set_int(fd, SOL_PACKET, PACKET_QDISC_BYPASS, 1);
        if (set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BUFFER)) set_int(fd, SOL_SOCKET, SO_SNDBUF, SOCKET_BUFFER);
    }
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)index};
    address.sll_protocol = receive ? htons(ETH_P_ALL) : 0;
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) return failed(fd);
    if (receive) {
        struct packet_mreq request = {.mr_ifindex = (int)index, .mr_type = PACKET_MR_PROMISC};
        if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof request)) return failed(fd);
    }
    return fd;
}

/* Opens the sockets of a port on an interface. Returns 0 or a negative errno. */
int ss_interface_open(struct ss_port *port, const char *name) {
    unsigned index = if_nametoindex(name);
    if (!index) return -ENODEV;
    int rx = open_socket(index, true);
    if (rx < 0) return rx;
    int tx = open_socket(index, false);
    if (tx < 0) {
        close(rx);
        return tx;
    }
    port->rx_fd = rx;
    port->tx_fd = tx;
    port->kind = SS_PORT_INTERFACE;
    port->plain_until = 0;
    snprintf(port->name, sizeof port->name, "%s", name);
    return 0;
}

void ss_interface_close(struct ss_port *port) {
    if (port->rx_fd >= 0) close(port->rx_fd);
    if (port->tx_fd >= 0) close(port->tx_fd);
    port->rx_fd = port->tx_fd = -1;
}

/* Puts the VLAN tag that the kernel removed back into the frame, of which `first` bytes are in the buffer. */
static void restore_tag(struct msghdr *message, struct ss_buf *buf, struct ss_vnet *vnet, uint32_t *first) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        struct tpacket_auxdata aux;
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA || c->cmsg_len < CMSG_LEN(sizeof aux))
            continue;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        if (!(aux.tp_status & TP_STATUS_VLAN_VALID) || buf->len < 12) return;
        uint16_t tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : ETH_P_8021Q;
        buf->data -= 4;
        buf->len += 4;
        *first += 4;
        memmove(buf->data, buf->data + 4, 12);
        buf->data[12] = (uint8_t)(tpid >> 8);
        buf->data[13] = (uint8_t)tpid;
        buf->data[14] = (uint8_t)(aux.tp_vlan_tci >> 8);
        buf->data[15] = (uint8_t)aux.tp_vlan_tci;
        vnet->csum_start = (uint16_t)(vnet->csum_start + 4);
        return;
    }
}

/* The intermediate form of a received batch, on its way to the program. */
struct stage {
    struct ss_list frames;
    uint64_t supers, bad, no_memory;
};

/* Runs a batch through the program. Only this function takes locks; the work before and after it runs in parallel. */
static void run(struct ss_thread *thread, struct ss_port *port, struct stage *stage) {
    struct ss_device *device = port->device;
    struct ss_thread *owner = device->thread;
    struct ss_buf *buf;
    ss_gate_enter(owner, thread);
    bool shared = ss_shareable(device, port) && (thread->visitor || (thread->visitor = ss_visitor_new()));
    if (shared) ss_shared_run(thread->visitor, device, port->number, &stage->frames);
    ss_lock(&owner->state);
    owner->now_ns = ss_now_ns();
    port->rx_super += stage->supers;
    for (; stage->bad; stage->bad--) ss_drop(device, port, SS_DROP_OFFLOAD);
    for (; stage->no_memory; stage->no_memory--) ss_drop(device, port, SS_DROP_NO_MEMORY);
    if (shared) ss_shared_end(owner, device, port->number, thread->visitor);
    while ((buf = ss_pop(&stage->frames))) ss_switch_receive(owner, device, port->number, buf);
    if (owner != thread) ss_timers_changed(owner);
    ss_outputs_take(owner, thread);
    ss_unlock(&owner->state);
    ss_gate_leave(owner, thread);
    stage->supers = 0;
    ss_outputs_send(thread);
}

/* Handles one received frame; `more` is the rest of it, beyond SS_SMALL bytes. */
static void received(struct ss_port *port, struct stage *stage, struct ss_buf *buf, const uint8_t *more,
                     struct msghdr *message, struct ss_vnet *vnet) {
    uint32_t first = SS_SMALL;
    if (vnet->gso_type) {
        restore_tag(message, buf, vnet, &first);
        stage->supers++;
        port->super = true;
        stage->bad += !ss_segment(buf, first, more, vnet, &stage->frames);
        return;
    }
    if (buf->len > SS_SMALL) {
        struct ss_buf *big = ss_buf_new(buf->len);
        if (!big) {
            stage->no_memory++;
            ss_buf_free(buf);
            return;
        }
        memcpy(big->data, buf->data, SS_SMALL);
        memcpy(big->data + SS_SMALL, more, buf->len - SS_SMALL);
        ss_buf_free(buf);
        buf = big;
    }
    restore_tag(message, buf, vnet, &first);
    if (vnet->flags & VNET_NEEDS_CSUM &&
        !ss_complete_checksum(buf->data, buf->len, vnet->csum_start, vnet->csum_offset)) {
        stage->bad++;
        ss_buf_free(buf);
        return;
    }
    ss_push(&stage->frames, buf);
}

void ss_interface_receive(struct ss_thread *thread, struct ss_port *port) {
    struct ss_rx *rx = thread->rx;
    struct stage stage = {0};
    int batch = port->super ? SS_SUPER_BATCH : SS_BATCH;
    for (int i = 0; i < batch; i++) {
        if (!rx->bufs[i] && !(rx->bufs[i] = ss_buf_new(SS_SMALL))) return;
        /* the offload information lands right before the frame */
        rx->iov[i][0] = (struct iovec){rx->bufs[i]->data - sizeof(struct ss_vnet), sizeof(struct ss_vnet) + SS_SMALL};
        rx->iov[i][1] = (struct iovec){rx->overflow + (size_t)i * OVERFLOW, OVERFLOW};
        struct msghdr *m = &rx->messages[i].msg_hdr;
        m->msg_iov = rx->iov[i];
        m->msg_iovlen = 2;
        m->msg_control = &rx->control[i];
        m->msg_controllen = sizeof rx->control[i];
    }
    int n = recvmmsg(port->rx_fd, rx->messages, (unsigned)batch, MSG_DONTWAIT, NULL);
    port->super = false;
    for (int i = 0; i < n; i++) {
        struct ss_buf *buf = rx->bufs[i];
        uint32_t len = rx->messages[i].msg_len;
        struct ss_vnet vnet;
        if (len <= sizeof vnet) continue;
        memcpy(&vnet, buf->data - sizeof vnet, sizeof vnet);
        rx->bufs[i] = NULL;
        buf->len = len - (uint32_t)sizeof vnet;
        received(port, &stage, buf, rx->overflow + (size_t)i * OVERFLOW, &rx->messages[i].msg_hdr, &vnet);
        if (stage.supers) run(thread, port, &stage); /* it runs at once, while the frames are in the cache */
    }
    if (stage.frames.n || stage.bad || stage.no_memory) run(thread, port, &stage);
}

/* Frames for the kernel: those of a batch in one call, datagrams that may leave as one super-frame in one message. */
#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "runtime.h"

#define PLAIN_NS 100000000u /* an interface that refuses super-frames is asked again after so long */

struct message {
    struct ss_vnet vnet;
    uint8_t headers[SS_RUN_HEADERS];
    uint32_t frames;
};

/* The longest packet that may leave by the port; 0: not known. */
static uint32_t mtu_of(const struct ss_port *port) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, port->name, sizeof request.ifr_name);
    return ioctl(port->tx_fd, SIOCGIFMTU, &request) || request.ifr_mtu < 0 ? 0 : (uint32_t)request.ifr_mtu;
}

/* Messages for frames [at, port->n_batch); without `mtu` each in one of its own. How many messages. */
static unsigned plan(const struct ss_port *port, unsigned at, uint32_t mtu, struct message *messages,
                     struct mmsghdr *out, struct iovec *iov) {
    unsigned n = 0;
    while (at < port->n_batch) {
        struct ss_run run = {.frames = 1};
        if (mtu) ss_run_find(port->batch + at, port->n_batch - at, mtu, &run);
        struct message *m = &messages[n];
        m->frames = run.frames;
        out[n].msg_hdr = (struct msghdr){.msg_iov = iov};
        if (run.frames == 1) {
            m->vnet = (struct ss_vnet){0};
            *iov++ = (struct iovec){&m->vnet, sizeof m->vnet};
            *iov++ = (struct iovec){port->batch[at]->data, port->batch[at]->len};
        } else {
            ss_run_headers(port->batch[at], &run, &m->vnet, m->headers);
            _Static_assert(offsetof(struct message, headers) == sizeof m->vnet, "one piece");
            *iov++ = (struct iovec){&m->vnet, sizeof m->vnet + sizeof m->headers};
            for (unsigned i = 0; i < run.frames; i++)
                *iov++ = (struct iovec){port->batch[at + i]->data + SS_RUN_HEADERS,
                                        port->batch[at + i]->len - SS_RUN_HEADERS};
        }
        out[n].msg_hdr.msg_iovlen = (size_t)(iov - out[n].msg_hdr.msg_iov);
        at += run.frames;
        n++;
    }
    return n;
}

void ss_port_flush(struct ss_port *port) {
    struct message messages[SS_TX_BATCH];
    struct mmsghdr out[SS_TX_BATCH];
    struct iovec iov[2 * SS_TX_BATCH];
    uint64_t now = port->device->thread->now_ns;
    uint32_t mtu = port->offload && port->n_batch > 1 && now >= port->plain_until ? mtu_of(port) : 0;
    for (unsigned at = 0; at < port->n_batch;) {
        unsigned n = plan(port, at, mtu, messages, out, iov);
        for (unsigned i = 0; i < n;) {
            int sent = sendmmsg(port->tx_fd, out + i, n - i, MSG_DONTWAIT);
            if (sent < 0 && errno == EINTR) continue;
            for (int j = 0; j < sent; j++, i++) {
                at += messages[i].frames;
                port->tx_super += messages[i].frames > 1;
            }
            if (sent > 0) continue;
            if (messages[i].frames > 1) { /* the interface does not take it, or is busy: try one by one */
                mtu = 0;
                port->plain_until = now + PLAIN_NS;
                break;
            }
            port->tx_packets--; /* the kernel refused this one: interface down, or longer than its MTU */
            port->tx_bytes -= port->batch[at]->len;
            ss_drop(port->device, port, SS_DROP_TX_ERROR);
            at++;
            i++;
        }
    }
    for (unsigned i = 0; i < port->n_batch; i++) ss_buf_free(port->batch[i]);
    port->n_batch = 0;
}

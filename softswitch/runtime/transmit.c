/* Sends frames to the kernel: a batch in one call, and in one message the frames that may leave as one super-frame. */
#define _GNU_SOURCE
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "runtime.h"

#define PLAIN_NS 100000000u /* time after which an interface that refused super-frames is tried again */

struct message {
    struct ss_vnet vnet;
    uint8_t headers[SS_RUN_HEADERS];
    uint32_t frames;
};

/* Returns the longest packet that may leave by the port; 0: unknown. */
static uint32_t mtu_of(const struct ss_port *port) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, port->name, sizeof request.ifr_name);
    return ioctl(port->tx_fd, SIOCGIFMTU, &request) || request.ifr_mtu < 0 ? 0 : (uint32_t)request.ifr_mtu;
}

/* Groups n frames into messages, each with one frame if `mtu` is 0; returns the number of messages. */
static unsigned plan(struct ss_buf *const *frames, unsigned n, uint32_t mtu, struct message *messages,
                     struct mmsghdr *out, struct iovec *iov) {
    unsigned count = 0;
    for (unsigned at = 0; at < n; at += messages[count++].frames) {
        struct ss_run run = {.frames = 1};
        if (mtu) ss_run_find(frames + at, n - at, mtu, &run);
        struct message *m = &messages[count];
        m->frames = run.frames;
        out[count].msg_hdr = (struct msghdr){.msg_iov = iov};
        if (run.frames == 1) {
            m->vnet = (struct ss_vnet){0};
            *iov++ = (struct iovec){&m->vnet, sizeof m->vnet};
            *iov++ = (struct iovec){frames[at]->data, frames[at]->len};
        } else {
            ss_run_headers(frames[at], &run, &m->vnet, m->headers);
            _Static_assert(offsetof(struct message, headers) == sizeof m->vnet, "one piece");
            *iov++ = (struct iovec){&m->vnet, sizeof m->vnet + run.headers};
            for (unsigned i = 0; i < run.frames; i++)
                *iov++ = (struct iovec){frames[at + i]->data + run.headers, frames[at + i]->len - run.headers};
        }
        out[count].msg_hdr.msg_iovlen = (size_t)(iov - out[count].msg_hdr.msg_iov);
    }
    return count;
}

static void refused(struct ss_port *port, uint32_t bytes) {
    struct ss_thread *owner = port->device->thread;
    ss_lock(&owner->state);
    port->tx_packets--;
    port->tx_bytes -= bytes;
    ss_drop(port->device, port, SS_DROP_TX_ERROR);
    ss_unlock(&owner->state);
}

/* Sends this frame alone; returns whether the interface accepted it. Where the kernel has to segment a super-frame
 * because the interface cannot, a socket that bypasses the queueing discipline gets the same ENOBUFS as when the
 * interface is full (Linux, packet_direct_xmit): only this call distinguishes the two. */
static bool takes_alone(struct ss_port *port, struct ss_buf *frame) {
    struct ss_vnet vnet = {0};
    struct iovec iov[] = {{&vnet, sizeof vnet}, {frame->data, frame->len}};
    struct mmsghdr out = {.msg_hdr = {.msg_iov = iov, .msg_iovlen = 2}};
    int sent;
    do sent = sendmmsg(port->tx_fd, &out, 1, MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == 1;
}

/* Sends a batch. Frames that the kernel refuses (interface down, or longer than its MTU) stay in `frames`, the others
 * become NULL. */
static void send_batch(struct ss_port *port, struct ss_buf **frames, unsigned n) {
    struct message messages[SS_TX_BATCH];
    struct mmsghdr out[SS_TX_BATCH];
    struct iovec iov[2 * SS_TX_BATCH];
    uint64_t now = n > 1 ? ss_now_ns() : 0;
    uint32_t mtu = port->offload && n > 1 && now >= port->plain_until ? mtu_of(port) : 0;
    for (unsigned at = 0; at < n;) {
        unsigned count = plan(frames + at, n - at, mtu, messages, out, iov);
        for (unsigned i = 0; i < count;) {
            int sent = sendmmsg(port->tx_fd, out + i, count - i, MSG_DONTWAIT);
            if (sent < 0 && errno == EINTR) continue;
            for (int j = 0; j < sent; j++, i++) {
                for (unsigned k = 0; k < messages[i].frames; k++, at++) {
                    ss_buf_free(frames[at]);
                    frames[at] = NULL;
                }
                if (messages[i].frames > 1) atomic_fetch_add_explicit(&port->tx_super, 1, memory_order_relaxed);
            }
            if (sent > 0) continue;
            bool super = messages[i].frames > 1, no_room = errno == EAGAIN || errno == ENOBUFS;
            if (super && errno == ENOBUFS && takes_alone(port, frames[at])) {
                ss_buf_free(frames[at]);
                frames[at++] = NULL;
                no_room = false;
            }
            if (no_room) { /* the interface is full: the rest is dropped, as in any queue */
                at += messages[i++].frames;
                continue;
            }
            if (super) { /* the interface does not accept it: try one by one */
                mtu = 0;
                port->plain_until = now + PLAIN_NS;
                break;
            }
            at++;
            i++;
        }
    }
}

static void send_frames(struct ss_port *port, struct ss_list *list) {
    struct ss_buf *frames[SS_TX_BATCH];
    while (list->head) {
        unsigned n = 0;
        while (n < SS_TX_BATCH && list->head) frames[n++] = ss_pop(list);
        pthread_mutex_lock(&port->tx_lock);
        if (port->tx_fd >= 0) send_batch(port, frames, n);
        pthread_mutex_unlock(&port->tx_lock);
        for (unsigned i = 0; i < n; i++) {
            if (!frames[i]) continue;
            refused(port, frames[i]->len);
            ss_buf_free(frames[i]);
        }
    }
}

/* Moves the frames that devices of `owner` have for interfaces to `thread`, which sends them. The owner's state is
 * locked. */
void ss_outputs_take(struct ss_thread *owner, struct ss_thread *thread) {
    while (owner->dirty) {
        struct ss_port *port = owner->dirty;
        owner->dirty = port->next_dirty;
        port->dirty = false;
        if (!port->tx.n) continue;
        if (thread->n_outputs == thread->outputs_size) {
            unsigned size = thread->outputs_size ? 2 * thread->outputs_size : 64;
            struct ss_output *larger = realloc(thread->outputs, size * sizeof *larger);
            if (!larger) abort(); /* these are a few bytes per port: a process without them cannot go on */
            thread->outputs = larger;
            thread->outputs_size = size;
        }
        thread->outputs[thread->n_outputs++] = (struct ss_output){port, port->tx};
        port->tx = (struct ss_list){0};
    }
}

void ss_outputs_send(struct ss_thread *thread) {
    for (unsigned i = 0; i < thread->n_outputs; i++) send_frames(thread->outputs[i].port, &thread->outputs[i].frames);
    thread->n_outputs = 0;
}

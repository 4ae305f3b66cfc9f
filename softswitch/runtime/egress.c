/* The egress of a device: per-port shaping and fault injection, links to other devices, batches for the kernel.
 *
 * A shaped port is a queue, a line and a delay. The line takes frames one after the other at `rate`; a frame that finds
 * more than the queue's limit still waiting for the line is dropped. A frame may start up to `burst` bytes ahead of the
 * line's schedule (a token bucket). Its departure is computed when it is accepted, so the long-term rate is exact
 * whatever the timer does. An IPv4 packet that may be marked (ECT, RFC 3168) and finds `ecn_packets` in its queue is
 * marked as having met congestion (CE). Frames of at most `ahead` bytes overtake all that waits, and delay it (as
 * acknowledgements do with RFC 3449's "ACKs-first scheduling"). Then a frame takes `delay` plus a uniform jitter, which
 * keeps the order; with probability `reorder` it is held back by `reorder_ns` more, and later frames overtake it.
 * Before all that, a bit of a frame may be flipped, as broken memory or a broken network card does (`corrupt`). */
#include <stdlib.h>

#include "runtime.h"

void ss_drop(struct ss_device *device, struct ss_port *port, enum ss_drop reason) {
    device->drops[reason]++;
    if (port) port->drops[reason]++;
    if (device->thread->tracing == device) SS_TRACE(device->thread, SS_TRACE_DROPPED, reason, 0, 0);
}

static bool chance(struct ss_port *port, double probability) {
    return probability > 0 && (double)(ss_random(&port->random) >> 11) * 0x1p-53 < probability;
}

/* ---- timer heap ---- */

static void heap_swap(struct ss_thread *t, int a, int b) {
    struct ss_port *p = t->heap[a];
    t->heap[a] = t->heap[b];
    t->heap[b] = p;
    t->heap[a]->heap_at = a;
    t->heap[b]->heap_at = b;
}

static void heap_fix(struct ss_thread *t, int at) {
    while (at > 0 && t->heap[at]->heap_due < t->heap[(at - 1) / 2]->heap_due) {
        heap_swap(t, at, (at - 1) / 2);
        at = (at - 1) / 2;
    }
    for (;;) {
        int least = at;
        for (int child = 2 * at + 1; child <= 2 * at + 2; child++)
            if (child < t->heap_n && t->heap[child]->heap_due < t->heap[least]->heap_due) least = child;
        if (least == at) return;
        heap_swap(t, at, least);
        at = least;
    }
}

/* Brings the port's place in the heap up to date with its queues. */
static void heap_update(struct ss_thread *t, struct ss_port *port) {
    uint64_t due = UINT64_MAX;
    if (port->queue.head) due = port->queue.head->due;
    if (port->late.head && port->late.head->due < due) due = port->late.head->due;
    if (port->ahead.head && port->ahead.head->due < due) due = port->ahead.head->due;
    if (port->n_classed) {
        uint64_t taken = ss_classes_due(port);
        if (taken < due) due = taken;
    }
    if (due == UINT64_MAX) {
        if (port->heap_at < 0) return;
        int at = port->heap_at;
        heap_swap(t, at, t->heap_n - 1);
        t->heap_n--;
        port->heap_at = -1;
        if (at < t->heap_n) heap_fix(t, at);
        return;
    }
    port->heap_due = due;
    if (port->heap_at < 0) {
        if (t->heap_n == t->heap_size) {
            int size = t->heap_size ? 2 * t->heap_size : 64;
            struct ss_port **heap = realloc(t->heap, (size_t)size * sizeof *heap);
            if (!heap) abort(); /* these are a few bytes per port: a process without them cannot go on */
            t->heap = heap;
            t->heap_size = size;
        }
        port->heap_at = t->heap_n;
        t->heap[t->heap_n++] = port;
    }
    heap_fix(t, port->heap_at);
}

/* ---- after the line ---- */

static void deliver(struct ss_thread *thread, struct ss_port *port, struct ss_buf *buf) {
    port->tx_packets++;
    port->tx_bytes += buf->len;
    if (__builtin_expect(port->pcap_out >= 0, 0)) ss_pcap(port, &port->pcap_out, buf);
    if (port->kind == SS_PORT_INTERFACE) {
        ss_push(&port->tx, buf);
        if (!port->dirty) {
            port->dirty = true;
            port->next_dirty = thread->dirty;
            thread->dirty = port;
        }
        return;
    }
    struct ss_thread *to = port->peer->thread;
    buf->device = port->peer;
    buf->port = port->peer_port;
    if (to == thread && thread == ss_current) {
        if (thread->local.n < SS_INBOX_LIMIT) {
            ss_push(&thread->local, buf);
            return;
        }
    } else if (atomic_load_explicit(&to->inbox_n, memory_order_relaxed) < SS_INBOX_LIMIT) {
        pthread_mutex_lock(&to->inbox_lock);
        ss_push(&to->inbox, buf);
        atomic_fetch_add_explicit(&to->inbox_n, 1, memory_order_seq_cst);
        pthread_mutex_unlock(&to->inbox_lock);
        ss_wake(to);
        return;
    }
    port->tx_packets--;
    port->tx_bytes -= buf->len;
    ss_drop(port->device, port, SS_DROP_LINK_FULL);
    ss_buf_free(buf);
}

/* Returns the bytes of frames that still wait for the line at time `now`. */
uint64_t ss_port_backlog(struct ss_port *port, uint64_t now) {
    while (port->waiting && port->waiting->depart <= now) {
        port->backlog_bytes -= port->waiting->len;
        port->backlog_packets--;
        port->waiting = port->waiting->next;
    }
    return port->backlog_packets;
}

/* Returns how many nanoseconds a frame of this class that the port accepted now would wait for the line. */
uint64_t ss_port_wait(const struct ss_port *port, unsigned class, uint64_t now) {
    if (ss_classes_used(port)) return ss_classes_wait(port, class < SS_CLASSES ? class : SS_CLASSES - 1, now);
    double wait = 0;
    if (port->shape.rate_bps > 0)
        wait = port->free_at - (double)port->shape.burst_bytes * 8e9 / port->shape.rate_bps - (double)now;
    if (port->last_depart > now && (double)(port->last_depart - now) > wait) wait = (double)(port->last_depart - now);
    return wait > 0 ? (uint64_t)wait : 0;
}

/* Returns whether the frame has TCP data; such a frame must not overtake earlier data of its connection. */
static bool carries_tcp_data(const struct ss_buf *buf) {
    const uint8_t *frame = buf->data, *ip = frame + 14;
    if (buf->len < 14 + 20 || frame[12] != 0x08 || frame[13] != 0x00 || ip[9] != 6) return false;
    uint32_t headers = (ip[0] & 15u) * 4, total = (uint32_t)ip[2] << 8 | ip[3];
    if (buf->len < 14 + headers + 20) return false;
    return total > headers + (ip[headers + 12] >> 4) * 4u;
}

/* Sends a frame that does not wait: the frames that wait keep their departures, and the line is busy for longer. */
static void pass_ahead(struct ss_thread *thread, struct ss_port *port, struct ss_buf *buf) {
    const struct ss_shape *shape = &port->shape;
    uint64_t now = thread->now_ns;
    if (shape->rate_bps > 0) {
        if (port->free_at < (double)now) port->free_at = (double)now;
        port->free_at += (double)buf->len * 8e9 / shape->rate_bps;
    }
    buf->depart = now;
    buf->due = now + shape->delay_ns;
    if (buf->due < port->last_ahead) buf->due = port->last_ahead; /* the delay was shortened in the meantime */
    port->last_ahead = buf->due;
    ss_push(&port->ahead, buf);
    heap_update(thread, port);
}

static void queue_full(struct ss_port *port, struct ss_buf *buf) {
    ss_drop(port->device, port, SS_DROP_QUEUE_FULL);
    ss_buf_free(buf);
}

enum { IP_AT = 14, UDP_SUM_AT = 40, UDP_PAYLOAD_AT = 42 };

/* Returns a frame that this port alone may write to: where others hold the same bytes (replicas), a copy takes its
 * place. NULL: there is no memory, and `buf` stays. */
static struct ss_buf *own(struct ss_buf *buf) {
    if (!ss_buf_shared(buf)) return buf;
    struct ss_buf *copy = ss_buf_copy(buf->data, buf->len);
    if (!copy) return NULL;
    copy->class = buf->class;
    ss_buf_free(buf);
    return copy;
}

/* Marks an IPv4 packet whose sender takes marks (ECT); returns the frame to send. */
static struct ss_buf *mark(struct ss_port *port, struct ss_buf *buf) {
    const uint8_t *frame = buf->data;
    if (buf->len < IP_AT + 20 || frame[12] != 0x08 || frame[13] != 0x00 || frame[IP_AT] >> 4 != 4) return buf;
    uint8_t ecn = frame[IP_AT + 1] & 3;
    struct ss_buf *written = ecn == 0 || ecn == 3 ? NULL : own(buf);
    if (!written) return buf;
    port->marked++;
    uint8_t *ip = written->data + IP_AT;
    ip[1] |= 3;
    /* RFC 1624: the header's first word, and so the sum of all, is larger by as much as these bits are. */
    uint32_t sum = (0xffffu ^ ((uint32_t)ip[10] << 8 | ip[11])) + (3u - ecn);
    sum = ~((sum & 0xffff) + (sum >> 16));
    ip[10] = (uint8_t)(sum >> 8);
    ip[11] = (uint8_t)sum;
    return written;
}

/* Returns the frame to put into a queue in which so many wait: marked, if these are too many. */
struct ss_buf *ss_port_mark(struct ss_port *port, struct ss_buf *buf, uint64_t waiting) {
    return port->shape.ecn_packets && waiting >= port->shape.ecn_packets ? mark(port, buf) : buf;
}

/* Sends a frame, which leaves the line's queue at buf->depart, on its way to the other end: delay, jitter, reordering.
 * The caller updates the heap. */
void ss_port_propagate(struct ss_port *port, struct ss_buf *buf) {
    const struct ss_shape *shape = &port->shape;
    buf->due = buf->depart + shape->delay_ns;
    if (shape->jitter_ns) {
        uint64_t jitter = ss_random(&port->random) % (2 * shape->jitter_ns + 1);
        buf->due = buf->due + jitter > shape->jitter_ns ? buf->due + jitter - shape->jitter_ns : 0;
        if (buf->due < buf->depart) buf->due = buf->depart;
    }
    if (chance(port, shape->reorder)) {
        buf->due += shape->reorder_ns;
        if (buf->due < port->last_late) buf->due = port->last_late; /* frames that are held back keep their order */
        port->last_late = buf->due;
        ss_push(&port->late, buf);
    } else {
        if (buf->due < port->last_due) buf->due = port->last_due;
        port->last_due = buf->due;
        ss_push(&port->queue, buf);
    }
}

static void enqueue(struct ss_thread *thread, struct ss_port *port, struct ss_buf *buf) {
    const struct ss_shape *shape = &port->shape;
    uint64_t now = thread->now_ns;
    if (buf->len <= shape->ahead_bytes && !carries_tcp_data(buf)) {
        pass_ahead(thread, port, buf);
        return;
    }
    if (ss_classes_used(port)) {
        if (!ss_classes_add(port, buf, now)) queue_full(port, buf);
        heap_update(thread, port);
        return;
    }
    ss_port_backlog(port, now);
    if ((shape->queue_bytes && port->backlog_bytes + buf->len > shape->queue_bytes && port->backlog_packets) ||
        (shape->queue_packets && port->backlog_packets >= shape->queue_packets)) {
        queue_full(port, buf);
        return;
    }
    buf = ss_port_mark(port, buf, port->backlog_packets);
    buf->depart = now;
    if (shape->rate_bps > 0) {
        double per_byte = 8e9 / shape->rate_bps;
        double start = port->free_at - (double)shape->burst_bytes * per_byte;
        if (port->free_at < (double)now) port->free_at = (double)now;
        if (start > (double)now) buf->depart = (uint64_t)start;
        port->free_at += (double)buf->len * per_byte;
    }
    if (buf->depart < port->last_depart) buf->depart = port->last_depart; /* the rate was raised in the meantime */
    port->last_depart = buf->depart;
    ss_port_propagate(port, buf);
    if (buf == port->queue.tail && buf->depart > now) {
        if (!port->waiting) port->waiting = buf;
        port->backlog_bytes += buf->len;
        port->backlog_packets++;
    }
    heap_update(thread, port);
}

static bool udp_over_ipv4(const struct ss_buf *buf) {
    const uint8_t *frame = buf->data, *ip = frame + IP_AT;
    return buf->len > UDP_PAYLOAD_AT && frame[12] == 0x08 && frame[13] == 0x00 && ip[0] == 0x45 && ip[9] == 17 &&
           (ip[6] & 0x3f) == 0 && ip[7] == 0; /* no options, and no fragment */
}

/* Flips a random bit of a random byte, if the shape says so and it is this frame's turn; returns the frame to send. */
static struct ss_buf *corrupt(struct ss_port *port, struct ss_buf *buf) {
    const struct ss_shape *shape = &port->shape;
    if (shape->corrupt <= 0 && !shape->corrupt_every) return buf;
    bool udp = udp_over_ipv4(buf);
    uint64_t until = shape->corrupt_until && shape->corrupt_until < buf->len ? shape->corrupt_until : buf->len;
    if ((shape->corrupt_udp && !udp) || shape->corrupt_from >= until) return buf;
    bool turn = shape->corrupt_every && ++port->corrupt_turn % shape->corrupt_every == 0;
    if (!chance(port, shape->corrupt) && !turn) return buf;
    struct ss_buf *written = own(buf);
    if (!written) return buf;
    buf = written;
    uint64_t at = shape->corrupt_from + ss_random(&port->random) % (until - shape->corrupt_from);
    if (shape->corrupt_hidden && udp) buf->data[UDP_SUM_AT] = buf->data[UDP_SUM_AT + 1] = 0;
    buf->data[at] ^= (uint8_t)(1u << (ss_random(&port->random) >> 32 & 7));
    atomic_store_explicit(&buf->checksum, SS_CHECKSUM_UNKNOWN, memory_order_relaxed);
    port->corrupted++;
    return buf;
}

static void port_send(struct ss_thread *thread, struct ss_port *port, struct ss_buf *buf) {
    if (!port->shaped) {
        deliver(thread, port, buf);
        return;
    }
    if (chance(port, port->shape.loss)) {
        ss_drop(port->device, port, SS_DROP_INJECTED_LOSS);
        ss_buf_free(buf);
        return;
    }
    buf = corrupt(port, buf);
    if (chance(port, port->shape.duplicate)) {
        struct ss_buf *copy = ss_buf_copy(buf->data, buf->len);
        if (copy) copy->class = buf->class;
        if (copy) enqueue(thread, port, copy);
    }
    enqueue(thread, port, buf);
}

static void release(struct ss_thread *thread, struct ss_port *port, uint64_t now) {
    ss_port_backlog(port, now);
    ss_classes_serve(port, now);
    for (;;) {
        struct ss_list *list = &port->queue;
        if (port->late.head && (!list->head || port->late.head->due < list->head->due)) list = &port->late;
        if (port->ahead.head && (!list->head || port->ahead.head->due < list->head->due)) list = &port->ahead;
        if (!list->head || list->head->due > now) break;
        deliver(thread, port, ss_pop(list));
    }
    heap_update(thread, port);
}

void ss_fire_timers(struct ss_thread *thread) {
    while (thread->heap_n && thread->heap[0]->heap_due <= thread->now_ns)
        release(thread, thread->heap[0], thread->now_ns);
}

/* Lets the frames that wait for the line leave as the port's new shape says. */
void ss_port_reshaped(struct ss_thread *thread, struct ss_port *port) {
    heap_update(thread, port);
    if (thread != ss_current) ss_timers_changed(thread);
}

/* Frees all frames that wait on the port. */
void ss_port_drain(struct ss_thread *thread, struct ss_port *port) {
    ss_list_free(&port->queue);
    ss_list_free(&port->late);
    ss_list_free(&port->ahead);
    ss_classes_drain(port);
    port->waiting = NULL;
    port->backlog_bytes = port->backlog_packets = 0;
    ss_list_free(&port->tx);
    heap_update(thread, port);
}

void ss_output(struct ss_thread *thread, struct ss_device *device, uint16_t number, struct ss_buf *buf) {
    SS_TRACE(thread, SS_TRACE_SENT, number, buf->len, 0);
    if (thread->collect) {
        buf->port = number;
        ss_push(thread->collect, buf);
        return;
    }
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    if (number == device->cpu_port) {
        ss_post(device, SS_EVENT_PACKET_IN, number, buf->data, buf->len);
        ss_buf_free(buf);
    } else if (port && port->kind != SS_PORT_UNUSED) {
        port_send(thread, port, buf);
    } else {
        if (device->capture)
            ss_post(device, SS_EVENT_CAPTURE, number, buf->data, buf->len);
        else
            ss_drop(device, port, SS_DROP_NO_PORT);
        ss_buf_free(buf);
    }
}

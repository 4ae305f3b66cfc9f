/* Classes of service: the queues of a shaped port, of which a device has several (--priority-queues).
 *
 * A frame waits in the queue of its standard_metadata.priority until the line takes it. The line takes one frame after
 * the other, without a break in the middle of one: always the first of the highest class that may leave, and of a class
 * with a rate of its own no more than that rate. Unlike with a single queue, whose frames' departures are known when
 * they are accepted, a frame's departure is known when its line takes it: later frames of higher classes go first. */
#include "runtime.h"

bool ss_classes_used(const struct ss_port *port) {
    if (port->device->priorities < 2 && !port->shape.dscp_classes) return port->n_classed;
    bool limited = port->shape.rate_bps > 0 || port->n_classed;
    for (int c = 0; c < SS_CLASSES; c++) limited |= port->shape.class_bps[c] > 0;
    return limited;
}

/* Returns the time in ns from which on the line may take a frame. */
static double line_free(const struct ss_port *port) {
    if (port->shape.rate_bps <= 0) return port->free_at;
    return port->free_at - (double)port->shape.burst_bytes * 8e9 / port->shape.rate_bps;
}

/* Returns the class whose first frame the line takes next, and sets *at to when; -1: no frame waits. */
static int next_class(const struct ss_port *port, uint64_t *at) {
    int found = -1;
    double line = line_free(port);
    for (int c = SS_CLASSES - 1; c >= 0 && port->n_classed; c--) {
        const struct ss_buf *head = port->classes[c].head;
        if (!head) continue;
        double start = line > port->class_free_at[c] ? line : port->class_free_at[c];
        uint64_t from = start > (double)head->depart ? (uint64_t)start : head->depart; /* `depart`: when it came */
        if (found >= 0 && from >= *at) continue;
        found = c;
        *at = from;
    }
    return found;
}

/* Returns when the line takes the next frame that waits; UINT64_MAX: none waits. */
uint64_t ss_classes_due(const struct ss_port *port) {
    uint64_t at = UINT64_MAX;
    next_class(port, &at);
    return at;
}

/* Gives the line all frames that it takes until `now`. */
void ss_classes_serve(struct ss_port *port, uint64_t now) {
    const struct ss_shape *shape = &port->shape;
    uint64_t at = 0;
    for (int c; (c = next_class(port, &at)) >= 0 && at <= now;) {
        struct ss_buf *buf = ss_pop(&port->classes[c]);
        double bits = (double)buf->len * 8e9;
        port->n_classed--;
        port->class_bytes[c] -= buf->len;
        port->backlog_packets--;
        port->backlog_bytes -= buf->len;
        if (port->free_at < (double)at) port->free_at = (double)at;
        if (shape->rate_bps > 0) port->free_at += bits / shape->rate_bps;
        /* The class's rate counts from when the frame came and its class had sent the frames before it: while the frame
         * waits for other classes' frames to leave the line, its class loses nothing. */
        if (port->class_free_at[c] < (double)buf->depart) port->class_free_at[c] = (double)buf->depart;
        if (shape->class_bps[c] > 0) port->class_free_at[c] += bits / shape->class_bps[c];
        buf->depart = port->last_depart = at;
        ss_port_propagate(port, buf);
    }
}

/* Returns the class of a frame: its priority; where it has none and the port's shape says so, its DSCP's class
 * selector. */
static unsigned class_of(const struct ss_port *port, const struct ss_buf *buf) {
    const uint8_t *frame = buf->data;
    if (buf->class || !port->shape.dscp_classes) return buf->class < SS_CLASSES ? buf->class : SS_CLASSES - 1;
    bool ipv4 = buf->len >= 34 && frame[12] == 0x08 && frame[13] == 0x00 && frame[14] >> 4 == 4;
    return ipv4 ? frame[15] >> 5 : 0;
}

/* Takes a frame into its class's queue; each queue has the port's limits. Returns false, and frees nothing, when it is
 * full; else the frame is used up. */
bool ss_classes_add(struct ss_port *port, struct ss_buf *buf, uint64_t now) {
    const struct ss_shape *shape = &port->shape;
    unsigned c = class_of(port, buf);
    ss_classes_serve(port, now);
    if ((shape->queue_bytes && port->class_bytes[c] + buf->len > shape->queue_bytes && port->classes[c].n) ||
        (shape->queue_packets && port->classes[c].n >= shape->queue_packets))
        return false;
    buf = ss_port_mark(port, buf, port->classes[c].n);
    buf->depart = now;
    ss_push(&port->classes[c], buf);
    port->n_classed++;
    port->class_bytes[c] += buf->len;
    port->backlog_packets++;
    port->backlog_bytes += buf->len;
    ss_classes_serve(port, now);
    return true;
}

/* Returns how many nanoseconds a frame of a class would wait that came now, if no other one came after it. */
uint64_t ss_classes_wait(const struct ss_port *port, unsigned class, uint64_t now) {
    const struct ss_shape *shape = &port->shape;
    double line = line_free(port), own = port->class_free_at[class];
    if (line < (double)now) line = (double)now;
    for (unsigned c = class; c < SS_CLASSES && shape->rate_bps > 0; c++)
        line += (double)port->class_bytes[c] * 8e9 / shape->rate_bps;
    if (shape->class_bps[class] > 0) own += (double)port->class_bytes[class] * 8e9 / shape->class_bps[class];
    double wait = (own > line ? own : line) - (double)now;
    return (uint64_t)wait;
}

void ss_classes_drain(struct ss_port *port) {
    for (int c = 0; c < SS_CLASSES; c++) {
        ss_list_free(&port->classes[c]);
        port->class_bytes[c] = 0;
    }
    port->n_classed = 0;
}

/* v1model's switch around the program: the way of a frame between parser and ports, as in bmv2's simple_switch.
 *
 *   receive -> parse -> ingress -> [clone] -> resubmit | multicast | drop | unicast
 *                                    each copy: egress -> [clone] -> drop | deparse -> recirculate | output
 *
 * The present frame is processed at once; its clones and its resubmitted or recirculated copies wait in `pending` until
 * it is done. There is no queue between ingress and egress: a port's queue is behind egress (egress.c), and the
 * queueing metadata report that queue. */
#include <stdlib.h>

#include "runtime.h"

#define TIME48 ((UINT64_C(1) << 48) - 1)

/* Makes the scratch packet state big enough for the program. Returns false without memory. */
static bool scratch(struct ss_thread *thread, const struct ss_program *program) {
    if (thread->packet_size >= program->packet_bytes) return true;
    for (int i = 0; i < 2; i++) {
        free(thread->packets[i]);
        thread->packets[i] = aligned_alloc(64, (program->packet_bytes + 63) & ~63u);
        if (!thread->packets[i]) {
            thread->packet_size = 0;
            return false;
        }
    }
    thread->packet_size = program->packet_bytes;
    return true;
}

static void dropped(struct ss_thread *thread, struct ss_device *device, enum ss_drop reason) {
    if (thread->dropped)
        thread->dropped[reason]++;
    else
        ss_drop(device, NULL, reason);
}

static void fresh(struct ss_packet *p, const struct ss_program *program, uint32_t len) {
    memset(p, 0, program->packet_bytes);
    p->target.length = p->target.ingress_length = len;
    p->target.truncate_to = UINT32_MAX;
}

static void reset_metadata(struct ss_packet *p, const struct ss_program *program) {
    memset(&p->standard, 0, program->metadata_end - offsetof(struct ss_packet, standard));
}

static void reset_requests(struct ss_packet *p) {
    p->target.clone_session = p->target.clone_fields = 0;
    p->target.resubmit_fields = p->target.recirculate_fields = 0;
    p->target.exited = 0;
}

/* Returns the packet state of a new pending item, for the caller to fill in. Takes over the buffer. */
static struct ss_packet *later(struct ss_thread *thread, struct ss_device *device, bool egress, uint16_t port,
                               struct ss_buf *buf, uint32_t parsed) {
    if (!buf) {
        dropped(thread, device, SS_DROP_NO_MEMORY);
        return NULL;
    }
    if (thread->passes++ >= SS_PASSES) {
        dropped(thread, device, SS_DROP_PASSES);
        ss_buf_free(buf);
        return NULL;
    }
    size_t extra = device->program->packet_bytes - sizeof(struct ss_packet);
    struct ss_pending *item = aligned_alloc(64, (sizeof *item + extra + 127) & ~(size_t)63);
    if (!item) {
        dropped(thread, device, SS_DROP_NO_MEMORY);
        ss_buf_free(buf);
        return NULL;
    }
    item->next = NULL;
    item->egress = egress;
    item->port = port;
    item->parsed = parsed;
    item->buf = buf;
    *thread->pending_tail = item;
    thread->pending_tail = &item->next;
    return &item->packet;
}

static void run_egress(struct ss_thread *thread, struct ss_device *device, struct ss_packet *p, struct ss_buf *buf,
                       uint32_t parsed, uint16_t port, bool own);

static struct ss_buf *deparse(struct ss_thread *thread, struct ss_device *device, struct ss_packet *p,
                              struct ss_buf *buf, uint32_t parsed, bool own);

/* Sends one frame to all replicas of a group, where egress does nothing, so that all replicas are equal. */
static void replicate_alike(struct ss_thread *thread, struct ss_device *device, const struct ss_group *group,
                            struct ss_packet *p, struct ss_buf *buf, uint32_t parsed) {
    reset_requests(p);
    p->target.truncate_to = UINT32_MAX;
    buf = deparse(thread, device, p, buf, parsed, true);
    if (buf) buf->class = p->standard.priority;
    for (uint32_t i = 0; buf && i < group->n; i++) {
        struct ss_buf *copy = i + 1 < group->n ? ss_buf_share(buf) : buf;
        if (copy)
            ss_output(thread, device, group->replicas[i].port, copy);
        else
            dropped(thread, device, SS_DROP_NO_MEMORY);
    }
}

/* Sends copies of a packet state to all replicas of a group; with `own`, the last copy may use up the buffer. */
static void replicate(struct ss_thread *thread, struct ss_device *device, const struct ss_group *group,
                      struct ss_packet *p, struct ss_buf *buf, uint32_t parsed) {
    struct ss_packet *copy = thread->packets[1];
    if (device->program->copies_alike && group->n > 1 && !thread->tracing &&
        p->standard.priority < device->priorities) {
        replicate_alike(thread, device, group, p, buf, parsed);
        return;
    }
    SS_TRACE(thread, SS_TRACE_MULTICAST, p->standard.mcast_grp, group->n, 0);
    for (uint32_t i = 0; i < group->n; i++) {
        memcpy(copy, p, device->program->packet_bytes);
        copy->standard.egress_rid = group->replicas[i].rid;
        reset_requests(copy);
        copy->target.truncate_to = UINT32_MAX; /* a copy is complete again, as in bmv2 */
        run_egress(thread, device, copy, buf, parsed, group->replicas[i].port, i + 1 == group->n);
    }
    if (group->n == 0) ss_buf_free(buf);
}

/* Queues the copies of a clone session. `c` is their state before egress, `data` the bytes that were not parsed. */
static void queue_clones(struct ss_thread *thread, struct ss_device *device, const struct ss_group *session,
                         const struct ss_packet *c, const struct ss_buf *buf, uint32_t parsed, uint32_t number) {
    SS_TRACE(thread, SS_TRACE_CLONE, number, session->n, 0);
    for (uint32_t i = 0; i < session->n; i++) {
        struct ss_packet *copy =
            later(thread, device, true, session->replicas[i].port, ss_buf_copy(buf->data, buf->len), parsed);
        if (!copy) return;
        memcpy(copy, c, device->program->packet_bytes);
        copy->standard.egress_rid = session->replicas[i].rid;
        if (session->truncate && session->truncate < copy->target.truncate_to)
            copy->target.truncate_to = session->truncate;
    }
}

static void clone_ingress(struct ss_thread *thread, struct ss_device *device, const struct ss_packet *p,
                          const struct ss_buf *buf, uint32_t length) {
    const struct ss_program *program = device->program;
    const struct ss_group *session = ss_group_get(&device->sessions, p->target.clone_session & ~SS_CLONE_REQUESTED);
    if (!session) {
        dropped(thread, device, SS_DROP_NO_SESSION);
        return;
    }
    struct ss_packet *c = thread->packets[1];
    fresh(c, program, length);
    c->target.ingress_length = p->target.ingress_length;
    c->standard.ingress_port = buf->port; /* the parser may depend on it */
    uint32_t parsed = program->parse(&device->state, c, buf->data, buf->len);
    reset_metadata(c, program);
    reset_requests(c);
    program->copy_fields(p->target.clone_fields, c, p);
    c->standard.instance_type = SS_INGRESS_CLONE;
    queue_clones(thread, device, session, c, buf, parsed, p->target.clone_session & ~SS_CLONE_REQUESTED);
}

static void run_ingress(struct ss_thread *thread, struct ss_device *device, struct ss_packet *p, struct ss_buf *buf) {
    const struct ss_program *program = device->program;
    struct ss_state *state = &device->state;
    uint32_t length = p->target.length;
    uint32_t parsed = program->parse(state, p, buf->data, buf->len);
    program->ingress(state, p);
    ss_release(p);
    p->target.exited = 0;
    if (p->target.clone_session) {
        clone_ingress(thread, device, p, buf, length);
        p->target.clone_session = p->target.clone_fields = 0;
    }
    if (p->target.resubmit_fields) {
        SS_TRACE(thread, SS_TRACE_RESUBMIT, 0, 0, 0);
        struct ss_packet *again = later(thread, device, false, buf->port, buf, 0);
        if (!again) return;
        fresh(again, program, length);
        again->target.ingress_length = p->target.ingress_length;
        program->copy_fields(p->target.resubmit_fields, again, p);
        again->standard.instance_type = SS_RESUBMITTED;
        again->standard.packet_length = length;
        return;
    }
    if (p->standard.mcast_grp) {
        const struct ss_group *group = ss_group_get(&device->groups, p->standard.mcast_grp);
        p->standard.instance_type = SS_REPLICATED;
        if (group) {
            replicate(thread, device, group, p, buf, parsed);
            return;
        }
        dropped(thread, device, SS_DROP_NO_GROUP);
        ss_buf_free(buf);
        return;
    }
    if (p->standard.egress_spec == SS_DROP_PORT) {
        dropped(thread, device, SS_DROP_INGRESS);
        ss_buf_free(buf);
        return;
    }
    p->standard.instance_type = SS_NORMAL;
    run_egress(thread, device, p, buf, parsed, p->standard.egress_spec, true);
}

static void clone_egress(struct ss_thread *thread, struct ss_device *device, const struct ss_packet *p,
                         const struct ss_buf *buf, uint32_t parsed) {
    const struct ss_program *program = device->program;
    const struct ss_group *session = ss_group_get(&device->sessions, p->target.clone_session & ~SS_CLONE_REQUESTED);
    if (!session) {
        dropped(thread, device, SS_DROP_NO_SESSION);
        return;
    }
    struct ss_packet *c = malloc(program->packet_bytes + 64);
    if (!c) {
        dropped(thread, device, SS_DROP_NO_MEMORY);
        return;
    }
    struct ss_packet *aligned = (struct ss_packet *)(((uintptr_t)c + 63) & ~(uintptr_t)63);
    memcpy(aligned, p, program->packet_bytes);
    reset_metadata(aligned, program);
    reset_requests(aligned);
    aligned->target.truncate_to = UINT32_MAX;
    program->copy_fields(p->target.clone_fields, aligned, p);
    aligned->standard.instance_type = SS_EGRESS_CLONE;
    queue_clones(thread, device, session, aligned, buf, parsed, p->target.clone_session & ~SS_CLONE_REQUESTED);
    free(c);
}

/* Puts the headers before the bytes that were not parsed, in place if the buffer is ours and has room. */
static struct ss_buf *deparse(struct ss_thread *thread, struct ss_device *device, struct ss_packet *p,
                              struct ss_buf *buf, uint32_t parsed, bool own) {
    const struct ss_program *program = device->program;
    uint8_t *payload = buf->data + parsed;
    uint32_t payload_len = buf->len - parsed;
    program->checksums(&device->state, p, payload, payload_len);
    uint32_t headers = program->headers_bytes(p);
    uint32_t keep = payload_len;
    if (p->target.truncate_to < headers + payload_len)
        keep = p->target.truncate_to > headers ? p->target.truncate_to - headers : 0;
    if (headers + keep > SS_MAX_FRAME) {
        dropped(thread, device, SS_DROP_TOO_LONG);
        if (own) ss_buf_free(buf);
        return NULL;
    }
    if (own && !ss_buf_shared(buf) && (size_t)(payload - buf->store) >= headers) {
        buf->data = payload - headers;
        atomic_store_explicit(&buf->checksum, SS_CHECKSUM_UNKNOWN, memory_order_relaxed);
    } else {
        struct ss_buf *out = ss_buf_new(headers + keep);
        if (out) {
            memcpy(out->data + headers, payload, keep);
            out->port = buf->port;
        } else {
            dropped(thread, device, SS_DROP_NO_MEMORY);
        }
        if (own) ss_buf_free(buf);
        if (!out) return NULL;
        buf = out;
    }
    program->emit(p, buf->data);
    buf->len = headers + keep;
    if (buf->len > p->target.truncate_to) buf->len = p->target.truncate_to;
    SS_TRACE(thread, SS_TRACE_DEPARSED, headers, keep, buf->len);
    return buf;
}

static void run_egress(struct ss_thread *thread, struct ss_device *device, struct ss_packet *p, struct ss_buf *buf,
                       uint32_t parsed, uint16_t port, bool own) {
    const struct ss_program *program = device->program;
    SS_TRACE(thread, SS_TRACE_EGRESS, port, p->standard.egress_rid, p->standard.instance_type);
    uint8_t class = p->standard.qid = p->standard.priority;
    if (class >= device->priorities) {
        dropped(thread, device, SS_DROP_PRIORITY);
        if (own) ss_buf_free(buf);
        return;
    }
    uint64_t now = thread->now_us;
    uint64_t depth = 0, wait = 0;
    /* what runs beside others has no egress that could see the queue */
    if (!thread->counts && port < SS_MAX_PORTS && device->ports[port] && device->ports[port]->shaped) {
        depth = ss_port_backlog(device->ports[port], thread->now_ns);
        wait = ss_port_wait(device->ports[port], class, thread->now_ns);
    }
    p->standard.enq_timestamp = (uint32_t)now;
    p->standard.enq_timestamp_48 = now & TIME48;
    p->standard.enq_qdepth = p->standard.deq_qdepth = (uint32_t)depth & 0x7ffff;
    p->standard.deq_timedelta = (uint32_t)(wait / 1000); /* egress runs before the queue: what it will be */
    p->standard.egress_global_timestamp = now & TIME48;
    p->standard.egress_port = port;
    p->standard.egress_spec = 0;
    p->standard.packet_length = p->target.length;
    program->egress(&device->state, p);
    if (p->target.clone_session) {
        clone_egress(thread, device, p, buf, parsed);
        p->target.clone_session = p->target.clone_fields = 0;
    }
    if (p->standard.egress_spec == SS_DROP_PORT) {
        dropped(thread, device, SS_DROP_EGRESS);
        if (own) ss_buf_free(buf);
        return;
    }
    /* truncation is for frames that leave the switch, as in bmv2 */
    if (p->target.recirculate_fields) p->target.truncate_to = UINT32_MAX;
    buf = deparse(thread, device, p, buf, parsed, own);
    if (!buf) return;
    if (p->target.recirculate_fields) {
        uint32_t length = buf->len;
        SS_TRACE(thread, SS_TRACE_RECIRCULATE, length, 0, 0);
        struct ss_packet *again = later(thread, device, false, buf->port, buf, 0);
        if (!again) return;
        fresh(again, program, length);
        program->copy_fields(p->target.recirculate_fields, again, p);
        again->standard.instance_type = SS_RECIRCULATED;
        again->standard.packet_length = length;
        return;
    }
    buf->class = class;
    ss_output(thread, device, port, buf);
}

void ss_switch_receive(struct ss_thread *thread, struct ss_device *device, uint16_t port, struct ss_buf *buf) {
    const struct ss_program *program = device->program;
    struct ss_port *in = device->ports[port];
    if (thread->counts) {
        thread->rx_packets++;
        thread->rx_bytes += buf->len;
    } else if (in) {
        in->rx_packets++;
        in->rx_bytes += buf->len;
        if (__builtin_expect(in->pcap_in >= 0, 0)) ss_pcap(in, &in->pcap_in, buf);
    }
    if (!device->active || !scratch(thread, program)) {
        if (thread->dropped)
            thread->dropped[SS_DROP_NO_MEMORY]++;
        else
            ss_drop(device, in, device->active ? SS_DROP_NO_MEMORY : SS_DROP_NO_PROGRAM);
        ss_buf_free(buf);
        return;
    }
    thread->now_us = (thread->now_ns - device->fabric->start_ns) / 1000;
    if (!thread->counts) device->state.now_us = thread->now_us;
    buf->port = port;
    struct ss_packet *p = thread->packets[0];
    fresh(p, program, buf->len);
    p->standard.ingress_port = port;
    p->standard.packet_length = buf->len;
    p->standard.ingress_global_timestamp = thread->now_us & TIME48;
    p->target.shared = program->shareable && device->fabric->n_threads > 1;
    p->target.counts = thread->counts;
    thread->passes = 0;
    if (__builtin_expect(device->trace.left != 0, 0)) {
        ss_trace_begin(thread, device, port, buf->len);
        if (thread->tracing) device->program = device->trace.program;
    }
    run_ingress(thread, device, p, buf);
    while (thread->pending) {
        struct ss_pending *item = thread->pending;
        thread->pending = item->next;
        if (!thread->pending) thread->pending_tail = &thread->pending;
        if (!item->egress) SS_TRACE(thread, SS_TRACE_AGAIN, item->packet.standard.instance_type, 0, 0);
        if (item->egress)
            run_egress(thread, device, &item->packet, item->buf, item->parsed, item->port, true);
        else
            run_ingress(thread, device, &item->packet, item->buf);
        free(item);
    }
    if (__builtin_expect(thread->tracing != NULL, 0)) {
        device->program = program;
        ss_trace_end(thread);
    }
}

/* Answers: checked, decoded into the array, and what they say about loss and the window. Included by worker.c only. */
#ifndef INART_WORKER_RECEIVING_H
#define INART_WORKER_RECEIVING_H

#include "worker_loss.h"

static void evident(struct tree *t, const struct chunk *c, uint64_t now)
{
    uint64_t sequence = sequence_of(t, c);
    struct evidence *e = &t->evidence[c->kind];
    if (!e->any || sequence > e->sequence)
        *e = (struct evidence){sequence, now - c->sent_at, true};
}

static void measure(struct tree *t, const struct chunk *c, uint64_t now)
{
    if (c->resends) {
        t->resend_share = t->resend_share + RESEND_SHARE_STEP < 1 ? t->resend_share + RESEND_SHARE_STEP : 1;
        /* which copy was answered? Only: much too soon for the resend means that it was needless */
        if (t->rtt_lowest > 0 && (double)(now - c->sent_at) < t->rtt_lowest / 2 && t->reorder < 16)
            t->reorder *= 2;
        return;
    }
    if (c->awaited || c->state == UNSENT)
        return;
    double rtt = (double)(now - c->sent_at);
    if (c->repeated) { /* which copy was answered? */
        if (t->repeat > sequence_of(t, c) && now > c->sent_at && rtt >= t->rtt_lowest)
            evident(t, c, now);
        return;
    }
    if (t->rtt_lowest == 0 || rtt < t->rtt_lowest)
        t->rtt_lowest = rtt;
    if (now - t->recent_since > RECENT) {
        t->before_recent = t->recent;
        t->recent = rtt;
        t->recent_since = now;
    } else if (rtt < t->recent)
        t->recent = rtt;
    t->round_trip = t->before_recent > 0 && t->before_recent < t->recent ? t->before_recent : t->recent;
    /* In a stall even the quickest are slow: beyond any queue it is the stall that they measure. */
    double most = 4 * t->rtt_lowest > ROUND_TRIP_MOST ? 4 * t->rtt_lowest : ROUND_TRIP_MOST;
    if (t->round_trip > most)
        t->round_trip = most;
    evident(t, c, now);
}

/* The agreed exponents (and the check values). False: the engine has failed. */
static bool take_exponents(struct io_thread *x, struct tree *t, struct part *p, uint32_t chunk, const uint32_t *wire)
{
    uint32_t n = x->worker->config.values;
    bool gather = p->operation->layout.kind == INART_GATHER;
    if (gather) /* has none: all are there, and data may go */
        memset(p->exponents, 0, p->order.data * sizeof *p->exponents);
    for (uint32_t j = 0; j < n; j++) {
        uint64_t position = (uint64_t)chunk * n + j;
        int32_t value = (int32_t)__builtin_bswap32(wire[j]);
        if (position == 0 || position == 2) {
            int32_t opposite = (int32_t)__builtin_bswap32(wire[j + 1]);
            if (value != -opposite) {
                if (position == 0)
                    fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in size: the smallest has %d elements, the largest %d, "
                         "this worker's %llu", (long long)p->operation->id, -opposite, value, (unsigned long long)p->operation->elements);
                else
                    fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in dtype or operation (sum, mean), or their "
                         "agents are of different versions",
                         (long long)p->operation->id);
                return false;
            }
        } else if (position >= CHECK_VALUES && position - CHECK_VALUES < p->order.data && !gather) {
            if (!inart_exponent_valid(value)) {
                fail(x, STATUS_PROTOCOL, "tree %u (root %s): chunk %llu came back with an impossible exponent (%d)", t->config.tree,
                     t->config.root, (unsigned long long)(p->base + chunk), value);
                return false;
            }
            p->exponents[position - CHECK_VALUES] = (int16_t)value;
        }
    }
    return true;
}

static void take_values(struct io_thread *x, struct part *p, uint32_t index, const uint32_t *wire)
{
    struct operation *o = p->operation;
    if (o->layout.kind == INART_REDUCE_SCATTER && !own(p, index))
        return;
    size_t count;
    uint8_t *data = o->out + data_at(x, p, index, &count);
    if (o->layout.kind == INART_GATHER) {
        memcpy(data, wire, count);
        return;
    }
    bool stream = o->dtype == INART_FLOAT32 && o->elements * sizeof(float) >= INART_STREAM_LEAST;
    float *values = o->dtype == INART_FLOAT32 && !stream ? (float *)data : x->scratch;
    inart_dequantise(wire, count, p->exponents[index], x->worker->fraction_bits, o->divisor, values);
    if (stream)
        inart_stream(data, values, count * sizeof(float));
    else if (o->dtype != INART_FLOAT32)
        inart_store(values, count, o->dtype, data);
}

static void part_finish(struct io_thread *x, struct tree *t, struct part *p, uint64_t now)
{
    struct part **link = &t->parts, *before = NULL;
    while (*link != p) {
        before = *link;
        link = &(*link)->next;
    }
    *link = p->next;
    if (t->last == p)
        t->last = before;
    for (int kind = 0; kind < KINDS; kind++)
        if (t->cursor[kind] == p)
            t->cursor[kind] = p->next;
    if (!t->parts) {
        t->stats.busy_ns += now - t->active_since;
        t->active_since = 0;
    }
    struct operation *o = p->operation;
    part_free(p);
    inart_stream_end();
    atomic_store(&o->last_answer, now);
    operation_part_ended(x->worker, o, true);
}

/* Nothing more is to come of the chunk. */
static void answered(struct io_thread *x, struct tree *t, struct part *p, struct chunk *c, uint64_t now)
{
    if (c->state != UNSENT) {
        list_remove(t, c);
        t->unanswered--;
    }
    c->state = ANSWERED;
    t->stats.answers++;
    t->progress_at = now;
    if (++p->answered == chunks_of(p))
        part_finish(x, t, p, now);
}

/* The window moves on from what has been answered. */
static void advance(struct tree *t, uint64_t sequence, uint64_t now)
{
    if (sequence != t->base)
        return;
    while (t->base < t->end && chunk_of(t, t->base)->state == ANSWERED) {
        *chunk_of(t, t->base) = (struct chunk){.state = UNSENT, .list = LIST_NONE};
        t->base++;
    }
    t->base_since = now;
}

/* The root has said that all chunks before `complete` are. What this worker has added to a sum of another, or sent to the others,
 * is done with; what it has not got of a gather is on its way, or lost. */
static void hear(struct io_thread *x, struct tree *t, uint64_t complete, uint64_t now)
{
    if (complete > t->base + t->config.slots)
        complete = t->base + t->config.slots;
    for (uint64_t sequence = t->complete > t->base ? t->complete : t->base; sequence < complete; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        if (c->state != SENT || !c->elsewhere)
            continue;
        answered(x, t, part_of(t, sequence), c, now);
        advance(t, sequence, now);
    }
    if (complete > t->complete)
        t->complete = complete;
    struct chunk *c = t->first[DATA].head == NONE ? NULL : &t->ring[t->first[DATA].head];
    if (c && c->awaited && !c->due && sequence_of(t, c) < t->complete)
        c->due = now + reorder_window(t);
}

static void receive(struct io_thread *x, uint8_t *packet, size_t length, uint64_t now)
{
    struct inart_header h;
    x->stats.packets_received++;
    x->stats.bytes_received += INART_OFFSET_HEADER + length;
    if (inart_parse(packet, length, x->engine.io->packet_bytes, &h)) {
        x->stats.malformed++;
        return;
    }
    int32_t number = h.flags & INART_FLAG_RESULT && h.job == x->worker->config.job ? label_map_get(&x->labels, h.label) : -1;
    if (number < 0) {
        x->stats.unknown++;
        return;
    }
    if (h.epoch != x->worker->config.epoch) {
        x->stats.other_epoch++;
        return;
    }
    struct tree *t = &x->trees[number];
    if (h.sequence < t->base) {
        t->stats.duplicates++;
        return;
    }
    struct chunk *c = chunk_of(t, h.sequence);
    if (h.sequence >= t->base + t->config.slots || (uint32_t)h.bitmap != x->worker->config.workers
        || (c->state != UNSENT && !(h.flags & INART_FLAG_MAXIMUM) != (c->kind == DATA))) {
        t->stats.refused++;
        return;
    }
    if (c->state == ANSWERED) {
        t->stats.duplicates++;
        return;
    }
    struct part *p = part_of(t, h.sequence);
    uint32_t index = 0;
    int kind = p ? numbering_chunk(&p->order, (uint32_t)(h.sequence - p->base), &index) : EXPONENT;
    /* Not sent: another worker may be ahead with its chunks of a gather. No part: after a failure. */
    if (!p || (c->state == UNSENT && (kind == EXPONENT || !awaited(t, p, index)))) {
        t->stats.refused++;
        return;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    if (kind == DATA)
        take_values(x, p, index, wire);
    else if (!take_exponents(x, t, p, index, wire))
        return;
    measure(t, c, now);
    recovery_go_on(t, c, now);
    t->stats.last_answer_ns = now;
    answered(x, t, p, c, now);
    advance(t, h.sequence, now);
    hear(x, t, h.bitmap >> 32, now);
}

#endif

/* Answers: checked, decoded into the array, and what they say about loss and the window. Included by worker.c only. */
#ifndef INART_WORKER_RECEIVING_H
#define INART_WORKER_RECEIVING_H

#include "worker_loss.h"

/* Packets overtake each other while ways change or one link is broken, and later do not any more. */
static void reorder_ages(struct tree *t, uint64_t now)
{
    if (t->reorder > 1 && now > t->reorder_since + REORDER_KEPT) {
        t->reorder /= 2;
        t->reorder_since = now;
    }
}

static void measure(struct tree *t, const struct chunk *c, uint64_t now)
{
    reorder_ages(t, now);
    if (c->resends) { /* which copy was answered? Only: much too soon for a question means that it was needless */
        if (t->timed_lost && t->waits && t->rtt_lowest > 0 && (double)(now - c->sent_at) < t->rtt_lowest / 2) {
            t->reorder = t->reorder < REORDER_MOST ? 2 * t->reorder : REORDER_MOST;
            t->reorder_since = now;
        }
        return;
    }
    if (c->awaited || c->state == UNSENT || now < c->sent_at)
        return;
    double rtt = (double)(now - c->sent_at);
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
}

static void fail_mismatch(struct io_thread *x, const struct part *p)
{
    const struct operation *o = p->operation;
    if (p->smallest < p->largest)
        fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in size: the smallest has %d elements, the largest %d, "
             "this worker's %llu", (long long)o->id, p->smallest, p->largest, (unsigned long long)o->elements);
    else
        fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in %sdtype, bits or operation (sum, mean), or their agents are of "
             "different versions", (long long)o->id, p->smallest == p->largest ? "" : "size, ");
}

enum taken { TAKEN, NOT_RIGHT, FAILED };

/* One word of the exponents that came back, at `place` of the part's. */
static enum taken take_exponent(struct io_thread *x, struct tree *t, struct part *p, uint64_t place, int32_t exponent)
{
    uint64_t index;
    if (place < CHECK_VALUES) {
        if (exponent == (int32_t)operation_mark(p->operation, (uint32_t)place - 2))
            return TAKEN;
        fail_mismatch(x, p);
        return FAILED;
    }
    bool one = numbering_word(place, &index);
    if (index >= p->order.data || !has_exponents(p->operation))
        return TAKEN;
    int8_t *mixed = &p->mixed[index / EXPONENT_GROUP];
    int16_t *agreed = &p->exponents[index];
    if (one ? *agreed < NOT_AGREED && exponent < own_of(p, (uint32_t)index) : exponent > 1 || (*mixed == OWN_MIXED && !exponent))
        return NOT_RIGHT; /* not a maximum in which this worker is */
    if (one && !inart_exponent_valid(exponent)) {
        fail(x, STATUS_PROTOCOL, "tree %u (root %s): an impossible exponent came back (%d)", t->config.tree, t->config.root, exponent);
        return FAILED;
    }
    if (one)
        *agreed = (int16_t)exponent;
    else
        *mixed = (int8_t)exponent;
    return TAKEN;
}

/* The agreed exponents, and what all workers must have alike. */
static enum taken take_exponents(struct io_thread *x, struct tree *t, struct part *p, uint32_t chunk, uint32_t number, uint32_t complete,
                                 const uint32_t *wire)
{
    const struct check *check = x->worker->check;
    uint32_t n = x->worker->data;
    if (check_written(check, wire) != check_seal(check, complete, number) || !check_maximum_right(check, wire, number))
        return NOT_RIGHT;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t place = (uint64_t)chunk * n + j;
        uint32_t word = __builtin_bswap32(wire[j]);
        if (place < 2 && word >> 31)
            *(place ? &p->smallest : &p->largest) = place ? INT32_MAX - (int32_t)(word & INT32_MAX) : (int32_t)(word & INT32_MAX);
        else if (place >= 2 && word >> 31)
            return NOT_RIGHT;
        else if (place >= 2) {
            enum taken taken = take_exponent(x, t, p, place, (int32_t)(word >> CHECK_CODE_BITS));
            if (taken != TAKEN)
                return taken;
        }
    }
    if (!has_exponents(p->operation)) { /* all are there, and data may go */
        memset(p->exponents, 0, p->order.data * sizeof *p->exponents);
        memset(p->mixed, 0, (p->order.data + EXPONENT_GROUP - 1) / EXPONENT_GROUP * sizeof *p->mixed);
    }
    return TAKEN;
}

/* Is a data chunk's result what the workers have sent? sum: check_sum of its words. */
static bool values_right(struct io_thread *x, struct tree *t, const struct part *p, const struct inart_header *h, uint32_t index,
                         const uint32_t *wire, uint64_t sum)
{
    const struct check *check = x->worker->check;
    uint8_t kind = data_kind(t, p, index);
    uint64_t who = kind & INART_FLAG_SINGLE ? check->worker[inart_owner(&p->operation->layout, h->sequence)] : check->everyone;
    uint32_t number = check_number(check, &t->received_recent[DATA], t->config.tree, kind, h->sequence);
    return check_result_right(check, wire, sum, who, number, (uint32_t)(h->bitmap >> 32));
}

/* What all workers have contributed to a chunk of a gathered operation: merged, or side by side, into the array. */
static void take_gathered(struct io_thread *x, const struct part *p, uint32_t index, const uint32_t *wire)
{
    struct operation *o = p->operation;
    const struct inart_layout *l = &o->places;
    size_t count, stride = INART_VALUE_BYTES * (size_t)o->gathered.words;
    uint64_t at = data_at(x, p, index, &count), bytes = count * inart_dtype_bytes(o->dtype);
    if (l->kind == INART_GATHER) {
        for (uint32_t w = 0; w < o->gathered.columns; w++)
            memcpy(o->out + w * l->stride + at, (const uint8_t *)wire + w * stride, bytes);
        return;
    }
    uint8_t *merged = (uint8_t *)x->scratch;
    inart_gathered_merge(&o->gathered, wire, bytes, o->dtype, merged);
    uint64_t from = 0, until = bytes, own = l->index * l->stride;
    if (l->kind == INART_REDUCE_SCATTER) {
        from = at < own ? own - at : 0;
        until = own + l->stride > at ? own + l->stride - at : 0;
        until = until < bytes ? until : bytes;
    }
    if (from < until)
        memcpy(o->out + at + from, merged + from, until - from);
}

/* The result of a data chunk: into the array, where it is right. */
static enum taken take_values(struct io_thread *x, struct tree *t, struct part *p, const struct inart_header *h, uint32_t index, const uint32_t *wire)
{
    struct operation *o = p->operation;
    const struct check *check = x->worker->check;
    bool raw = o->layout.kind == INART_GATHER, others = o->layout.kind == INART_REDUCE_SCATTER && !own(p, index);
    size_t count;
    if (o->gathered.columns) {
        if (!values_right(x, t, p, h, index, wire, check_sum(check, wire)))
            return NOT_RIGHT;
        take_gathered(x, p, index, wire);
        return TAKEN;
    }
    uint8_t *data = o->out + data_at(x, p, index, &count);
    bool fields = o->fields.count > 1;
    uint64_t sum = raw || others || fields ? check_sum(check, wire)
                                           : checked_dequantise(check, wire, count, exponent_of(p, index), o->divisor, x->scratch);
    if (!values_right(x, t, p, h, index, wire, sum))
        return NOT_RIGHT;
    if (others)
        return TAKEN;
    int32_t exponent = fields ? exponent_of(p, index) : 0;
    bool pairs = fields && inart_pairs_fit(&o->fields, o->dtype, count, x->worker->data, exponent);
    if (pairs) {
        bool large = o->elements * sizeof(uint16_t) >= INART_STREAM_LEAST;
        inart_pairs_dequantise(&o->fields, check, wire, exponent, o->divisor, large ? (uint16_t *)(void *)x->scratch : (uint16_t *)(void *)data);
        if (large)
            inart_stream(data, x->scratch, count * sizeof(uint16_t));
    } else if (fields)
        inart_fields_dequantise(&o->fields, wire, count, x->worker->data, exponent, o->divisor, x->scratch);
    if (pairs)
        return TAKEN;
    if (raw)
        memcpy(data, wire, count);
    else if (o->dtype == INART_FLOAT32 && o->elements * sizeof(float) >= INART_STREAM_LEAST)
        inart_stream(data, x->scratch, count * sizeof(float));
    else
        inart_store(x->scratch, count, o->dtype, data);
    return TAKEN;
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
    x->lingers_until = now + LINGERS;
    inart_stream_end();
    atomic_store(&o->last_answer, now);
    operation_part_ended(x->worker, o, true);
}

/* Nothing more is to come of the chunk. */
static void answered(struct io_thread *x, struct tree *t, struct part *p, struct chunk *c, uint64_t now)
{
    if (c->state != UNSENT)
        t->unanswered--;
    c->state = ANSWERED;
    c->again = false;
    if (t->window < t->config.slots && (t->window < t->window_quick || ++t->answers_since >= t->window)) {
        t->window++;
        t->answers_since = 0;
    }
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
        *chunk_of(t, t->base) = (struct chunk){.state = UNSENT};
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
}

/* The root asks for chunks from h->sequence on (h->flags: INART_FLAG_ASK), in the attempt of its epoch. The bitmap's lower half is
 * how many; of one the values are the set of workers who are asked, of more the set of those that it does not lack. With RESEND it
 * asks for contributions past all switches, in the attempt that they have. */
static void take_question(struct io_thread *x, struct tree *t, const struct inart_header *h, const uint8_t *packet, uint64_t now)
{
    const uint32_t *set = (const uint32_t *)(const void *)(packet + INART_AT(INART_OFFSET_VALUES));
    uint64_t count = (uint32_t)h->bitmap, bits = 32ull * (x->worker->config.values - 1); /* the last word is the check word */
    uint32_t index = x->worker->config.index;
    if (!check_question_right(x->worker->check, set, h, t->config.tree, inart_attempt(h->epoch, x->worker->config.epoch))) {
        t->stats.check_failures++; /* the root has not asked so */
        return;
    }
    bool alone = h->flags & INART_FLAG_RESEND, found = false;
    if (count == 1 && index < bits && !(__builtin_bswap32(set[index / 32]) >> index % 32 & 1))
        count = 0;
    for (uint64_t i = 0; i < count && (count == 1 || i < bits); i++) {
        uint64_t sequence = h->sequence + i;
        if (sequence < t->base || sequence >= t->base + t->config.slots)
            continue;
        struct chunk *c = chunk_of(t, sequence);
        if (c->state == ANSWERED || (count > 1 && __builtin_bswap32(set[i / 32]) >> i % 32 & 1))
            continue;
        if (!alone)
            c->attempt = (uint8_t)inart_attempt(h->epoch, x->worker->config.epoch);
        if (c->state != SENT || c->awaited)
            continue;
        c->alone = alone;
        mark_again(t, sequence);
        found = true;
    }
    if (count > 1) {
        t->asked_from = h->sequence;
        t->asked_end = h->sequence + count;
        t->asked_attempt = (uint8_t)inart_attempt(h->epoch, x->worker->config.epoch);
        if (found) {
            window_cut(t, now);
            t->window = first_window(t);
        }
    }
    if (t->timed == t->base + 1 && !t->timed_lost) /* the root knows */
        t->waits = 0;
    hear(x, t, h->bitmap >> 32, now);
}

/* Something on the way has changed the result: it is as if it were lost, and asked for again. */
static void refuse_result(struct tree *t, struct chunk *c, uint64_t sequence)
{
    t->stats.check_failures++;
    if (c->state != SENT || c->resends || sequence < t->base)
        return; /* the oldest has a timer */
    c->alone = true;
    mark_again(t, sequence);
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
    if (!(h.flags & INART_FLAG_ASK ? inart_same_epoch(h.epoch, x->worker->config.epoch) : h.epoch == x->worker->config.epoch)) {
        x->stats.other_epoch++;
        return;
    }
    struct tree *t = &x->trees[number];
    if (h.flags & INART_FLAG_ASK) {
        take_question(x, t, &h, packet, now);
        return;
    }
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
    enum taken taken = TAKEN;
    if (kind == EXPONENT) {
        uint32_t number = check_number(x->worker->check, &t->received_recent[EXPONENT], t->config.tree, INART_FLAG_MAXIMUM, h.sequence);
        taken = take_exponents(x, t, p, index, number, (uint32_t)(h.bitmap >> 32), wire);
    } else
        taken = take_values(x, t, p, &h, index, wire);
    if (taken == NOT_RIGHT)
        refuse_result(t, c, h.sequence);
    if (taken != TAKEN)
        return;
    measure(t, c, now);
    t->stats.last_answer_ns = now;
    answered(x, t, p, c, now);
    advance(t, h.sequence, now);
    hear(x, t, h.bitmap >> 32, now);
}

#endif

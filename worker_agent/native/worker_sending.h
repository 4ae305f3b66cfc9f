/* Chunks become packets: which is next, what it holds, how it is labelled. Included by worker.c only. */
#ifndef INART_WORKER_SENDING_H
#define INART_WORKER_SENDING_H

#include "worker_operations.h"

static uint64_t chunks_of(const struct part *p) { return (uint64_t)p->order.exponents + p->order.data; }

static struct part *part_of(struct tree *t, uint64_t sequence)
{
    for (struct part *p = t->parts; p; p = p->next)
        if (sequence - p->base < chunks_of(p))
            return p;
    return NULL;
}

/* Elements of data chunk `index`: at most N, fewer in the last. */
static size_t chunk_elements(const struct part *p, uint32_t index, size_t n)
{
    uint64_t left = p->count - (uint64_t)index * n;
    return left < n ? (size_t)left : n;
}

/* Values in a chunk. */
static size_t chunk_values(const struct io_thread *x, const struct operation *o)
{
    if (o->gathered.columns)
        return INART_VALUE_BYTES * (size_t)o->gathered.words / inart_dtype_bytes(o->dtype);
    return o->dtype == INART_BYTES ? INART_VALUE_BYTES * (size_t)x->worker->data : o->fields.count * (size_t)x->worker->data;
}

static uint64_t sequence_in(const struct part *p, int kind, uint32_t index) { return p->base + numbering_place(&p->order, kind, index); }

static uint64_t sequence_of_data(const struct part *p, uint32_t index) { return sequence_in(p, DATA, index); }

/* Where data chunk `index` is in the array, in bytes, and how many values it has. */
static uint64_t data_at(const struct io_thread *x, const struct part *p, uint32_t index, size_t *count)
{
    const struct operation *o = p->operation;
    uint64_t n = chunk_values(x, o), turn = inart_turn(&o->layout, index), at = (p->offset + turn * n) * inart_dtype_bytes(o->dtype);
    *count = chunk_elements(p, (uint32_t)turn, n);
    if (o->layout.kind != INART_ALL_REDUCE)
        at += inart_owner(&o->layout, sequence_of_data(p, index)) * o->layout.stride;
    return at;
}

/* The values of data chunk `index` as they are in the array, `count` of them; those that follow are fetched meanwhile. */
static const void *find_chunk(struct io_thread *x, const struct part *p, uint32_t index, size_t *count)
{
    const struct operation *o = p->operation;
    const uint8_t *data = o->in + data_at(x, p, index, count);
    for (size_t i = 0; i < *count * inart_dtype_bytes(o->dtype); i += 64)
        __builtin_prefetch(data + ARRAY_FETCH + i);
    return data;
}

static const float *load_chunk(struct io_thread *x, const struct part *p, uint32_t index, size_t *count)
{
    const void *data = find_chunk(x, p, index, count);
    return inart_load(data, *count, p->operation->dtype, x->scratch);
}

static bool everybodys(const struct tree *t, const struct part *p, uint32_t index)
{
    return inart_everybodys(sequence_of_data(p, index), index, p->order.data, t->period);
}

/* Is data chunk `index` this worker's own? */
static bool own(const struct part *p, uint32_t index)
{
    const struct inart_layout *l = &p->operation->layout;
    return inart_owner(l, sequence_of_data(p, index)) == l->index;
}

/* What another worker's packet is enough for: this one sends nothing, but asks for it when it does not come. */
static bool awaited(const struct tree *t, const struct part *p, uint32_t index)
{
    return p->operation->layout.kind == INART_GATHER && !own(p, index) && !everybodys(t, p, index);
}

/* Does the result go to others, so that this worker only hears that the chunk is complete? */
static bool elsewhere(const struct tree *t, const struct part *p, uint32_t index)
{
    if (p->operation->layout.kind == INART_REDUCE_SCATTER)
        return !own(p, index);
    return p->operation->layout.kind == INART_GATHER && t->config.others && own(p, index) && !everybodys(t, p, index);
}

/* Of a data chunk, in packets at the tree's rate: of an all-gather no link to a worker carries all. */
static double cost_of(const struct tree *t, const struct part *p, uint32_t index)
{
    const struct inart_layout *l = &p->operation->layout;
    return l->kind == INART_GATHER && l->source < 0 && !everybodys(t, p, index) ? 1 / t->config.gather_speed : 1;
}

/* Are its exponent, and whether anybody has NaN or Inf there, agreed? */
static bool agreed(const struct part *p, uint32_t index) { return p->exponents[index] >= 0 && p->mixed[index / EXPONENT_GROUP] >= 0; }

static int32_t exponent_of(const struct part *p, uint32_t index)
{
    return p->exponents[index] + (p->mixed[index / EXPONENT_GROUP] ? INART_NONFINITE : 0);
}

/* The flags of a data chunk that all its packets have, whoever sends them. */
static uint8_t data_kind(const struct tree *t, const struct part *p, uint32_t index)
{
    int kind = p->operation->layout.kind;
    if (kind == INART_ALL_REDUCE || everybodys(t, p, index))
        return 0;
    return kind == INART_REDUCE_SCATTER ? INART_FLAG_SCATTER : INART_FLAG_SINGLE;
}

/* The flags of a data chunk beyond those of an all-reduce. */
static uint8_t data_flags(const struct tree *t, const struct part *p, uint32_t index)
{
    if (p->operation->layout.kind == INART_ALL_REDUCE || everybodys(t, p, index))
        return 0;
    if (p->operation->layout.kind == INART_REDUCE_SCATTER)
        return INART_FLAG_SCATTER;
    /* A RESEND waits in no switch for the others. */
    return INART_FLAG_RESEND | (own(p, index) ? INART_FLAG_SINGLE : INART_FLAG_ASK);
}

/* A chunk of a gather: the owner's bytes as they are; from the others zeros. */
static void write_bytes(struct io_thread *x, const struct part *p, uint32_t index, uint8_t *wire)
{
    size_t count = 0, size = chunk_values(x, p->operation);
    if (own(p, index)) {
        uint64_t at = data_at(x, p, index, &count);
        memcpy(wire, p->operation->in + at, count);
    }
    memset(wire + count, 0, size - count);
}

/* A chunk of a gathered operation: what this worker contributes, in its own words. */
static void write_gathered(struct io_thread *x, const struct part *p, uint32_t index, uint32_t *wire)
{
    const struct operation *o = p->operation;
    const struct inart_layout *l = &o->places;
    size_t count;
    uint64_t at = data_at(x, p, index, &count), place = inart_takes_turns(l) && l->kind == INART_GATHER ? l->index * l->stride : 0;
    uint32_t column = l->source < 0 ? l->index : (uint32_t)l->source == l->index ? 0 : o->gathered.columns;
    inart_gathered_write(&o->gathered, o->in + place + at, count * inart_dtype_bytes(o->dtype), column, x->worker->data, wire);
}

/* Are exponents agreed before its data goes? */
static bool has_exponents(const struct operation *o) { return o->layout.kind != INART_GATHER && !o->gathered.columns; }

/* This worker's own exponents of a group of data chunks, kept until all have agreed: resends are what was sent first. */
static void own_exponents(struct io_thread *x, struct part *p, uint32_t first)
{
    uint32_t group = first / EXPONENT_GROUP;
    for (uint32_t i = first; i < p->order.data && i < first + EXPONENT_GROUP; i++) {
        size_t count;
        if (p->exponents[i] != NOT_AGREED)
            continue;
        const void *values = find_chunk(x, p, i, &count);
        int32_t own = p->operation->dtype == INART_BFLOAT16 ? inart_pairs_exponent(values, count, x->scratch)
                                                            : inart_exponent(inart_load(values, count, p->operation->dtype, x->scratch), count);
        if (own >= INART_NONFINITE && p->mixed[group] == NOT_AGREED)
            p->mixed[group] = OWN_MIXED;
        p->exponents[i] = (int16_t)(NOT_AGREED - 1 - own % INART_NONFINITE);
    }
}

static int32_t own_of(const struct part *p, uint32_t index) { return NOT_AGREED - 1 - p->exponents[index]; }

/* What all workers must have alike, 11 bits of it and their complement by turns: so the maximum over all is everybody's own. */
static uint32_t operation_mark(const struct operation *o, uint32_t position)
{
    uint64_t h = (uint64_t)o->tag << 32 | o->elements;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
    uint32_t bits = h >> (11 * (position / 2)) & 2047;
    return CHECK_MARK + (position % 2 ? 2047 - bits : bits);
}

static void write_exponents(struct io_thread *x, struct part *p, uint32_t chunk, uint32_t number, uint32_t *wire)
{
    const struct operation *o = p->operation;
    uint32_t n = x->worker->data;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t place = (uint64_t)chunk * n + j, index;
        uint32_t exponent = 0;
        if (place < 2) { /* sizes: the largest, and the smallest; negative, which no exponent is */
            wire[j] = __builtin_bswap32((1u << 31) + (uint32_t)(place ? INT32_MAX - o->elements : o->elements));
            continue;
        }
        if (place < CHECK_VALUES)
            exponent = operation_mark(o, (uint32_t)place - 2);
        else if (has_exponents(o)) {
            bool one = numbering_word(place, &index);
            if (index < p->order.data) {
                if (p->exponents[index] == NOT_AGREED) /* of the group, then: it is found as a whole */
                    own_exponents(x, p, (uint32_t)index / EXPONENT_GROUP * EXPONENT_GROUP);
                int8_t mixed = p->mixed[index / EXPONENT_GROUP];
                if (!one)
                    exponent = mixed == OWN_MIXED || mixed == 1;
                else
                    exponent = (uint32_t)(p->exponents[index] >= 0 ? p->exponents[index] : own_of(p, (uint32_t)index));
            }
        }
        wire[j] = __builtin_bswap32(check_exponent(x->worker->check, number, j, exponent));
    }
    wire[n] = 0;
}

/* The words of a data chunk with several values in each; check_sum of them. */
static uint64_t write_fields(struct io_thread *x, const struct part *p, uint32_t index, uint32_t *wire)
{
    const struct operation *o = p->operation;
    size_t count, words = x->worker->data;
    const void *data = find_chunk(x, p, index, &count);
    int32_t exponent = exponent_of(p, index);
    if (inart_pairs_fit(&o->fields, o->dtype, count, words, exponent) && !o->residual)
        return inart_pairs_quantise(&o->fields, x->worker->check, data, exponent, wire);
    const float *values = inart_load(data, count, o->dtype, x->scratch);
    uint64_t position = (uint64_t)((const uint8_t *)data - o->in) / inart_dtype_bytes(o->dtype);
    if (o->residual)
        inart_fields_residual(&o->fields, values, count, exponent, (uint32_t)position, o->residual + position);
    inart_fields_quantise(&o->fields, values, count, words, exponent, (uint32_t)position, wire);
    return check_sum(x->worker->check, wire);
}

/* The words of a packet with these flags, the check word the last of them. */
static void write_words(struct io_thread *x, struct tree *t, struct part *p, uint64_t sequence, int kind, uint32_t index, uint8_t flags,
                        uint32_t *wire)
{
    const struct inart_worker *w = x->worker;
    uint32_t number = check_number(w->check, &t->sent_recent[kind], t->config.tree, flags & CHECK_KINDS, sequence);
    if (kind == EXPONENT) {
        write_exponents(x, p, index, number, wire);
        return;
    }
    uint64_t sum;
    if (p->operation->layout.kind == INART_GATHER) {
        write_bytes(x, p, index, (uint8_t *)wire);
        sum = check_sum(w->check, wire);
    } else if (p->operation->gathered.columns) {
        write_gathered(x, p, index, wire);
        sum = check_sum(w->check, wire);
    } else if (p->operation->fields.count > 1) {
        sum = write_fields(x, p, index, wire);
    } else {
        size_t count;
        const float *values = load_chunk(x, p, index, &count);
        sum = checked_quantise(w->check, values, count, exponent_of(p, index), wire);
    }
    wire[w->data] = __builtin_bswap32(check_whole(w->check, sum, w->check->worker[w->config.index], number));
}

/* For a result that is lost, the attempt of the chunk that has the slot next, as far as is known: in another that one would lose
 * what is there. */
static uint8_t attempt_of_next(const struct tree *t, uint64_t sequence)
{
    uint64_t next = sequence + t->config.slots;
    return next >= t->asked_from && next < t->asked_end ? t->asked_attempt : 0;
}

/* A question for the result of chunk `sequence`, which the root has: and which of the next chunks, of those that the root has, this
 * worker lacks, too (ps_server/native/asking.h reads it). No contribution is in it. */
static void write_request(const struct io_thread *x, struct tree *t, uint64_t sequence, uint32_t *wire)
{
    uint32_t n = x->worker->config.values, most = 32 * (n - 2);
    uint64_t count = t->complete - sequence < most ? t->complete - sequence : most;
    memset(wire, 0, n * sizeof *wire);
    for (uint32_t i = 0; i < count; i++) {
        const struct chunk *c = chunk_of(t, sequence + i);
        if (c->state == SENT && !c->elsewhere)
            wire[1 + i / 32] |= __builtin_bswap32(1u << i % 32);
    }
    wire[0] = __builtin_bswap32((uint32_t)count);
}

/* The link that the tree's packets take together with a parameter server's on this host; NULL: they share it with none, or stay here. */
static struct inart_uplink *uplink_of(const struct io_thread *x, const struct tree *t)
{
    return t->config.here ? NULL : x->engine.uplink;
}

/* When the link has come to the tree's next packet. `now` or earlier: it has. */
static uint64_t link_due(const struct io_thread *x, const struct tree *t, uint64_t now)
{
    return uplink_due(uplink_of(x, t), x->engine.io->frame_bytes, now);
}

/* Builds the packet of one chunk; there is room. */
static void send_chunk(struct io_thread *x, struct tree *t, struct part *p, uint64_t sequence, enum sending how, uint64_t now)
{
    bool resend = how >= PROBE;
    struct chunk *c = chunk_of(t, sequence);
    uint32_t index;
    int kind = numbering_chunk(&p->order, (uint32_t)(sequence - p->base), &index);
    struct inart_header h = {
        .flags = (uint8_t)((resend ? INART_FLAG_RESEND : 0) | (how == LATE || how == PROBE ? INART_FLAG_LATE : 0)
                           | (kind == EXPONENT ? INART_FLAG_MAXIMUM : 0)),
        .job = (uint16_t)x->worker->config.job, .label = t->config.up_label, .sequence = (uint32_t)sequence,
        .epoch = inart_attempt_epoch(x->worker->config.epoch, how == LOST ? attempt_of_next(t, sequence) : c->attempt),
    };
    bool sends = how != FIRST || kind == EXPONENT || !awaited(t, p, index);
    if (kind == DATA)
        h.flags |= data_flags(t, p, index);
    if (how == LOST)
        h.flags |= INART_FLAG_ASK;
    uint32_t *wire = sends ? (uint32_t *)inart_values(io_build(x->engine.io, t->lane, &h)) : NULL;
    if (how == LOST)
        write_request(x, t, sequence, wire);
    else if (sends)
        write_words(x, t, p, sequence, kind, index, h.flags, wire);
    c->sent_at = now;
    if (how != FIRST) {
        c->again = c->alone = false;
        if (c->resends < UINT16_MAX)
            c->resends++;
    } else {
        c->state = SENT;
        c->kind = (uint8_t)kind;
        c->awaited = !sends;
        c->elsewhere = kind == DATA && elsewhere(t, p, index);
        t->unanswered++;
        p->sent[kind]++;
        t->stats.chunks_sent += sends;
        unsigned long long never = 0;
        if (!atomic_load_explicit(&p->operation->first_send, memory_order_relaxed))
            atomic_compare_exchange_strong(&p->operation->first_send, &never, now);
        if (!t->stats.first_send_ns)
            t->stats.first_send_ns = now;
        if (!t->active_since)
            t->active_since = now;
    }
    if (io_complete(x->engine.io, t->lane))
        io_flush(x->engine.io, now);
    double cost = kind == DATA ? cost_of(t, p, index) : 1; /* also for another worker's chunk: all go through the sequence numbers at one rate */
    t->tokens -= cost;
    t->burst -= cost;
    if (sends) {
        x->stats.packets_sent++;
        x->stats.bytes_sent += x->engine.io->frame_bytes;
        uplink_take(uplink_of(x, t), x->engine.io->frame_bytes, now);
    }
}

/* Of its chunks of a kind, the number of the next to be sent. */
static uint64_t next_of(const struct part *p, int kind) { return sequence_in(p, kind, p->sent[kind]); }

static uint64_t limit_of(const struct tree *t, const struct part *p)
{
    uint64_t most = t->base + inart_window(&p->operation->layout, t->config.slots);
    /* Results that this worker lacks are with the root: they are under way no more. */
    uint64_t gently = (t->complete > t->base ? t->complete : t->base) + t->window;
    return p->operation->layout.kind == INART_ALL_REDUCE && gently < most ? gently : most;
}

/* Of the window when nothing is known of the tree: what leaves at a time anyway. */
static uint32_t first_window(const struct tree *t)
{
    double leaves = t->packets_per_second * BURST_SECONDS; /* many slow trees collect more, but should not all begin with as many */
    uint32_t window = leaves > WINDOW_FIRST ? (uint32_t)(leaves < t->tokens_wake ? leaves : t->tokens_wake) : WINDOW_FIRST;
    return window < t->config.slots ? window : t->config.slots;
}

/* Something was lost, perhaps in a queue that was full: what is under way beyond what two of the shortest round trips carry is what
 * fills queues. Once a round trip, and as TCP does it. */
static void window_cut(struct tree *t, uint64_t now)
{
    if (now - t->window_cut < (uint64_t)t->round_trip)
        return;
    double least = 2 * t->packets_per_second * t->rtt_lowest / INART_NS + t->tokens_wake;
    uint32_t window = least < t->config.slots ? (uint32_t)least : t->config.slots, first = first_window(t);
    window = window > t->unanswered / 2 ? window : t->unanswered / 2;
    t->window_quick = window > first ? window : first;
    t->window = t->window < t->window_quick ? t->window : t->window_quick;
    t->answers_since = 0;
    t->window_cut = now;
}

/* Over data chunks of a gather that came before this worker had come to them. They take tokens, too: or all workers together
 * would go faster than the links that bring the chunks. */
static void pass_answered(struct tree *t, struct part *p)
{
    for (uint64_t next; p->sent[DATA] < p->order.data; p->sent[DATA]++) {
        next = sequence_of_data(p, p->sent[DATA]);
        if (next >= t->base && (next >= t->base + t->config.slots || chunk_of(t, next)->state != ANSWERED))
            return;
        t->tokens -= cost_of(t, p, p->sent[DATA]);
    }
}

/* Sends the next new chunk; false: none may go now. */
static bool send_next(struct io_thread *x, struct tree *t, uint64_t now)
{
    struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents)
        p = p->next;
    t->cursor[EXPONENT] = p;
    if (p && next_of(p, EXPONENT) < limit_of(t, p)) {
        send_chunk(x, t, p, next_of(p, EXPONENT), FIRST, now);
        return true;
    }
    p = t->cursor[DATA];
    while (p && (pass_answered(t, p), p->sent[DATA] == p->order.data))
        p = p->next;
    t->cursor[DATA] = p;
    if (!p || !agreed(p, p->sent[DATA]))
        return false;
    if (next_of(p, DATA) >= limit_of(t, p))
        return false;
    send_chunk(x, t, p, next_of(p, DATA), FIRST, now);
    return true;
}

/* Chunk `sequence` is to be sent once more, in its turn. */
static void mark_again(struct tree *t, uint64_t sequence)
{
    chunk_of(t, sequence)->again = true;
    if (t->repeat >= t->repeat_end) {
        t->repeat = sequence;
        t->repeat_end = sequence + 1;
    }
    t->repeat = sequence < t->repeat ? sequence : t->repeat;
    t->repeat_end = sequence + 1 > t->repeat_end ? sequence + 1 : t->repeat_end;
}

/* Whether a chunk may go now that is to be sent once more: it is number `repeat`. */
static bool has_again(struct tree *t, uint64_t now)
{
    if (now < t->repeat_at)
        return false;
    if (t->repeat < t->base)
        t->repeat = t->base;
    while (t->repeat < t->repeat_end && !chunk_of(t, t->repeat)->again)
        t->repeat++;
    return t->repeat < t->repeat_end && t->repeat < limit_of(t, part_of(t, t->repeat));
}

/* Sends the next chunk that is to be sent once more; false: none may go now. */
static bool send_again(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (!has_again(t, now))
        return false;
    bool alone = chunk_of(t, t->repeat)->alone;
    t->stats.resent_recovery++;
    send_chunk(x, t, part_of(t, t->repeat), t->repeat, alone ? ALONE : REPEAT, now);
    t->repeat++;
    return true;
}

#endif

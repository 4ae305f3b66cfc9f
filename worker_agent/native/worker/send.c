#include "send.h"
#include "encode.h"
#include "pacing.h"
#include "parts.h"
#include "window.h"

/* Returns the flags of a data chunk that an all-reduce's chunk does not have. */
static uint8_t data_flags(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    if (p->operation->layout.kind == INART_ALL_REDUCE || chunk_is_everybodys(t, p, index)) return 0;
    if (p->operation->layout.kind == INART_REDUCE_SCATTER) return INART_FLAG_SCATTER;
    /* A RESEND does not wait in switches for the other workers' packets. */
    return INART_FLAG_RESEND | (chunk_is_own(p, index) ? INART_FLAG_SINGLE : INART_FLAG_ASK);
}

/* Returns the attempt in which a lost result is asked for: that of the chunk that has the slot next, as far as it is
 * known. In another attempt, the request would make that chunk lose its sum in the switches. */
static uint8_t attempt_of_next(const struct worker_tree *t, uint64_t sequence) {
    uint64_t next = sequence + t->config.slots;
    return next >= t->asked_from && next < t->asked_end ? t->asked_attempt : 0;
}

void worker_send_chunk(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                       enum sending how, uint64_t now) {
    bool resend = how >= SEND_PROBE;
    struct worker_chunk *c = chunk_of(t, sequence);
    uint32_t index;
    int kind = numbering_chunk(&p->order, (uint32_t)(sequence - p->base), &index);
    struct inart_header h = {
        .flags =
            (uint8_t)((resend ? INART_FLAG_RESEND : 0) | (how == SEND_LATE || how == SEND_PROBE ? INART_FLAG_LATE : 0) |
                      (kind == EXPONENT ? INART_FLAG_MAXIMUM : 0)),
        .job = (uint16_t)x->worker->config.job,
        .label = t->config.up_label,
        .sequence = inart_on_wire(&t->direction, sequence),
        .epoch =
            inart_attempt_epoch(x->worker->config.epoch, how == SEND_LOST ? attempt_of_next(t, sequence) : c->attempt),
    };
    bool sends = how != SEND_FIRST || kind == EXPONENT || !chunk_is_awaited(t, p, index);
    if (kind == DATA) h.flags |= data_flags(t, p, index);
    if (how == SEND_LOST) h.flags |= INART_FLAG_ASK;
    uint32_t *wire = sends ? (uint32_t *)inart_values(io_build(x->engine.io, t->lane, &h)) : NULL;
    if (how == SEND_LOST)
        worker_write_request(x, t, sequence, wire);
    else if (sends)
        worker_write_words(x, t, p, sequence, kind, index, h.flags, wire);
    c->sent_at = now;
    if (how != SEND_FIRST) {
        chunk_change(c, CHUNK_REPEATED);
        if (c->resends < UINT16_MAX) c->resends++;
    } else {
        bool elsewhere = kind == DATA && chunk_is_elsewhere(t, p, index);
        chunk_change(c, !sends ? CHUNK_COMES_TO : elsewhere ? CHUNK_SENDS_ELSEWHERE : CHUNK_SENDS);
        c->kind = (uint8_t)kind;
        t->unanswered++;
        p->sent[kind]++;
        t->stats.chunks_sent += sends;
        unsigned long long never = 0;
        if (!atomic_load_explicit(&p->operation->first_send, memory_order_relaxed))
            atomic_compare_exchange_strong(&p->operation->first_send, &never, now);
        if (!t->stats.first_send_ns) t->stats.first_send_ns = now;
        if (!t->active_since) t->active_since = now;
    }
    if (io_complete(x->engine.io, t->lane)) io_flush(x->engine.io, now);
    double cost = kind == DATA
                      ? chunk_cost(t, p, index)
                      : 1; /* also for another worker's chunk: all go through the sequence numbers at one rate */
    t->tokens -= cost;
    t->burst -= cost;
    if (sends) {
        struct worker_tree *other = t->direction.number ? worker_other_direction(t) : NULL;
        if (other) { /* the link is one: what a gather sends a reduction does not */
            other->tokens -= 1;
            other->burst -= 1;
        }
        x->stats.packets_sent++;
        x->stats.bytes_sent += x->engine.io->frame_bytes;
        uplink_take(pacing_uplink(x, t), x->engine.io->frame_bytes, now);
    }
}

/* Passes over data chunks of a gather that came before this worker had come to them. They take tokens, too; otherwise
 * all workers together would go faster than the links that bring the chunks. */
static void pass_answered(struct worker_tree *t, struct worker_part *p) {
    for (uint64_t next; p->sent[DATA] < p->order.data; p->sent[DATA]++) {
        next = part_data_sequence(p, p->sent[DATA]);
        if (next >= t->base && (next >= t->base + t->config.slots || chunk_of(t, next)->state != CHUNK_ANSWERED))
            return;
        t->tokens -= chunk_cost(t, p, p->sent[DATA]);
    }
}

bool worker_send_next(struct worker_thread *x, struct worker_tree *t, uint64_t now) {
    struct worker_part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents) p = p->next;
    t->cursor[EXPONENT] = p;
    if (p && part_next(p, EXPONENT) < window_limit(t, p)) {
        worker_send_chunk(x, t, p, part_next(p, EXPONENT), SEND_FIRST, now);
        return true;
    }
    p = t->cursor[DATA];
    while (p && (pass_answered(t, p), p->sent[DATA] == p->order.data)) p = p->next;
    t->cursor[DATA] = p;
    if (!p || !chunk_is_agreed(p, p->sent[DATA])) return false;
    if (part_next(p, DATA) >= window_limit(t, p)) return false;
    worker_send_chunk(x, t, p, part_next(p, DATA), SEND_FIRST, now);
    return true;
}

bool worker_send_once_more(struct worker_tree *t, uint64_t sequence, enum chunk_event event) {
    struct worker_chunk *c = chunk_of(t, sequence);
    if (!chunk_goes_again(chunk_after(c->state, event))) return false;
    chunk_change(c, event);
    if (t->repeat >= t->repeat_end) {
        t->repeat = sequence;
        t->repeat_end = sequence + 1;
    }
    t->repeat = sequence < t->repeat ? sequence : t->repeat;
    t->repeat_end = sequence + 1 > t->repeat_end ? sequence + 1 : t->repeat_end;
    return true;
}

bool worker_has_again(struct worker_tree *t, uint64_t now) {
    if (now < t->repeat_at) return false;
    if (t->repeat < t->base) t->repeat = t->base;
    while (t->repeat < t->repeat_end && !chunk_goes_again(chunk_of(t, t->repeat)->state)) t->repeat++;
    return t->repeat < t->repeat_end && t->repeat < window_limit(t, part_of(t, t->repeat));
}

bool worker_send_again(struct worker_thread *x, struct worker_tree *t, uint64_t now) {
    if (!worker_has_again(t, now)) return false;
    bool alone = chunk_goes_alone(chunk_of(t, t->repeat)->state);
    t->stats.resent_recovery++;
    worker_send_chunk(x, t, part_of(t, t->repeat), t->repeat, alone ? SEND_ALONE : SEND_REPEAT, now);
    t->repeat++;
    return true;
}

bool worker_has_next(const struct worker_tree *t) {
    const struct worker_part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents) p = p->next;
    if (p && part_next(p, EXPONENT) < window_limit(t, p)) return true;
    p = t->cursor[DATA];
    while (p && p->sent[DATA] == p->order.data) p = p->next;
    return p && chunk_is_agreed(p, p->sent[DATA]) && part_next(p, DATA) < window_limit(t, p);
}

bool worker_has_nothing(const struct worker_tree *t) {
    const struct worker_part *later = t->cursor[EXPONENT], *p = t->cursor[DATA];
    while (later && later->sent[EXPONENT] == later->order.exponents) later = later->next;
    if (later && part_next(later, EXPONENT) < window_limit(t, later)) return false;
    while (p && p->sent[DATA] == p->order.data) p = p->next;
    return !p || (!chunk_is_agreed(p, p->sent[DATA]) && (!later || part_next(p, DATA) < window_limit(t, p)));
}

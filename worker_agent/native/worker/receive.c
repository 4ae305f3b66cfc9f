#include "receive.h"
#include "congestion.h"
#include "decode.h"
#include "operations.h"
#include "parts.h"
#include "roundtrip.h"
#include "send.h"
#include "window.h"

#define LINGERS (50 * INART_MS) /* how long a thread that has ended a part looks again every LINGER (thread.c) */

static void part_finish(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t now) {
    struct worker_part **link = &t->parts, *before = NULL;
    while (*link != p) {
        before = *link;
        link = &(*link)->next;
    }
    *link = p->next;
    if (t->last == p) t->last = before;
    for (int kind = 0; kind < KINDS; kind++)
        if (t->cursor[kind] == p) t->cursor[kind] = p->next;
    if (!t->parts) {
        t->stats.busy_ns += now - t->active_since;
        t->active_since = 0;
    }
    struct worker_operation *o = p->operation;
    worker_part_free(p);
    x->lingers_until = now + LINGERS;
    inart_stream_end();
    atomic_store(&o->last_answer, now);
    worker_operation_part_ended(x->worker, o, true);
}

/* Takes note that nothing more is to come of the chunk, after this event. */
static void answered(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, struct worker_chunk *c,
                     enum chunk_event event, uint64_t now) {
    if (chunk_in_progress(c->state)) t->unanswered--;
    chunk_change(c, event);
    if (t->window < t->config.slots && (t->window < t->window_quick || ++t->answers_since >= t->window)) {
        t->window++;
        t->answers_since = 0;
    }
    t->stats.answers++;
    t->progress_at = now;
    if (++p->answered == part_chunks(p)) part_finish(x, t, p, now);
}

/* Moves the window on, past all chunks that have been answered. */
static void advance(struct worker_tree *t, uint64_t sequence, uint64_t now) {
    if (sequence != t->base) return;
    while (t->base < t->end && chunk_of(t, t->base)->state == CHUNK_ANSWERED) {
        *chunk_of(t, t->base) = (struct worker_chunk){.state = CHUNK_UNSENT};
        t->base++;
    }
    t->base_since = now;
}

/* Takes note that all chunks before `complete` are complete, as the root has said. Chunks that this worker has added to
 * another's sum, or sent to the others, are done; a gather's chunks that it has not got are on their way, or lost. */
static void hear(struct worker_thread *x, struct worker_tree *t, uint64_t complete, uint64_t now) {
    if (complete > t->base + t->config.slots) complete = t->base + t->config.slots;
    for (uint64_t sequence = t->complete > t->base ? t->complete : t->base; sequence < complete; sequence++) {
        struct worker_chunk *c = chunk_of(t, sequence);
        if (chunk_waiting(c->state) != CHUNK_ELSEWHERE) continue;
        answered(x, t, part_of(t, sequence), c, CHUNK_COMPLETE, now);
        advance(t, sequence, now);
    }
    if (complete > t->complete) t->complete = complete;
}

/* Handles the root's question for chunks from h->sequence on (h->flags: INART_FLAG_ASK), in the attempt of its epoch.
 * The bitmap's lower half is the number of chunks. With one chunk, the values are the set of workers that are asked;
 * with more, the set of chunks that the root does not lack. With RESEND the root asks for contributions past all
 * switches, in the attempt that they have. */
static void take_question(struct worker_thread *x, struct worker_tree *t, const struct inart_header *h,
                          const uint8_t *packet, uint64_t now) {
    const uint32_t *set = (const uint32_t *)(const void *)(packet + INART_AT(INART_OFFSET_VALUES));
    uint64_t count = (uint32_t)h->bitmap,
             bits = 32ull * (x->worker->config.values - 1); /* the last word is the check word */
    uint32_t index = x->worker->config.index;
    if (!check_question_right(x->worker->check, set, h, worker_checked_tree(t),
                              inart_attempt(h->epoch, x->worker->config.epoch))) {
        t->stats.check_failures++; /* the root has not asked so */
        return;
    }
    bool alone = h->flags & INART_FLAG_RESEND, found = false;
    if (count == 1 && index < bits && !(__builtin_bswap32(set[index / 32]) >> index % 32 & 1)) count = 0;
    for (uint64_t i = 0; i < count && (count == 1 || i < bits); i++) {
        uint64_t sequence = h->sequence + i;
        if (sequence < t->base || sequence >= t->base + t->config.slots) continue;
        struct worker_chunk *c = chunk_of(t, sequence);
        if (c->state == CHUNK_ANSWERED || (count > 1 && __builtin_bswap32(set[i / 32]) >> i % 32 & 1)) continue;
        if (!alone) c->attempt = (uint8_t)inart_attempt(h->epoch, x->worker->config.epoch);
        found |= worker_send_once_more(t, sequence, alone ? CHUNK_ASKED_ALONE : CHUNK_ASKED);
    }
    if (count > 1) {
        t->asked_from = h->sequence;
        t->asked_end = h->sequence + count;
        t->asked_attempt = (uint8_t)inart_attempt(h->epoch, x->worker->config.epoch);
        if (found) {
            window_cut(t, now);
            t->window = window_first(t);
        }
    }
    if (t->timed == t->base + 1 && !t->timed_lost) /* the root knows */
        t->waits = 0;
    hear(x, t, h->bitmap >> 32, now);
}

/* Refuses a result that was changed on the way: it counts as lost, and is asked for again. */
static void refuse_result(struct worker_tree *t, struct worker_chunk *c, uint64_t sequence) {
    t->stats.check_failures++;
    if (!c->resends && sequence >= t->base) /* else: the oldest has a timer */
        worker_send_once_more(t, sequence, CHUNK_REFUSED);
}

/* Returns the tree that a packet is for, and its header; NULL: it is for none of this worker's, which is counted. */
static struct worker_tree *addressed_tree(struct worker_thread *x, uint8_t *packet, size_t length,
                                          struct inart_header *h) {
    const struct inart_worker_config *config = &x->worker->config;
    x->stats.packets_received++;
    x->stats.bytes_received += INART_OFFSET_HEADER + length;
    if (inart_parse(packet, length, x->engine.io->packet_bytes, h)) {
        x->stats.malformed++;
        return NULL;
    }
    int32_t number = h->flags & INART_FLAG_RESULT && h->job == config->job ? label_map_get(&x->labels, h->label) : -1;
    if (number < 0) {
        x->stats.unknown++;
        return NULL;
    }
    if (!(h->flags & INART_FLAG_ASK ? inart_same_epoch(h->epoch, config->epoch) : h->epoch == config->epoch)) {
        x->stats.other_epoch++;
        return NULL;
    }
    struct worker_tree *t = &x->trees[number];
    uint32_t ways = inart_ways(&t->direction);
    int way = t->family.at[h->sequence & (ways - 1)];
    if (way < 0) { /* came by a port that is not its lane's */
        x->stats.unknown++;
        return NULL;
    }
    h->sequence >>= __builtin_ctz(ways);
    return t + way;
}

void worker_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now) {
    struct worker_thread *x = (struct worker_thread *)engine;
    struct inart_header h;
    struct worker_tree *t = addressed_tree(x, packet, length, &h);
    if (!t) return;
    if (h.flags & INART_FLAG_ASK) {
        take_question(x, t, &h, packet, now);
        return;
    }
    if (h.sequence < t->base) {
        t->stats.duplicates++;
        return;
    }
    struct worker_chunk *c = chunk_of(t, h.sequence);
    if (h.sequence >= t->base + t->config.slots || (uint32_t)h.bitmap != x->worker->config.workers ||
        (c->state != CHUNK_UNSENT && !(h.flags & INART_FLAG_MAXIMUM) != (c->kind == DATA))) {
        t->stats.refused++;
        return;
    }
    if (c->state == CHUNK_ANSWERED) {
        t->stats.duplicates++;
        return;
    }
    struct worker_part *p = part_of(t, h.sequence);
    uint32_t index = 0;
    int kind = p ? numbering_chunk(&p->order, (uint32_t)(h.sequence - p->base), &index) : EXPONENT;
    /* A chunk may come that this worker has not sent: another worker may be ahead with its chunks of a gather. After a
     * failure there is no part. */
    if (!p || (c->state == CHUNK_UNSENT && (kind == EXPONENT || !chunk_is_awaited(t, p, index)))) {
        t->stats.refused++;
        return;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    enum taken taken = TAKEN;
    if (kind == EXPONENT)
        taken = worker_take_exponents(x, t, p, index, &h, wire);
    else
        taken = worker_take_values(x, t, p, &h, index, wire);
    if (taken == NOT_RIGHT) refuse_result(t, c, h.sequence);
    if (taken != TAKEN) return;
    worker_measure(t, c, now);
    congestion_answered(t, c, h.flags & INART_FLAG_CONGESTED || engine->congested, now);
    t->stats.last_answer_ns = now;
    answered(x, t, p, c, CHUNK_RESULT, now);
    advance(t, h.sequence, now);
    hear(x, t, h.bitmap >> 32, now);
}

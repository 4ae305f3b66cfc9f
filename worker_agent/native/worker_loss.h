/* Which chunks count as lost, and when they are sent again (worker.c says why). Included by worker.c only. */
#ifndef INART_WORKER_LOSS_H
#define INART_WORKER_LOSS_H

#include "worker_sending.h"

/* How long to wait for an answer: from the quickest of the last round trips. Means say little here: a chunk that a peer lost,
 * or may not send yet, takes as long as the peer's timers, which would grow with them. Early is cheap: few chunks have a timer.
 * At least `least` ns, and the time of `packets` packets at the tree's rate, so that resends are a small part of it. */
static uint64_t timeout_of(const struct tree *t, uint64_t least, int packets)
{
    double wait = t->round_trip > 0 ? 2 * t->round_trip : RTO_INITIAL, lowest = (double)least;
    if (t->packets_per_second > 0 && packets * 1e9 / t->packets_per_second > lowest)
        lowest = packets * 1e9 / t->packets_per_second;
    if (wait < lowest)
        wait = lowest;
    return (uint64_t)wait;
}

/* For a chunk of which nothing says that it was lost: a peer may be late. */
static uint64_t patient_timeout_of(const struct tree *t, const struct chunk *c)
{
    /* What is complete is said with the results of others, and with everybody's chunks at the latest. */
    int packets = 8 + (c->elsewhere ? (int)(t->config.slots / 4) : 0);
    return timeout_of(t, t->stats.last_answer_ns < t->active_since ? RTO_LOWEST_START : RTO_LOWEST, packets);
}

static uint64_t spread(struct io_thread *x, uint64_t t) { return t + random_below(x, t / 4 + 1); }

/* The deadline of the oldest unanswered chunk, when it was sent once and no gap has shown; 0: none. */
static uint64_t oldest_due(struct tree *t)
{
    struct chunk *c = chunk_of(t, t->base);
    if (!t->parts || c->state != SENT || c->list != LIST_FIRST)
        return 0;
    return (c->sent_at > t->base_since ? c->sent_at : t->base_since) + patient_timeout_of(t, c);
}

static void resend_at(struct tree *t, struct chunk *c, uint64_t due)
{
    list_remove(t, c);
    c->due = due;
    list_add(t, c, LIST_RESEND);
    if (due < t->resend_due)
        t->resend_due = due;
}

/* How long after evidence against it a chunk is given, because packets may overtake each other. */
static uint64_t reorder_window(const struct tree *t)
{
    double window = t->round_trip / 4;
    if (window < MS / 2.0)
        window = MS / 2.0;
    return (uint64_t)(window * t->reorder);
}

static uint64_t sequence_of(const struct tree *t, const struct chunk *c)
{
    uint64_t index = (uint64_t)(c - t->ring);
    return t->base + ((index - t->base) & t->mask);
}

/* When the oldest chunk of a kind that was sent once counts as lost; UINT64_MAX: nothing speaks against it. */
static uint64_t gap_due(struct tree *t, int kind)
{
    const struct evidence *e = &t->evidence[kind], *data = &t->evidence[DATA];
    if (t->first[kind].head == NONE)
        return UINT64_MAX;
    if (data->any && (!e->any || data->sequence > e->sequence))
        e = data;
    struct chunk *c = &t->ring[t->first[kind].head];
    if (c->awaited)
        return c->due ? c->due : UINT64_MAX;
    if (c->elsewhere && sequence_of(t, c) != t->complete)
        return UINT64_MAX;
    return e->any && sequence_of(t, c) < e->sequence ? c->sent_at + e->rtt + reorder_window(t) : UINT64_MAX;
}

static void find_gaps(struct io_thread *x, struct tree *t, uint64_t now)
{
    for (int kind = 0; kind < KINDS; kind++)
        while (gap_due(t, kind) <= now) {
            struct chunk *c = &t->ring[t->first[kind].head];
            c->gap = 1;
            resend_at(t, c, now + random_below(x, (uint64_t)(t->round_trip / 4) + 1));
        }
}

/* When the next resend may go; `now` or earlier: at once. */
static uint64_t resend_allowed(struct tree *t, uint64_t now)
{
    if (!(t->packets_per_second > 0))
        return now;
    double rate = t->packets_per_second * t->resend_share;
    t->resend_tokens += (double)(now - t->resend_tokens_at) / 1e9 * rate;
    if (t->resend_tokens > RESEND_BURST)
        t->resend_tokens = RESEND_BURST;
    t->resend_tokens_at = now;
    return t->resend_tokens >= 1 ? now : now + 1 + (uint64_t)((1 - t->resend_tokens) / rate * 1e9);
}

/* A resent chunk has got no answer in time: at most once in `wait`, and not below what all workers together may send. */
static void resend_share_cut(struct io_thread *x, struct tree *t, uint64_t wait, uint64_t now)
{
    if (now - t->resend_share_cut < wait)
        return;
    t->resend_share_cut = now;
    t->resend_share /= 2;
    if (t->resend_share < 1.0 / x->worker->config.workers)
        t->resend_share = 1.0 / x->worker->config.workers;
}

/* A resend was answered that nothing but the time had called for, or all of those that followed one: what else was under way then
 * is likely to be lost, too. Answers that are only late come first: those of a peer that sends now are a burst apart. */
static void recovery_go_on(struct tree *t, struct chunk *c, uint64_t now)
{
    if (c->recovery)
        t->recovering--;
    bool of_resend = c->resends && (double)(now - c->sent_at) >= t->rtt_lowest / 2;
    if (!of_resend || (c->gap && !c->recovery)) {
        if (!c->resends && c->sent_at < t->recovery_since)
            t->recovery = 0;
        return;
    }
    t->recovery_since = c->sent_at;
    if (t->recovering)
        return;
    uint64_t wait = reorder_window(t);
    if (t->packets_per_second > 0 && (t->tokens_wake + 1) / t->packets_per_second * INART_NS > (double)wait)
        wait = (uint64_t)((t->tokens_wake + 1) / t->packets_per_second * INART_NS);
    t->recovery = t->recovery ? 2 * t->recovery : 2;
    if (t->recovery > t->config.slots)
        t->recovery = t->config.slots;
    t->recovery_due = now + wait;
}

static void recover(struct tree *t, uint64_t now)
{
    uint64_t last = t->base + t->config.slots < t->end ? t->base + t->config.slots : t->end;
    uint64_t late = (uint64_t)t->round_trip + reorder_window(t);
    t->recovery_due = UINT64_MAX;
    for (uint64_t sequence = t->base; sequence < last && t->recovering < t->recovery; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        if (c->state != SENT || c->list != LIST_FIRST || c->awaited || c->elsewhere || c->sent_at + late > now)
            continue;
        c->gap = c->recovery = 1;
        t->recovering++;
        resend_at(t, c, now);
    }
    if (!t->recovering)
        t->recovery = 0;
}

/* Sends the resends that are due, as far as their share of the rate, tokens and room allow. */
static void send_resends(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (t->recovery && t->recovery_due <= now)
        recover(t, now);
    uint64_t oldest = oldest_due(t);
    if (oldest && oldest <= now)
        resend_at(t, chunk_of(t, t->base), now);
    if (t->resend_due > now)
        return;
    uint64_t earliest = UINT64_MAX, quick = timeout_of(t, RTO_LOWEST_RESENT, 2);
    for (uint32_t i = t->resend.head; i != NONE; i = t->ring[i].next) {
        struct chunk *c = &t->ring[i];
        if (c->due <= now && t->tokens >= 1 && t->burst >= 1 && io_room(x->engine.io, t->lane)) {
            uint64_t allowed = resend_allowed(t, now);
            if (allowed > now) {
                if (allowed < earliest)
                    earliest = allowed;
                continue;
            }
            t->resend_tokens -= 1;
            if (c->resends)
                resend_share_cut(x, t, quick, now);
            uint64_t sequence = sequence_of(t, c), wait = c->gap ? quick : patient_timeout_of(t, c);
            if (c->recovery && !c->resends)
                t->stats.resent_recovery++;
            else if (c->gap && !c->resends)
                t->stats.resent_gap++;
            else
                t->stats.resent_timeout++;
            uint64_t most = wait > BACKOFF_LONGEST ? wait : BACKOFF_LONGEST;
            unsigned doublings = c->gap ? c->resends / 2 : c->resends + 1;
            wait <<= doublings < BACKOFF_MOST ? doublings : BACKOFF_MOST;
            if (wait > most)
                wait = most;
            if (c->resends < UINT16_MAX)
                c->resends++;
            send_chunk(x, t, part_of(t, sequence), sequence, RESEND, now);
            c->due = now + spread(x, wait);
        }
        if (c->due < earliest)
            earliest = c->due;
    }
    t->resend_due = earliest;
}

#endif

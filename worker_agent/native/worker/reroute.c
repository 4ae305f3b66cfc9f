#include "reroute.h"
#include "pacing.h"
#include "parts.h"
#include "send.h"

#define REPEAT_DELAY (50 * INART_MS) /* the parameter server's copies of results come first */

void worker_rerouted(struct worker_tree *t, double rate_mbps, bool contributions, bool results, uint32_t values,
                     uint64_t now) {
    pacing_refill(t, now);
    if (rate_mbps > 0) {
        t->config.rate_mbps = rate_mbps;
        t->packets_per_second = rate_mbps / pacing_packet_mbits(values);
        t->config.gather_speed = 1; /* was for the ways before */
        t->crowded = true;
    }
    /* These were measured on the old way, too: other ways have other delays, and another order. */
    t->rtt_lowest = t->recent = t->before_recent = 0;
    t->recent_since = 0;
    t->reorder = 1;
    if ((!contributions && !results) || !t->parts) return;
    uint64_t end = t->base + t->config.slots < t->end ? t->base + t->config.slots : t->end;
    t->window = t->window_quick = t->config.slots;
    /* Timers are put off once: notices that follow each other quickly, while nothing is answered, must not keep the
     * tree from sending anything. */
    bool put_off = t->put_off_at && t->progress_at <= t->put_off_at;
    uint64_t at = results ? now + REPEAT_DELAY : now;
    if (!put_off || at < t->repeat_at) t->repeat_at = at;
    if (!put_off) {
        t->timed = 0;
        t->put_off_at = now;
    }
    /* None of these chunks is late before it can have been sent at the tree's rate, by this worker or by the parameter
     * server. */
    double each = t->packets_per_second > 0 ? INART_NS / t->packets_per_second : 0, due = (double)t->repeat_at;
    for (uint64_t sequence = t->base; sequence < end; sequence++) {
        struct worker_chunk *c = chunk_of(t, sequence);
        if (!chunk_in_progress(c->state)) continue;
        if (!put_off) c->sent_at = (uint64_t)due;
        c->resends = c->resends ? c->resends : 1; /* which copy is answered will not be known */
        if (contributions) worker_send_once_more(t, sequence, CHUNK_ASKED);
        due += each;
    }
}

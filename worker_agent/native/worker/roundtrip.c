#include "roundtrip.h"

#define ROUND_TRIP_MOST (250 * INART_MS)
#define REORDER_MOST 16
#define REORDER_KEPT (2000 * INART_MS) /* for which packets that overtake each other are remembered */

/* Forgets reordering after a while: packets overtake each other while routes change or one link is broken, and later do
 * not any more. */
static void reorder_ages(struct worker_tree *t, uint64_t now) {
    if (t->reorder > 1 && now > t->reorder_since + REORDER_KEPT) {
        t->reorder /= 2;
        t->reorder_since = now;
    }
}

void worker_measure(struct worker_tree *t, const struct worker_chunk *c, uint64_t now) {
    reorder_ages(t, now);
    if (c->resends) { /* which copy was answered? Only: much too soon for a question means that it was needless */
        if (t->timed_lost && t->waits && t->rtt_lowest > 0 && (double)(now - c->sent_at) < t->rtt_lowest / 2) {
            t->reorder = t->reorder < REORDER_MOST ? 2 * t->reorder : REORDER_MOST;
            t->reorder_since = now;
        }
        return;
    }
    enum chunk_state waiting = chunk_waiting(c->state);
    if ((waiting != CHUNK_SENT && waiting != CHUNK_ELSEWHERE) || now < c->sent_at) return;
    double rtt = (double)(now - c->sent_at);
    if (t->rtt_lowest == 0 || rtt < t->rtt_lowest) t->rtt_lowest = rtt;
    if (now - t->recent_since > RECENT) {
        t->before_recent = t->recent;
        t->recent = rtt;
        t->recent_since = now;
    } else if (rtt < t->recent)
        t->recent = rtt;
    t->round_trip = t->before_recent > 0 && t->before_recent < t->recent ? t->before_recent : t->recent;
    /* In a stall even the quickest round trips are slow: a time beyond any queue's is the stall's. */
    double most = 4 * t->rtt_lowest > ROUND_TRIP_MOST ? 4 * t->rtt_lowest : ROUND_TRIP_MOST;
    if (t->round_trip > most) t->round_trip = most;
}

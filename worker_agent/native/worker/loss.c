#include "loss.h"
#include "pacing.h"
#include "parts.h"
#include "send.h"
#include "window.h"

#define RTO_INITIAL (100 * INART_MS)
#define RTO_LOWEST (20 * INART_MS)
#define RTO_LOWEST_START (50 * INART_MS) /* while nothing has been answered: peers seldom start at once */
#define RTO_LOWEST_LOST (5 * INART_MS)   /* of a result that is lost: waits for no peer */
#define BACKOFF_LONGEST (500 * INART_MS) /* unless the round trip is longer anyway */
#define BACKOFF_LOST (100 * INART_MS)
#define BACKOFF_MOST 6
#define PROBE_AFTER 3   /* times that the oldest chunk was sent again in vain, before the first RESEND of it */
#define LATE_SHARE 0.25 /* of a tree's rate: copies of late chunks that all workers together send, */
#define LATE_MOST 32    /* ... or, of a tree without a rate, so many at a time */
#define LATE_LEAST 2    /* ... or, of a very slow tree */
#define SLOW 100        /* packets a second of a tree: below, timers that double go on doubling */
#define ASKED_IN_VAIN 4 /* of so many questions for a result one is a contribution */
#define PROBES 2        /* of all workers' repeats after that, about so many at a time are RESENDs */
#define SPREAD_MOST (1000 * INART_MS) /* of the times at which workers ask for a result that all of them may lack */

/* Returns how long to wait for an answer, in ns, from the quickest of the last round trips. Means say little here: a
 * chunk that a peer lost, or may not send yet, takes as long as the peer's timers, which would grow with them. Waiting
 * too short is cheap, because only one chunk has a timer. The time is at least `least` ns, and at least the time of
 * `packets` packets at the tree's rate, so that repeats are a small part of it. */
static uint64_t timeout_of(const struct worker_tree *t, uint64_t least, int packets) {
    double wait = t->round_trip > 0 ? 2 * t->round_trip : RTO_INITIAL, lowest = (double)least;
    double turn = engine_turn(t->packets_per_second, packets);
    if (turn > lowest) lowest = turn;
    if (wait < lowest) wait = lowest;
    return (uint64_t)wait;
}

/* Returns the timeout of a chunk that may not have been lost: a peer may be late. */
static uint64_t patient_timeout_of(const struct worker_tree *t, const struct worker_chunk *c) {
    /* The root says that a chunk is complete with the results of others, and with everybody's chunks at the latest. */
    bool elsewhere = chunk_waiting(c->state) == CHUNK_ELSEWHERE;
    int packets = 8 + (elsewhere ? (int)(t->config.slots / 4) : 0);
    return timeout_of(t, t->stats.last_answer_ns < t->active_since ? RTO_LOWEST_START : RTO_LOWEST, packets);
}

static uint64_t spread(struct worker_thread *x, uint64_t t) { return t + worker_random_below(x, t / 4 + 1); }

/* Returns how long after a later result an earlier one may still come, because packets may overtake each other. */
static uint64_t reorder_window(const struct worker_tree *t) {
    double window = t->round_trip / 4;
    if (window < INART_MS / 2.0) window = INART_MS / 2.0;
    return (uint64_t)(window * t->reorder);
}

/* Returns a random delay before this worker asks for a result that it lacks. Other workers may lack it, too: they ask
 * one after the other, at the tree's rate, and once the first has asked for it, the others get it as well. */
static uint64_t asking_spread(struct worker_thread *x, const struct worker_tree *t) {
    double all = t->packets_per_second > 0 ? x->worker->config.workers / t->packets_per_second * INART_NS : 0;
    return worker_random_below(x, (uint64_t)(all < SPREAD_MOST ? all : SPREAD_MOST) + 1);
}

uint64_t worker_base_due(struct worker_thread *x, struct worker_tree *t, uint64_t now) {
    struct worker_chunk *c = chunk_of(t, t->base);
    if (!chunk_in_progress(c->state) || chunk_goes_again(c->state)) return UINT64_MAX;
    bool lost = t->base < t->complete;
    uint64_t since = c->sent_at > t->base_since ? c->sent_at : t->base_since;
    if (t->timed != t->base + 1 || t->timed_lost != lost) {
        t->timed = t->base + 1;
        t->timed_lost = lost;
        t->waits = 0;
        t->due = lost ? now + reorder_window(t) + asking_spread(x, t) : spread(x, patient_timeout_of(t, c)) + since;
    } else if (!lost && t->due < since + patient_timeout_of(t, c)) /* was sent again meanwhile */
        t->due = spread(x, patient_timeout_of(t, c)) + since;
    return t->due;
}

/* Returns whether this worker is one of those that say now that the oldest chunk is late. Where the chunk's slot is
 * closed, each of these packets passes all switches and comes to the root alone. So all workers together send them at a
 * quarter of the tree's rate, however many workers there are; for a tree so slow that this is less, about LATE_LEAST of
 * them send one. */
static bool says_so(struct worker_thread *x, const struct worker_tree *t, uint64_t wait) {
    double packets =
        t->packets_per_second > 0 ? (double)wait / INART_NS * t->packets_per_second * LATE_SHARE : LATE_MOST;
    return worker_random_below(x, x->worker->config.workers) < (packets < LATE_LEAST ? LATE_LEAST : packets);
}

void worker_send_late(struct worker_thread *x, struct worker_tree *t, uint64_t now) {
    if (worker_base_due(x, t, now) > now || t->tokens < 1 || t->burst < 1 || !io_room(x->engine.io, t->lane)) return;
    struct worker_chunk *c = chunk_of(t, t->base);
    bool lost = t->timed_lost && t->waits % ASKED_IN_VAIN !=
                                     ASKED_IN_VAIN - 1; /* in vain: perhaps the root does not have it after all */
    bool probe =
        t->timed_lost || (t->waits >= PROBE_AFTER && worker_random_below(x, x->worker->config.workers) < PROBES);
    uint64_t wait = t->timed_lost ? timeout_of(t, RTO_LOWEST_LOST, 2) : patient_timeout_of(t, c);
    uint64_t most = t->timed_lost ? BACKOFF_LOST : BACKOFF_LONGEST, slow = t->timed_lost ? 4 * wait : 2 * wait;
    if (most < slow && t->packets_per_second > 0 && t->packets_per_second < SLOW)
        most = slow; /* of many slow trees: all their workers' packets together are many */
    if (most > SLOWEST_WAIT) most = SLOWEST_WAIT;
    if (most < wait) most = wait;
    unsigned doublings = t->timed_lost ? t->waits / 2 : t->waits + 1;
    wait <<= doublings < BACKOFF_MOST ? doublings : BACKOFF_MOST;
    if (t->timed_lost && !t->waits) window_cut(t, now);
    t->waits++;
    t->due = now + spread(x, wait < most ? wait : most);
    if (!t->timed_lost && !probe && !says_so(x, t, wait < most ? wait : most)) return;
    if (t->timed_lost)
        t->stats.resent_gap++;
    else
        t->stats.resent_timeout++;
    worker_send_chunk(x, t, part_of(t, t->base), t->base, lost ? SEND_LOST : probe ? SEND_PROBE : SEND_LATE, now);
}

#include "congestion.h"

#define TCP_SEGMENT 1514.0 /* bytes of a full frame of TCP */
#define GROWS 0.53         /* segments that a window grows by in a round trip, and the part that marks take of it: */
#define SHRINKS 0.3        /* CUBIC's where it is as quick as Reno (RFC 9438, 4.3) */
#define SMOOTH 8           /* round trips are averaged over about so many */
#define LEAST 2.0          /* chunks under way of a job of one tree */
#define FIRST                                                                                                    \
    1.45           /* times what the planned rate needs: the window before the first mark, so that one alone, as \
                      of a burst of the job's own, takes nothing from it */
#define ENOUGH 2.0 /* times that: a window that has grown so far limits nothing */
#define ENOUGH_CHUNKS 8
#define PATIENCE 8 /* round trips without a mark, after which a window grows quicker and quicker */
#define QUICKEST 64

void congestion_setup(struct worker_tree *t, double share, uint32_t values) {
    t->congestion = (struct congestion){
        .least = LEAST * share, .growth = GROWS * share * TCP_SEGMENT / INART_FRAME_BYTES(values), .quick = 1};
}

/* Returns the number of chunks in progress that the planned rate needs; 0: any number. */
static double needed(const struct worker_tree *t) {
    return t->packets_per_second * t->congestion.round_trip / INART_NS + t->tokens_wake;
}

/* Makes the window smaller, after a round trip in which a packet was marked. */
static void shrink(struct worker_tree *t, struct congestion *g) {
    if (!congestion_limits(t)) {
        double need = t->packets_per_second > 0 ? needed(t) : t->unanswered;
        g->window = FIRST * (need > 1 ? need : 1);
    }
    g->window *= 1 - SHRINKS;
    if (g->window < g->least) g->window = g->least;
}

void congestion_answered(struct worker_tree *t, const struct worker_chunk *c, bool marked, uint64_t now) {
    struct congestion *g = &t->congestion;
    enum chunk_state waiting = chunk_waiting(c->state);
    if (!c->resends && (waiting == CHUNK_SENT || waiting == CHUNK_ELSEWHERE) && now > c->sent_at) {
        double took = (double)(now - c->sent_at);
        g->round_trip += g->round_trip > 0 ? (took - g->round_trip) / SMOOTH : took;
    }
    g->marked |= marked;
    t->stats.marked += marked;
    if (congestion_limits(t) && g->clean && !g->marked) {
        g->window += g->growth * g->quick / (g->window > 1 ? g->window : 1);
        double enough = t->packets_per_second > 0 ? ENOUGH * needed(t) + ENOUGH_CHUNKS : t->config.slots;
        if (g->window > enough || g->window > t->config.slots) g->window = 0;
    }
    if ((double)(now - g->since) < g->round_trip) return;
    g->clean = g->marked ? 0 : g->clean + 1;
    g->quick = g->clean > PATIENCE ? g->clean - PATIENCE : 1;
    if (g->quick > QUICKEST) g->quick = QUICKEST;
    if (g->marked && g->round_trip > 0) shrink(t, g);
    g->since = now;
    g->marked = false;
}

void congestion_lost(struct worker_tree *t) {
    if (congestion_limits(t)) t->congestion.marked = true;
}

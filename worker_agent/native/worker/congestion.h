/* Limits a tree by the marks of switches. Switches mark packets whose queue is too long (ECN, RFC 3168); a tree then
 * has fewer chunks in progress, so that the other users of a link have as much of it as its job has.
 *
 * A job is one flow of TCP to each link, however many trees it has: a tree's window grows by its share of what TCP's
 * does in a round trip without marks, and shrinks by the same part as TCP's after one with marks. In the round trip
 * after that it stays, because its marks are from before. Nothing of this limits a tree that has had no marks lately.
 *
 * A switch that adds lets only the packet go on that came last, and so only its mark. It is the right one: the packet
 * that waits in the longest queue comes last. */
#ifndef INART_WORKER_CONGESTION_H
#define INART_WORKER_CONGESTION_H

#include "state.h"

#define CONGESTION_PACE 1.25 /* times the window a round trip: packets leave evenly, but the window is what limits */

void congestion_setup(struct worker_tree *t, double share, uint32_t values);

/* Takes note that the answer to a chunk has come; `marked` says whether its contribution, or the answer itself, was
 * marked. */
void congestion_answered(struct worker_tree *t, const struct worker_chunk *c, bool marked, uint64_t now);

/* Takes note that a packet was lost. */
void congestion_lost(struct worker_tree *t);

static inline bool congestion_limits(const struct worker_tree *t) { return t->congestion.window > 0; }

/* Returns the packets per second that the window lets leave, if it limits the tree. */
static inline double congestion_pace(const struct worker_tree *t) {
    return CONGESTION_PACE * t->congestion.window / t->congestion.round_trip * INART_NS;
}

#endif

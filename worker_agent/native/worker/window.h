/* How far ahead of the oldest unanswered chunk a worker sends. */
#ifndef INART_WORKER_WINDOW_H
#define INART_WORKER_WINDOW_H

#include "state.h"

uint64_t window_limit(const struct worker_tree *t, const struct worker_part *p);

/* Of the window when nothing is known of the tree: what leaves at a time anyway. */
uint32_t window_first(const struct worker_tree *t);

/* Something was lost, perhaps in a queue that was full: what is under way beyond what two of the shortest round trips
 * carry is what fills queues. Once a round trip, and as TCP does it. */
void window_cut(struct worker_tree *t, uint64_t now);

#endif

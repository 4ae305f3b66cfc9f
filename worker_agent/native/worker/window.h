/* Decides how far ahead of the oldest unanswered chunk a worker sends. */
#ifndef INART_WORKER_WINDOW_H
#define INART_WORKER_WINDOW_H

#include "state.h"

uint64_t window_limit(const struct worker_tree *t, const struct worker_part *p);

/* Returns the size of the window when nothing is known of the tree: the number of packets that leave at a time anyway.
 */
uint32_t window_first(const struct worker_tree *t);

/* Makes the window smaller after a loss, perhaps in a queue that was full: the chunks in progress beyond those that two
 * of the shortest round trips carry are the ones that fill queues. It does so once a round trip, as TCP does. */
void window_cut(struct worker_tree *t, uint64_t now);

#endif

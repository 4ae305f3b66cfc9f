/* Lets a tree's packets leave at its rate: tokens, bursts, and the link that a worker shares with a parameter server.
 */
#ifndef INART_WORKER_PACING_H
#define INART_WORKER_PACING_H

#include "state.h"

#define BURST_SECONDS 0.001 /* of a tree's packets that leave at a time, */
#define BURST_MESSAGES 4    /* ... and super-frames: the 256 KB that a switch's buffers hold of each sender */
#define FEW 8               /* packets that a slow tree may collect, */
#define FEW_SECONDS 0.004   /* ... if they are no more than all trees send in this time */
#define SLACK_SECONDS 0.003 /* being late by this loses nothing */
#define CATCH_UP 2.0        /* times the tree's rate */

/* Returns the link that the tree's packets share with a parameter server's on this host; NULL: they share it with none,
 * or stay on the host. */
struct inart_uplink *pacing_uplink(const struct worker_thread *x, const struct worker_tree *t);

/* Returns when the link is free for the tree's next packet; `now` or earlier: it is. */
uint64_t pacing_link_due(const struct worker_thread *x, const struct worker_tree *t, uint64_t now);

void pacing_refill(struct worker_tree *t, uint64_t now);

/* Returns when there are tokens for a burst, since smaller bursts cost more; `now` or earlier: there are. */
uint64_t pacing_burst_due(const struct worker_tree *t, uint64_t now);

/* Returns when there is a token for one packet; `now` or earlier: there is. */
uint64_t pacing_token_due(const struct worker_tree *t, uint64_t now);

double pacing_packet_mbits(uint32_t values);

#endif

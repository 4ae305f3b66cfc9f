/* Measures by answers the tree's round trip, and whether packets overtake each other. */
#ifndef INART_WORKER_ROUNDTRIP_H
#define INART_WORKER_ROUNDTRIP_H

#include "state.h"

void worker_measure(struct worker_tree *t, const struct worker_chunk *c, uint64_t now);

#endif

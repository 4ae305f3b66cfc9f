/* What a worker sends once more when the controller has led a tree around what has failed. */
#ifndef INART_WORKER_REROUTE_H
#define INART_WORKER_REROUTE_H

#include "state.h"

void worker_repaired(struct worker_tree *t, double rate_mbps, bool contributions, bool results, uint32_t values,
                     uint64_t now);

#endif

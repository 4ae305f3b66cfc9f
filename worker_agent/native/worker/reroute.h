/* Sends a worker's chunks once more when the controller has rerouted a tree around a failure. */
#ifndef INART_WORKER_REROUTE_H
#define INART_WORKER_REROUTE_H

#include "state.h"

void worker_rerouted(struct worker_tree *t, double rate_mbps, bool contributions, bool results, uint32_t values,
                     uint64_t now);

#endif

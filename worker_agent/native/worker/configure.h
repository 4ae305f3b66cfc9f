/* Gives a worker's engine a configuration: its trees, spread over the threads. */
#ifndef INART_WORKER_CONFIGURE_H
#define INART_WORKER_CONFIGURE_H

#include "state.h"

void worker_trees_free(struct worker_tree *trees, uint32_t count, struct label_map *labels);

int worker_configure(struct inart_worker *w, const struct inart_worker_config *config, char *error, size_t size);

#endif

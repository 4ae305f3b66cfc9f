/* Gives a parameter server's engine a configuration: its trees and flows, spread over the threads. */
#ifndef INART_ROOT_CONFIGURE_H
#define INART_ROOT_CONFIGURE_H

#include "state.h"

double root_packets_per_second(double mbps, uint32_t values);

void root_share_free(struct root_tree *trees, uint32_t count, struct root_flow *flows, uint32_t flow_count,
                     struct label_map *labels, struct label_map *sources, struct check *check);

int root_configure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size);

#endif

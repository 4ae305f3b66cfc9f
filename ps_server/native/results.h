/* Sends results: once when a chunk is complete, and once more to the workers that lack them. */
#ifndef INART_ROOT_RESULTS_H
#define INART_ROOT_RESULTS_H

#include "state.h"

void root_take_token(struct root_tree *t);

/* Sends the result of a chunk; `values` are the chunk's, wherever they are nearest. */
bool root_send_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, const void *values, uint32_t label,
                      uint64_t now);

/* Sends results once more that workers have asked for, as far as tokens allow. Returns when the next may be sent;
 * UINT64_MAX: there is none. */
uint64_t root_repeat_results(struct root_thread *x, struct root_tree *t, uint64_t now);

#endif

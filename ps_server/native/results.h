/* Results leave: once when a chunk is complete, and once more for those who lack them. */
#ifndef INART_ROOT_RESULTS_H
#define INART_ROOT_RESULTS_H

#include "state.h"

void root_take_token(struct root_tree *t);

/* `values`: of the chunk, where they are nearest. */
bool root_send_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, const void *values, uint32_t label,
                      uint64_t now);

/* Sends results once more that workers have asked for, as far as tokens allow; when the next may go, UINT64_MAX: there
 * is none. */
uint64_t root_repeat_results(struct root_thread *x, struct root_tree *t, uint64_t now);

#endif

/* What the packets of a worker say: values, exponents, and requests for results. */
#ifndef INART_WORKER_ENCODE_H
#define INART_WORKER_ENCODE_H

#include "state.h"

/* Where data chunk `index` is in the array, in bytes, and how many values it has. */
uint64_t worker_data_at(const struct worker_thread *x, const struct worker_part *p, uint32_t index, size_t *count);

/* What all workers must have alike, 11 bits of it and their complement by turns: so the maximum over all is everybody's
 * own. */
uint32_t worker_operation_mark(const struct worker_operation *o, uint32_t position);

/* The words of a packet with these flags, the check word the last of them. */
void worker_write_words(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                        int kind, uint32_t index, uint8_t flags, uint32_t *wire);

/* A question for the result of chunk `sequence`, which the root has: and which of the next chunks, of those that the
 * root has, this worker lacks, too (ps_server/native/asking.h reads it). No contribution is in it. */
void worker_write_request(const struct worker_thread *x, struct worker_tree *t, uint64_t sequence, uint32_t *wire);

#endif

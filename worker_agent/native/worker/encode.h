/* Writes the contents of a worker's packets: values, exponents, and requests for results. */
#ifndef INART_WORKER_ENCODE_H
#define INART_WORKER_ENCODE_H

#include "state.h"

/* Returns where data chunk `index` is in the array, in bytes, and sets *count to the number of its values. */
uint64_t worker_data_at(const struct worker_thread *x, const struct worker_part *p, uint32_t index, size_t *count);

/* Returns a word by which workers check that they run the same operation: 11 bits of a hash of its tag and size, and at
 * the next position their complement, so that the maximum over all workers is each worker's own only where all are
 * equal. */
uint32_t worker_operation_mark(const struct worker_operation *o, uint32_t position);

/* Writes the words of a packet with these flags; the check word is the last of them. */
void worker_write_words(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                        int kind, uint32_t index, uint8_t flags, uint32_t *wire);

/* Writes a request for the result of chunk `sequence`, which the root has. It also says which of the next chunks, of
 * those that the root has, this worker lacks (ps_server/native/asking.h reads it). It contains no contribution. */
void worker_write_request(const struct worker_thread *x, struct worker_tree *t, uint64_t sequence, uint32_t *wire);

#endif

/* Chunks become packets: which is next, and which go once more. */
#ifndef INART_WORKER_SEND_H
#define INART_WORKER_SEND_H

#include "state.h"

/* Builds the packet of one chunk; there is room. */
void worker_send_chunk(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                       enum sending how, uint64_t now);

/* Sends the next new chunk; false: none may go now. */
bool worker_send_next(struct worker_thread *x, struct worker_tree *t, uint64_t now);

/* Chunk `sequence` is to be sent once more, in its turn. */
void worker_mark_again(struct worker_tree *t, uint64_t sequence);

/* Whether a chunk may go now that is to be sent once more: it is number `repeat`. */
bool worker_has_again(struct worker_tree *t, uint64_t now);

/* Sends the next chunk that is to be sent once more; false: none may go now. */
bool worker_send_again(struct worker_thread *x, struct worker_tree *t, uint64_t now);

bool worker_has_next(const struct worker_tree *t);

/* Neither the window nor tokens hold it up: there is nothing to send, or nothing whose exponents are known. */
bool worker_has_nothing(const struct worker_tree *t);

#endif

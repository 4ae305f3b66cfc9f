/* Turns chunks into packets: decides which one is next, and which ones are sent once more. */
#ifndef INART_WORKER_SEND_H
#define INART_WORKER_SEND_H

#include "state.h"

/* Builds the packet of one chunk; there must be room. */
void worker_send_chunk(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                       enum sending how, uint64_t now);

/* Sends the next new chunk; returns false where none may be sent now. */
bool worker_send_next(struct worker_thread *x, struct worker_tree *t, uint64_t now);

/* Has chunk `sequence` sent once more, in its turn, because of `event`. Returns false where this worker has nothing of
 * it to send. */
bool worker_send_once_more(struct worker_tree *t, uint64_t sequence, enum chunk_event event);

/* Returns whether a chunk that is to be sent once more may be sent now; its number is `repeat`. */
bool worker_has_again(struct worker_tree *t, uint64_t now);

/* Sends the next chunk that is to be sent once more; returns false where none may be sent now. */
bool worker_send_again(struct worker_thread *x, struct worker_tree *t, uint64_t now);

bool worker_has_next(const struct worker_tree *t);

/* Returns whether the tree is held up by neither the window nor tokens: it has nothing to send, or no chunk whose
 * exponents are known. */
bool worker_has_nothing(const struct worker_tree *t);

#endif

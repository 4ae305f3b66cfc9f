/* Turns chunks into packets: decides which one is next, and which ones are sent once more. */
#ifndef INART_WORKER_SEND_H
#define INART_WORKER_SEND_H

#include "state.h"

/* Builds the packet of one chunk; there must be room. */
void worker_send_chunk(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                       enum sending how, uint64_t now);

/* Sends the next new chunk; returns false where none may be sent now. */
bool worker_send_next(struct worker_thread *x, struct worker_tree *t, uint64_t now);

/* Marks chunk `sequence` to be sent once more, in its turn. */
void worker_mark_again(struct worker_tree *t, uint64_t sequence);

/* Returns whether a chunk that is to be sent once more may be sent now; its number is `repeat`. */
bool worker_has_again(struct worker_tree *t, uint64_t now);

/* Sends the next chunk that is to be sent once more; returns false where none may be sent now. */
bool worker_send_again(struct worker_thread *x, struct worker_tree *t, uint64_t now);

bool worker_has_next(const struct worker_tree *t);

/* Returns whether the tree is held up by neither the window nor tokens: it has nothing to send, or no chunk whose
 * exponents are known. */
bool worker_has_nothing(const struct worker_tree *t);

#endif

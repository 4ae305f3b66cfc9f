/* Decides when a worker sends a chunk again that nobody has asked it for (worker.c says why). */
#ifndef INART_WORKER_LOSS_H
#define INART_WORKER_LOSS_H

#include "state.h"

/* Returns when the oldest unanswered chunk is to be sent again, unless the root asks for it earlier; UINT64_MAX: it has
 * no timer. */
uint64_t worker_base_due(struct worker_thread *x, struct worker_tree *t, uint64_t now);

/* Acts on the oldest unanswered chunk, if it has waited for long. Its result is known to be lost when the root has said
 * that all chunks before a later one are complete: the root has it, and a RESEND passes all switches. Otherwise the
 * chunk is repeated: where a switch has this worker's contribution, the repeat is a duplicate, and where it was lost,
 * it is added now. Only where the slot is closed or another chunk's does the packet come to the root by itself, and
 * tells it to ask for what is lost (ps_server/native/asking.h). A slot that waits for some worker's contribution sends
 * nothing; so that the root can say which worker the job waits for, now and then one worker of all sends a RESEND. */
void worker_send_late(struct worker_thread *x, struct worker_tree *t, uint64_t now);

#endif

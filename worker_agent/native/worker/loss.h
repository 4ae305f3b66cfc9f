/* When a worker sends a chunk again that nobody has asked it for (worker.c says why). */
#ifndef INART_WORKER_LOSS_H
#define INART_WORKER_LOSS_H

#include "state.h"

/* When the oldest unanswered chunk is to be sent again, unless somebody asks for it before; UINT64_MAX: it has no
 * timer. */
uint64_t worker_base_due(struct worker_thread *x, struct worker_tree *t, uint64_t now);

/* The oldest unanswered chunk has waited for long. That its result is lost is known when the root has said that all
 * before a later one are complete: the root has it, and a RESEND passes all switches. If not, it is repeated: where a
 * switch has this worker's contribution that is a duplicate, where it was lost it is added now. Only where the slot is
 * closed or another's the packet comes to the root by itself, and tells it to ask for what is lost
 * (ps_server/native/asking.h). A slot that waits for somebody's contribution says nothing; so that the root can say
 * whom the job waits for, now and then one worker of all sends a RESEND. */
void worker_send_late(struct worker_thread *x, struct worker_tree *t, uint64_t now);

#endif

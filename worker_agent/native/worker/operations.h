/* How operations of the worker end: with their last part, or all at once after a failure. */
#ifndef INART_WORKER_OPERATIONS_H
#define INART_WORKER_OPERATIONS_H

#include "state.h"

/* Takes note that one of the operation's parts, or its submission, has ended. */
void worker_operation_part_ended(struct inart_worker *w, struct worker_operation *o, bool well);

void worker_part_free(struct worker_part *p);

/* Drops, after a failure, all parts of a thread, and the packets that it has built and not sent. */
void worker_drop_parts(struct worker_thread *x);

__attribute__((format(printf, 3, 4))) void worker_fail(struct worker_thread *x, int32_t status, const char *format,
                                                       ...);

/* Ends all operations with this status, and returns when they have ended. The engine's own threads must not call it. */
void worker_fail_all(struct inart_worker *w, int32_t status, const char *message);

#endif

/* How operations of the worker end: with their last part, or all at once after a failure. */
#ifndef INART_WORKER_OPERATIONS_H
#define INART_WORKER_OPERATIONS_H

#include "state.h"

/* One of its parts has ended, or its submission. */
void worker_operation_part_ended(struct inart_worker *w, struct worker_operation *o, bool well);

void worker_part_free(struct worker_part *p);

/* After a failure: a thread's parts end with it, and what it has built is not sent. */
void worker_drop_parts(struct worker_thread *x);

__attribute__((format(printf, 3, 4))) void worker_fail(struct worker_thread *x, int32_t status, const char *format,
                                                       ...);

/* Not for the threads themselves: when it returns, all operations have ended. */
void worker_fail_all(struct inart_worker *w, int32_t status, const char *message);

#endif

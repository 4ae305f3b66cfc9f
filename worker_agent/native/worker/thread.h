/* One round of an I/O thread of the worker: what has come, what may go, how long to sleep. */
#ifndef INART_WORKER_THREAD_H
#define INART_WORKER_THREAD_H

#include "state.h"

/* One round: what has come, what may go. Says how long nothing will happen by itself. */
struct engine_sleep worker_round(struct engine_thread *engine);

/* What was submitted to a thread that had nothing to do is sent by the submitting thread: to wake that one takes longer
 * than to send. It is woken when it sleeps for longer than it may now. */
void worker_send_at_once(struct worker_thread *x);

#endif

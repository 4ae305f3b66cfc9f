/* Runs a round of an I/O thread of the worker: receives, sends, and decides how long to sleep. */
#ifndef INART_WORKER_THREAD_H
#define INART_WORKER_THREAD_H

#include "state.h"

/* Runs one round: handles packets that have come, and sends those that may leave. Returns how long nothing will happen
 * by itself. */
struct engine_sleep worker_round(struct engine_thread *engine);

/* Sends, in the submitting thread, what was submitted to a thread that had nothing to do, because waking that one takes
 * longer than sending. That thread is woken when it sleeps for longer than it may now. */
void worker_send_at_once(struct worker_thread *x);

#endif

/* Handles packets that come to a worker: results, and the root's questions. */
#ifndef INART_WORKER_RECEIVE_H
#define INART_WORKER_RECEIVE_H

#include "state.h"

/* Handles one packet that has come. */
void worker_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now);

#endif

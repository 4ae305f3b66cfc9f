/* Packets that come to a worker: results, and what the root asks for. */
#ifndef INART_WORKER_RECEIVE_H
#define INART_WORKER_RECEIVE_H

#include "state.h"

/* One packet that has come. */
void worker_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now);

#endif

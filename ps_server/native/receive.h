/* Handles packets that come to a parameter server: adds them to their chunk, whose result leaves when it is complete.
 */
#ifndef INART_ROOT_RECEIVE_H
#define INART_ROOT_RECEIVE_H

#include "state.h"

/* Handles one packet that has come. */
void root_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now);

#endif

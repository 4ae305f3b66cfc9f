/* Rounds of an engine in virtual time (virtual.c). */
#ifndef INART_VIRTUAL_H
#define INART_VIRTUAL_H

#include "carried.h"
#include "engine.h"

/* The world of all engines of this library; `host` is the one whose functions are called next. */
INART_PUBLIC void virtual_attach(struct virtual_world *w);

/* One round of an engine. */
INART_PUBLIC struct virtual_sleep virtual_step(void *engine);

/* One round of the only thread. When it wants to be called again; earlier for packets: not before `listen`. */
struct virtual_sleep virtual_round(struct engine_thread *t);

#endif

/* The worker's engine in virtual time. */
#include "virtual.h"

#include "worker.c"

struct virtual_sleep virtual_step(void *worker) { return virtual_round(&((struct inart_worker *)worker)->threads[0].engine); }

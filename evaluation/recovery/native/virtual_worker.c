/* The worker's engine in virtual time. */
#include "virtual.h"
#include "worker/state.h"

struct virtual_sleep virtual_step(void *engine) {
    return virtual_round(&((struct inart_worker *)engine)->threads[0].engine);
}

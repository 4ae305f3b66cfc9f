/* The parameter server's engine in virtual time. */
#include "state.h"
#include "virtual.h"

struct virtual_sleep virtual_step(void *engine) {
    return virtual_round(&((struct inart_root *)engine)->threads[0].engine);
}

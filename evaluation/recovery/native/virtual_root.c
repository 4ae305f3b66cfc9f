/* The parameter server's engine in virtual time. */
#include "virtual.h"

#include "root.c"

struct virtual_sleep virtual_step(void *root) { return virtual_round(&((struct inart_root *)root)->threads[0].engine); }

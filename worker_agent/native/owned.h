/* Descriptors that belong to this process alone. A process that is forked from it (a DataLoader's worker) would keep
 * the sockets open: they stay bound and members of the group when this one has closed them, and every packet is copied
 * into them, for nobody. So a child closes its copies at once. It touches nothing else: the threads that use all this
 * are not in it.
 *
 * Whoever opens a descriptor holds the lock until it has been added; a fork waits for that. */
#ifndef INART_OWNED_H
#define INART_OWNED_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol.h"

/* Two sockets a port, for what comes over links and what stays on the host; what sends the latter, and over further
 * links (at most 7: io.h); and what watches them all. */
#define OWNED_MOST (2 * INART_PORTS_PER_JOB + 2 + 7)

struct owned {                /* zeros: none */
    struct owned *next, **at; /* in the list of all; at: the link that points here */
    unsigned count;
    int descriptor[OWNED_MOST];
};

void owned_lock(void);

void owned_unlock(void);

/* Adds a descriptor; the caller holds the lock. */
void owned_add(struct owned *o, int descriptor);

/* Removes all descriptors, which are about to be closed; the caller holds the lock. It does nothing where there are
 * none. */
void owned_give_up(struct owned *o);

#endif

/* Descriptors that belong to this process alone. A process that is forked from it (a DataLoader's worker) would keep the sockets
 * open: they stay bound and members of the group when this one has closed them, and every packet is copied into them, for nobody.
 * So a child closes its copies at once. It touches nothing else: the threads that use all this are not in it.
 *
 * Whoever opens a descriptor holds the lock until it has been added; a fork waits for that. */
#ifndef INART_OWNED_H
#define INART_OWNED_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol.h"

/* Two sockets a port, for what comes over the link and what stays on the host; what sends the latter, and what watches them all. */
#define OWNED_MOST (2 * INART_PORTS_PER_JOB + 2)

struct owned { /* zeros: none */
    struct owned *next, **at; /* in the list of all; at: the link that points here */
    unsigned count;
    int descriptor[OWNED_MOST];
};

static struct owned *owned_all;
static pthread_mutex_t owned_mutex = PTHREAD_MUTEX_INITIALIZER;

static inline void owned_lock(void) { pthread_mutex_lock(&owned_mutex); }

static inline void owned_unlock(void) { pthread_mutex_unlock(&owned_mutex); }

static void owned_child(void)
{
    for (struct owned *o = owned_all; o; o = o->next)
        for (unsigned i = 0; i < o->count; i++)
            close(o->descriptor[i]);
    owned_all = NULL;
    owned_unlock();
}

__attribute__((constructor)) static void owned_begin(void) { pthread_atfork(owned_lock, owned_unlock, owned_child); }

/* Holding the lock. */
static inline void owned_add(struct owned *o, int descriptor)
{
    if (!o->at) {
        o->next = owned_all;
        o->at = &owned_all;
        if (o->next)
            o->next->at = &o->next;
        owned_all = o;
    }
    if (o->count == OWNED_MOST)
        abort(); /* an engine has more descriptors than this file knows of: never past the end */
    o->descriptor[o->count++] = descriptor;
}

/* Holding the lock: they are about to be closed. Of none: nothing happens. */
static inline void owned_give_up(struct owned *o)
{
    if (!o->at)
        return;
    *o->at = o->next;
    if (o->next)
        o->next->at = o->at;
    *o = (struct owned){0};
}

#endif

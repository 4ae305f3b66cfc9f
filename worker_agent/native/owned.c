/* Descriptors that no forked process keeps (owned.h). */
#include "owned.h"

static struct owned *owned_all;
static pthread_mutex_t owned_mutex = PTHREAD_MUTEX_INITIALIZER;

void owned_lock(void) { pthread_mutex_lock(&owned_mutex); }

void owned_unlock(void) { pthread_mutex_unlock(&owned_mutex); }

static void owned_child(void) {
    for (struct owned *o = owned_all; o; o = o->next)
        for (unsigned i = 0; i < o->count; i++) close(o->descriptor[i]);
    owned_all = NULL;
    owned_unlock();
}

__attribute__((constructor)) static void owned_begin(void) { pthread_atfork(owned_lock, owned_unlock, owned_child); }

void owned_add(struct owned *o, int descriptor) {
    if (!o->at) {
        o->next = owned_all;
        o->at = &owned_all;
        if (o->next) o->next->at = &o->next;
        owned_all = o;
    }
    if (o->count == OWNED_MOST)
        abort(); /* an engine has more descriptors than this file knows of: never past the end */
    o->descriptor[o->count++] = descriptor;
}

void owned_give_up(struct owned *o) {
    if (!o->at) return;
    *o->at = o->next;
    if (o->next) o->next->at = o->at;
    *o = (struct owned){0};
}

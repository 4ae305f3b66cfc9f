#include "peek.h"
#include "worker/state.h"

bool peek_has_done(const void *worker) { return ((const struct inart_worker *)worker)->done != NULL; }

void peek_worker_begin_at(void *worker, uint64_t number) {
    struct worker_thread *x = ((struct inart_worker *)worker)->threads;
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct worker_tree *t = &x->trees[i];
        uint64_t at = number / inart_ways(&t->direction);
        t->base = t->end = t->complete = at - at % t->config.slots;
    }
}

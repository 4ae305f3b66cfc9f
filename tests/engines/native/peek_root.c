#include "peek.h"
#include "state.h"

void peek_root_begin_at(void *root, uint64_t number) {
    struct root_thread *x = ((struct inart_root *)root)->threads;
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct root_tree *t = &x->trees[i];
        uint64_t at = number / inart_ways(&t->direction);
        t->oldest = t->stats.newest = t->evident = t->evident_before = at - at % t->slots;
    }
}

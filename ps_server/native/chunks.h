/* The ring of chunks of a tree, and sets of workers. */
#ifndef INART_ROOT_CHUNKS_H
#define INART_ROOT_CHUNKS_H

#include "state.h"

static inline struct root_cell *root_cell_of(struct root_tree *t, uint64_t sequence) {
    return &t->ring[sequence & t->mask];
}

static inline void root_cell_change(struct root_cell *c, enum cell_event event) {
    c->state = (uint8_t)cell_after((enum cell_state)c->state, event);
}

/* Returns whether chunk `sequence` is complete, or was so long ago that a later one has its cell. */
static inline bool root_is_complete(struct root_tree *t, uint64_t sequence) {
    const struct root_cell *c = root_cell_of(t, sequence);
    return c->owner == sequence + 1 ? cell_is_complete(c->state) : c->owner > sequence + 1;
}

static inline uint32_t *root_values_of(struct root_thread *x, struct root_tree *t, uint64_t sequence) {
    return t->values + (sequence & t->mask) * x->values;
}

static inline uint64_t *root_workers_of(struct root_thread *x, struct root_tree *t, uint64_t sequence) {
    return t->workers + (sequence & t->mask) * x->words;
}

static inline uint32_t root_set_size(const uint64_t *set, uint32_t words) {
    uint32_t size = 0;
    for (uint32_t i = 0; i < words; i++) size += (uint32_t)__builtin_popcountll(set[i]);
    return size;
}

/* The lowest worker of a set that is not empty. */
static inline uint32_t root_set_first(const uint64_t *set, uint32_t words) {
    uint32_t i = 0;
    while (i + 1 < words && !set[i]) i++;
    return 64 * i + (uint32_t)__builtin_ctzll(set[i]);
}

#endif

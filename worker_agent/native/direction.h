/* One tree as two, whose operations do not wait for each other: reductions, and gathers.
 *
 * A reduce-scatter sends all of an array and receives a part of it, an all-gather the other way round; so each leaves
 * the links room for the other. Where the plan says that the links have it, a tree has two directions. Each has
 * sequence numbers, windows and a ring of chunks of its own, at the workers and at the root, as if it were a tree by
 * itself with half of the slots. On the wire chunk s of direction d has the number 2 s + d. So reductions have the even
 * slots of the switches and gathers the odd ones, no slot ever meets both, and within a slot numbers grow as they
 * always did: switches need not know of it.
 */
#ifndef INART_DIRECTION_H
#define INART_DIRECTION_H

#include <stdint.h>

#define INART_DIRECTIONS 2

struct inart_direction {
    uint32_t of, number; /* 2, and 0: reductions, 1: gathers; or 1 and 0: all are one */
};

/* Of a tree that is to have so many; an older controller says 0. */
static inline uint32_t inart_directions(uint32_t configured) {
    return configured == INART_DIRECTIONS ? INART_DIRECTIONS : 1;
}

/* The number on the wire of chunk `sequence`. */
static inline uint32_t inart_on_wire(const struct inart_direction *d, uint64_t sequence) {
    return (uint32_t)(sequence * d->of + d->number);
}

/* The number by which check words know the tree: chunks with the same number in its two directions are different ones.
 */
static inline uint32_t inart_checked_tree(const struct inart_direction *d, uint32_t tree) {
    return tree | d->number << 31;
}

#endif

/* One tree as several, each with windows of its own: directions, and lanes.
 *
 * Directions. A reduce-scatter sends all of an array and receives a part of it, an all-gather the other way round; so
 * each leaves the links room for the other. Where the plan says that the links have it, a tree has two directions,
 * whose operations do not wait for each other: reductions, and gathers.
 *
 * Lanes. A UDP port is one thread's, on the hosts and in a switch of software, so a tree with one port is as fast as
 * one core. A tree that is to be faster has 2, 4, 8 or 16 lanes, each with a port of its own, and each operation is cut
 * over them as over trees.
 *
 * Each lane of each direction has sequence numbers, a window and a ring of chunks of its own, at the workers and at the
 * root, as if it were a tree by itself with its part of the slots. On the wire chunk s of lane l, of k, in direction d,
 * of n, has the number (k s + l) n + d. So each has slots of the switches that no other has, and within a slot numbers
 * grow as they always did: switches need not know of it, and labels are the tree's.
 */
#ifndef INART_DIRECTION_H
#define INART_DIRECTION_H

#include <stdint.h>

#define INART_DIRECTIONS 2
#define INART_LANES 16      /* of a tree, at most: a job has as many ports */
#define INART_LANE_SHIFT 27 /* above it a tree's number has the lane's, and above that the direction's */

struct inart_direction {
    uint32_t of, number; /* 2, and 0: reductions, 1: gathers; or 1 and 0: all are one */
    uint32_t lanes, lane;
};

/* Returns the number of directions of a tree whose configuration says `configured`; an older controller says 0. */
static inline uint32_t inart_directions(uint32_t configured) {
    return configured == INART_DIRECTIONS ? INART_DIRECTIONS : 1;
}

static inline uint32_t inart_lanes(uint32_t configured) {
    return configured >= 2 && configured <= INART_LANES && !(configured & (configured - 1)) ? configured : 1;
}

/* Returns how many directions and lanes a tree has together, a power of two (inart_ways), and the place of one of them
 * (inart_way), which is the remainder of its numbers on the wire modulo inart_ways. */
static inline uint32_t inart_ways(const struct inart_direction *d) { return d->of * d->lanes; }

static inline uint32_t inart_way(const struct inart_direction *d) { return d->lane * d->of + d->number; }

/* Returns the number on the wire of chunk `sequence`. */
static inline uint32_t inart_on_wire(const struct inart_direction *d, uint64_t sequence) {
    return (uint32_t)(sequence * inart_ways(d) + inart_way(d));
}

/* The directions and lanes of one tree in a thread, which lie next to each other. By the remainder of a number on the
 * wire, `at` has the distance from the first of them to the one that the number belongs to; -1: another thread has it.
 */
struct inart_family {
    int8_t at[INART_DIRECTIONS * INART_LANES];
};

static inline struct inart_family inart_family_of_none(void) {
    struct inart_family f;
    for (int i = 0; i < INART_DIRECTIONS * INART_LANES; i++) f.at[i] = -1;
    return f;
}

/* Returns the number of a lane among all lanes of all trees. */
static inline uint32_t inart_lane_number(const struct inart_direction *d, uint32_t tree) {
    return tree | d->lane << INART_LANE_SHIFT;
}

/* Returns the number by which check words know a direction and lane of a tree, so that chunks with the same number in
 * two of them are different ones. */
static inline uint32_t inart_checked_tree(const struct inart_direction *d, uint32_t tree) {
    return inart_lane_number(d, tree) | d->number << 31;
}

#endif

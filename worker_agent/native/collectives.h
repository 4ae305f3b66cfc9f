/* Which chunks of an operation a worker sends, and which it needs (docs/protocol.md, "Beyond all-reduce").
 *
 * The array is one part a worker, `stride` bytes apart. The data chunks of a part of an operation take turns: that with
 * sequence number s belongs to worker s modulo W, or to the source of a broadcast. In a reduce-scatter all add to every
 * chunk and its owner gets the sum; in a gather (all-gather, broadcast) its owner's packet is the chunk and all get it.
 * Whichever way: some chunks, the last among them, are everybody's, so that all windows move and nobody is left behind.
 */
#ifndef INART_COLLECTIVES_H
#define INART_COLLECTIVES_H

#include <stdbool.h>
#include <stdint.h>

enum inart_kind { INART_ALL_REDUCE = 0, INART_REDUCE_SCATTER = 1, INART_GATHER = 2 };

/* The division of an operation's array. `source` is the worker whose array is broadcast; -1: every worker has a part of
 * its own. */
struct inart_layout {
    int32_t kind, source;
    uint32_t index, workers;
    uint64_t stride;
};

static inline bool inart_takes_turns(const struct inart_layout *l) {
    return l->kind != INART_ALL_REDUCE && l->source < 0;
}

static inline uint32_t inart_owner(const struct inart_layout *l, uint64_t sequence) {
    return l->source < 0 ? (uint32_t)(sequence % l->workers) : (uint32_t)l->source;
}

/* Returns the place of data chunk `index` among those with the same owner. */
static inline uint32_t inart_turn(const struct inart_layout *l, uint32_t index) {
    return inart_takes_turns(l) ? index / l->workers : index;
}

/* Returns the period of everybody's chunks: one in so many chunks is everybody's. It is a quarter of the slots, or a
 * little less, so that the chunk is each worker's in turn. If it were always the same worker's, that one would get more
 * of every gather than the others, and more than its link carries. */
static inline uint32_t inart_period(uint32_t slots, uint32_t workers) {
    uint32_t most = slots < 4 ? 1 : slots / 4;
    for (uint32_t period = most; 2 * period > most; period--) {
        uint32_t a = period, b = workers;
        while (b) {
            uint32_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return period;
    }
    return most;
}

/* Returns whether data chunk `index` of `data`, with this sequence number, is everybody's. */
static inline bool inart_everybodys(uint64_t sequence, uint32_t index, uint32_t data, uint32_t period) {
    return index + 1 == data || sequence % period == period - 1;
}

/* Returns how far beyond the oldest unanswered chunk a worker may send one of such an operation. In a gather it is
 * less: a chunk that a worker lacks must still be at the root when the other workers cannot go on without that worker.
 */
static inline uint32_t inart_window(const struct inart_layout *l, uint32_t slots) {
    return l->kind == INART_GATHER && slots >= 4 ? slots - slots / 4 + 1 : slots;
}

#endif

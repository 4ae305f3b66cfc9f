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

/* source: of a broadcast; -1: every worker has its own part. */
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

/* Of the data chunks with this owner, which one data chunk `index` is. */
static inline uint32_t inart_turn(const struct inart_layout *l, uint32_t index) {
    return inart_takes_turns(l) ? index / l->workers : index;
}

/* One in so many chunks is everybody's: a quarter of the slots, or a little less, so that it is each worker's in turn.
 * Were it always the same worker's, that one would get more of every gather than the others, and more than its link
 * carries. */
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

/* Of `data` chunks, is `index`, with this number, everybody's? */
static inline bool inart_everybodys(uint64_t sequence, uint32_t index, uint32_t data, uint32_t period) {
    return index + 1 == data || sequence % period == period - 1;
}

/* How far beyond the oldest unanswered chunk one of an operation of this kind may be sent: what a worker has not got in
 * a gather, the root must still have when the others cannot go on without it. */
static inline uint32_t inart_window(const struct inart_layout *l, uint32_t slots) {
    return l->kind == INART_GATHER && slots >= 4 ? slots - slots / 4 + 1 : slots;
}

#endif

/* The order of a part's chunks: which of its sequence numbers are exponents and which data.
 *
 * Exponents come a window and a little before the data that they are for: when the window lets data go, its exponents have come
 * back. So the array is read once from memory: what the exponents were found from is still in a cache when it is sent. Where
 * chunks take turns (collectives.h) all exponents come first.
 */
#ifndef INART_NUMBERING_H
#define INART_NUMBERING_H

#include <stdint.h>

#define CHECK_VALUES 4 /* at the start of a part's exponents: n, -n, tag, -tag */

enum { EXPONENT, DATA, KINDS };

struct numbering {
    uint32_t exponents, data; /* chunks */
    uint32_t ahead;           /* exponent chunks before all data; the others come one after each `values` chunks of data */
    uint32_t values;          /* of a chunk */
};

/* Of `data` chunks, in a tree of so many slots. */
static inline struct numbering numbering_of(uint32_t data, uint32_t values, uint32_t slots)
{
    uint32_t exponents = (uint32_t)(((uint64_t)data + CHECK_VALUES + values - 1) / values);
    uint32_t ahead = (slots + CHECK_VALUES + values - 1) / values + 1;
    return (struct numbering){exponents, data, ahead < exponents ? ahead : exponents, values};
}

/* Number of exponent or data chunk `index` in the part. */
static inline uint32_t numbering_place(const struct numbering *n, int kind, uint32_t index)
{
    uint32_t late = n->exponents - n->ahead;
    if (kind == EXPONENT)
        return index < n->ahead ? index : index + (index - n->ahead + 1) * n->values;
    return n->ahead + index + (index / n->values < late ? index / n->values : late);
}

/* The chunk with number `place` in the part: its kind, and its index among them. */
static inline int numbering_chunk(const struct numbering *n, uint32_t place, uint32_t *index)
{
    uint32_t late = n->exponents - n->ahead;
    *index = place;
    if (place < n->ahead)
        return EXPONENT;
    uint32_t after = place - n->ahead, rounds = after / (n->values + 1);
    if (rounds < late && after % (n->values + 1) == n->values) {
        *index = n->ahead + rounds;
        return EXPONENT;
    }
    *index = after - (rounds < late ? rounds : late);
    return DATA;
}

#endif

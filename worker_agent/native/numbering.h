/* The order of a part's chunks: which of its sequence numbers are exponents and which data.
 *
 * Exponents come a window and a little before the data that they are for: when the window lets data go, its exponents
 * have come back. So the array is read once from memory: what the exponents were found from is still in a cache when it
 * is sent. Where chunks take turns (collectives.h) all exponents come first.
 */
#ifndef INART_NUMBERING_H
#define INART_NUMBERING_H

#include <stdbool.h>
#include <stdint.h>

/* The number of words at the start of a part's exponents: the operation's size twice, and six that must be the same
 * everywhere. */
#define CHECK_VALUES 8
/* The number of data chunks in a group, which has a word that says whether any of them holds NaN or Inf, and then a
 * word for the exponent of each. */
#define EXPONENT_GROUP 8

enum { EXPONENT, DATA, KINDS };

struct numbering {
    uint32_t exponents, data; /* chunks */
    uint32_t ahead; /* exponent chunks before all data; the others come one after each `each` chunks of data */
    uint32_t each;  /* data chunks for which an exponent chunk has the words at least */
};

/* Returns the words of exponents for so many data chunks. */
static inline uint64_t numbering_words(uint64_t data) { return data + (data + EXPONENT_GROUP - 1) / EXPONENT_GROUP; }

/* Returns the place of data chunk `index`'s exponent among a part's words of exponents. */
static inline uint64_t numbering_exponent(uint32_t index) {
    return CHECK_VALUES + (uint64_t)index / EXPONENT_GROUP * (EXPONENT_GROUP + 1) + 1 + index % EXPONENT_GROUP;
}

/* Sets *index to what the word at a place from CHECK_VALUES on is for. Returns true where that is a data chunk; false
 * where it is a group, of which *index is the first chunk. */
static inline bool numbering_word(uint64_t place, uint64_t *index) {
    uint64_t word = place - CHECK_VALUES, group = word / (EXPONENT_GROUP + 1), in = word % (EXPONENT_GROUP + 1);
    *index = group * EXPONENT_GROUP + (in ? in - 1 : 0);
    return in;
}

/* Returns the numbering of `data` data chunks in a tree of so many slots; `values` is the number of exponents in a
 * packet. */
static inline struct numbering numbering_of(uint32_t data, uint32_t values, uint32_t slots) {
    uint32_t exponents = (uint32_t)((numbering_words(data) + CHECK_VALUES + values - 1) / values);
    uint32_t ahead = (uint32_t)((numbering_words(slots) + CHECK_VALUES + values - 1) / values) + 1;
    uint32_t each = values * EXPONENT_GROUP / (EXPONENT_GROUP + 1);
    return (struct numbering){exponents, data, ahead < exponents ? ahead : exponents, each ? each : 1};
}

/* Returns the number in the part of exponent or data chunk `index`. */
static inline uint32_t numbering_place(const struct numbering *n, int kind, uint32_t index) {
    uint32_t late = n->exponents - n->ahead;
    if (kind == EXPONENT) return index < n->ahead ? index : index + (index - n->ahead + 1) * n->each;
    return n->ahead + index + (index / n->each < late ? index / n->each : late);
}

/* Returns the kind of the chunk with number `place` in the part, and sets *index to its place among those of its kind.
 */
static inline int numbering_chunk(const struct numbering *n, uint32_t place, uint32_t *index) {
    uint32_t late = n->exponents - n->ahead;
    *index = place;
    if (place < n->ahead) return EXPONENT;
    uint32_t after = place - n->ahead, rounds = after / (n->each + 1);
    if (rounds < late && after % (n->each + 1) == n->each) {
        *index = n->ahead + rounds;
        return EXPONENT;
    }
    *index = after - (rounds < late ? rounds : late);
    return DATA;
}

#endif

/* Random numbers of a run: the same seed gives the same run. */
#ifndef TESTS_ENGINES_RANDOM_H
#define TESTS_ENGINES_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_bits(struct random *r) /* splitmix64 */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static inline double random_unit(struct random *r) { return (double)(random_bits(r) >> 11) * 0x1p-53; }

static inline uint64_t random_below(struct random *r, uint64_t n) { return n ? random_bits(r) % n : 0; }

static inline bool random_one_in(struct random *r, uint64_t n) { return !random_below(r, n); }

#endif

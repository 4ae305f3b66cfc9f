/* Values of operations, and what must become of them. */
#ifndef TESTS_ENGINES_VALUES_H
#define TESTS_ENGINES_VALUES_H

#include "job.h"
#include "random.h"

/* Kinds of values: VALUES_NONFINITE has NaN and infinities; VALUES_MIXED has all kinds but these. */
enum values_kind {
    VALUES_COMMON,
    VALUES_ANY_BITS,
    VALUES_SUBNORMAL,
    VALUES_LARGEST,
    VALUES_ZEROS,
    VALUES_FAR_APART,
    VALUES_NEAR_ONE,
    VALUES_POWERS,
    VALUES_NONFINITE,
    VALUES_MIXED,
    VALUES_KINDS
};

/* Fills `bytes` bytes of a worker's array; halves of any bits are finite unless the kind is VALUES_NONFINITE. */
void values_fill(struct random *r, enum values_kind kind, int dtype, uint8_t *to, uint64_t bytes);

/* Computes the result of an operation, by scalar code and in the order of the definitions (docs/protocol.md), from the
 * workers' arrays `in`. Returns 0, or -1: a word of a sum wrapped. */
int values_result(const struct shape *shape, const struct operation *o, uint8_t *const *in, uint8_t *to);

/* Returns whether none of these values of a floating-point type is NaN or infinite. */
bool values_finite(const uint8_t *at, int dtype, uint64_t elements);

/* Returns whether two arrays have the same bits, but for those of a NaN. */
bool values_same(const uint8_t *a, const uint8_t *b, int dtype, uint64_t elements);

#endif

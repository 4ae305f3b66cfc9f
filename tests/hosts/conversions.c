/* The engine's own conversions, callable one by one, for tests against worker_agent/fixedpoint.py and fields.py; and
 * the order in which a tree carries an operation's chunks (test_numbering.py). */
#define _GNU_SOURCE
#include "collectives.h"
#include "fields.h"
#include "numbering.h"
#include "numbers.h"
#include "packet.h"
#include "pairs.h"

int32_t conversions_exponent(const void *data, size_t n, int dtype) {
    float scratch[INART_MAX_VALUES];
    return inart_exponent(inart_load(data, n, dtype, scratch), n);
}

int32_t conversions_fields_exponent(const struct inart_fields *f, const void *data, size_t n, int dtype) {
    float scratch[INART_MAX_VALUES];
    return inart_fields_exponent(f, inart_load(data, n, dtype, scratch), n);
}

void conversions_quantise(const void *data, size_t n, int dtype, int32_t biased, int workers, uint32_t *wire) {
    float scratch[INART_MAX_VALUES];
    inart_quantise(inart_load(data, n, dtype, scratch), n, n, biased, (uint32_t)workers, wire);
}

void conversions_dequantise(const uint32_t *wire, size_t n, int32_t biased, int workers, int mean, int dtype,
                            void *data) {
    float scratch[INART_MAX_VALUES];
    inart_dequantise(wire, n, biased, (uint32_t)workers, mean ? (float)workers : 1.0f, scratch);
    inart_store(scratch, n, dtype, data);
}

/* bfloat16 in pairs, for chunks of packets of so many values: the exponent, and unless they do not fit (-1) whether the
 * check word's sum is right (1), with the words of `x` in `wire`, and the values of `sums` in `back`. */
int conversions_pairs(const struct inart_fields *f, const uint16_t *x, size_t values, int32_t biased, int mean,
                      int32_t *exponent, uint32_t *wire, const uint32_t *sums, uint16_t *back) {
    static const uint8_t key[CHECK_KEY_BYTES] = {1, 2, 3};
    float scratch[INART_MAX_VALUES * 2];
    size_t words = INART_DATA_VALUES(values);
    *exponent = inart_pairs_exponent(f, x, 2 * words, scratch);
    if (!inart_pairs_fit(f, INART_BFLOAT16, 2 * words, words, biased)) return -1;
    struct check *k = check_make(key, f->workers, (uint32_t)values);
    uint64_t sum = inart_pairs_quantise(f, k, x, biased, wire);
    int right = check_modulo(k, sum) == check_modulo(k, check_sum(k, wire));
    inart_pairs_dequantise(f, k, sums, biased, mean ? (float)f->workers : 1.0f, back);
    check_free(k);
    return right;
}

uint32_t numbering_period(uint32_t slots, uint32_t workers) { return inart_period(slots, workers); }

/* Returns the kind (0: exponents, 1: data) of the chunk with number `place` in a part of an all-reduce with `data`
 * chunks of data, and sets *index to its place among those of its kind. */
int numbering_kind(uint32_t data, uint32_t values, uint32_t slots, uint32_t place, uint32_t *index) {
    struct numbering n = numbering_of(data, values, slots);
    return numbering_chunk(&n, place, index);
}

/* Returns the number in the part of chunk `index` of a kind. */
uint32_t numbering_number(uint32_t data, uint32_t values, uint32_t slots, int kind, uint32_t index) {
    struct numbering n = numbering_of(data, values, slots);
    return numbering_place(&n, kind, index);
}

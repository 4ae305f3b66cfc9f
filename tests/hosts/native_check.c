/* Doors to worker_agent/native/check.h for tests (native_check.py). */
#include "checked_numbers.h"
#include "checked_stream.h"

struct check *checks_make(const uint8_t *key, uint32_t workers, uint32_t values) {
    return check_make(key, workers, values);
}

void checks_free(struct check *k) { check_free(k); }

uint32_t checks_prime(const struct check *k) { return k->prime; }

static uint32_t mask_of(const struct check *k, const uint32_t *workers, uint32_t count, uint32_t tree, uint32_t kind,
                        uint64_t sequence) {
    struct check_recent masks[CHECK_MASKS] = {0};
    uint64_t set[(INART_MAX_WORKERS + 63) / 64] = {0};
    for (uint32_t i = 0; i < count; i++) set[workers[i] / 64] |= 1ull << workers[i] % 64;
    uint32_t mask = check_mask(k, masks, tree, kind, sequence, set, sizeof set / sizeof *set);
    return count == 1 ? check_own_mask(k, (struct check_recent[2]){0}, *workers, tree, kind, sequence) : mask;
}

/* Writes the check word of the sum of these workers' contributions (a set) into a packet's words, as they are on the
 * wire. */
void checks_write(const struct check *k, uint32_t *wire, const uint32_t *workers, uint32_t count, uint32_t tree,
                  uint32_t kind, uint64_t sequence) {
    uint32_t mask = mask_of(k, workers, count, tree, kind, sequence);
    wire[k->values - 1] = __builtin_bswap32(check_word(k, check_sum(k, wire), mask));
}

int checks_right(const struct check *k, const uint32_t *wire, const uint32_t *workers, uint32_t count, uint32_t tree,
                 uint32_t kind, uint64_t sequence) {
    return check_right(k, wire, check_sum(k, wire), mask_of(k, workers, count, tree, kind, sequence));
}

uint32_t checks_result(const struct check *k, const uint32_t *wire, uint32_t tree, uint32_t kind, uint64_t sequence,
                       uint32_t complete) {
    struct check_results results = {0};
    uint64_t sum = kind & INART_FLAG_MAXIMUM ? 0 : check_sum(k, wire);
    return check_result(k, &results, sum, tree, kind, sequence, complete);
}

uint32_t checks_question(const struct check *k, const uint32_t *wire, uint32_t flags, uint32_t attempt, uint32_t count,
                         uint32_t tree, uint32_t sequence, uint32_t complete) {
    struct inart_header h = {.flags = (uint8_t)flags, .sequence = sequence, .bitmap = (uint64_t)complete << 32 | count};
    return check_question(k, wire, &h, tree, attempt);
}

uint32_t checks_exponent(const struct check *k, uint32_t tree, uint64_t sequence, uint32_t position,
                         uint32_t exponent) {
    uint32_t n = INART_EXPONENT_WORDS(k->values), exponents[CHECK_LANES] = {exponent}, words[CHECK_LANES],
             again[CHECK_LANES];
    check_code_words(k, tree, sequence, position % n, 1, exponents, words, again);
    return position < n ? *words : *again;
}

int checks_maximum_right(const struct check *k, const uint32_t *wire, uint32_t tree, uint64_t sequence) {
    return check_maximum_right(k, wire, tree, sequence);
}

/* Whether numbers and check word in one pass are, bit by bit, what both give one after the other: a packet's words, and
 * values from them. */
int checks_one_pass(const struct check *k, const float *x, int32_t biased, float divisor) {
    uint32_t one[INART_MAX_VALUES] = {0}, two[INART_MAX_VALUES] = {0};
    float from_one[INART_MAX_VALUES] = {0}, from_two[INART_MAX_VALUES] = {0};
    size_t n = INART_DATA_VALUES(k->values);
    uint32_t sum = check_modulo(k, checked_quantise(k, x, n, biased, one)), back;
    inart_quantise(x, n, n, biased, k->workers, two);
    back = check_modulo(k, checked_dequantise(k, two, n, biased, divisor, from_one));
    inart_dequantise(two, n, biased, k->workers, divisor, from_two);
    one[n] = two[n] = 0;
    return !memcmp(one, two, sizeof one) && !memcmp(from_one, from_two, n * sizeof *from_one) &&
           sum == check_modulo(k, check_sum(k, two)) && back == sum;
}

/* Whether words streamed and their check word in one pass are what both give one after the other. There is room for
 * them at `to`. */
int checks_streamed(const struct check *k, const uint32_t *wire, uint32_t *to) {
    uint32_t sum = check_modulo(k, checked_stream(k, wire, to));
    inart_stream_end();
    return !memcmp(to, wire, k->values * sizeof *wire) && sum == check_modulo(k, check_sum(k, wire));
}

void checks_seal_exponents(const struct check *k, uint32_t *wire, uint32_t first, uint32_t tree, uint64_t sequence) {
    check_seal_exponents(k, tree, sequence, first, wire);
}

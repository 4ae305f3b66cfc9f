/* What engines do without the check, to measure what it costs (evaluation/hosts/check_cost.py): the same
 * passes over a packet's numbers as with it (checked_numbers.h), less the check's part of them.
 */
#ifndef INART_UNCHECKED_H
#define INART_UNCHECKED_H

#include "checked_numbers.h"

#ifdef CHECK_VECTORS
CHECK_INLINE void unchecked_quantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                          const void *with) {
    const struct checked_quantiser *q = with;
    (void)s, (void)low, (void)high;
    checked_store(q->wire + j, check_swap(checked_fixed(q->x + j, last, q->scale, q->most)));
}

CHECK_INLINE void unchecked_dequantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j,
                                            bool last, const void *with) {
    const struct checked_dequantiser *d = with;
    (void)s, (void)low, (void)high;
    checked_float(d->x + j, check_swap(check_load(d->wire + j)), last, d->scale, 1.0f);
}

CHECK_INLINE void unchecked_mean_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                      const void *with) {
    const struct checked_dequantiser *d = with;
    (void)s, (void)low, (void)high;
    checked_float(d->x + j, check_swap(check_load(d->wire + j)), last, d->scale, d->divisor);
}

CHECK_PASS void unchecked_quantise_pass(const struct check *k, const struct checked_quantiser *given) {
    const struct checked_quantiser q = *given;
    check_pass(k->low, k->high, k->wide, k->values, unchecked_quantise_step, &q);
}

CHECK_PASS void unchecked_dequantise_pass(const struct check *k, const struct checked_dequantiser *given) {
    const struct checked_dequantiser d = *given;
    if (d.divisor == 1.0f)
        check_pass(k->low, k->high, k->wide, k->values, unchecked_dequantise_step, &d);
    else
        check_pass(k->low, k->high, k->wide, k->values, unchecked_mean_step, &d);
}
#endif

/* checked_quantise without the check. */
static inline void unchecked_quantise(const struct check *k, const float *restrict x, size_t n, int32_t biased,
                                      uint32_t *restrict wire) {
#ifdef CHECK_VECTORS
    int bits = inart_fraction_bits((int)k->workers), shift = bits - (biased - INART_EXPONENT_BIAS);
    if (checked_one_pass(k, n, biased, shift)) {
        const struct checked_quantiser q = {x, wire, inart_power(shift), inart_power(bits)};
        unchecked_quantise_pass(k, &q);
        return;
    }
#endif
    inart_quantise(x, n, INART_DATA_VALUES(k->values), biased, k->workers, wire);
}

static inline void unchecked_dequantise(const struct check *k, const uint32_t *restrict wire, size_t n, int32_t biased,
                                        float divisor, float *restrict x) {
#ifdef CHECK_VECTORS
    int shift = biased - INART_EXPONENT_BIAS - inart_fraction_bits((int)k->workers);
    if (checked_one_pass(k, n, biased, shift)) {
        const struct checked_dequantiser d = {wire, x, inart_power(shift), divisor};
        unchecked_dequantise_pass(k, &d);
        return;
    }
#endif
    inart_dequantise(wire, n, biased, k->workers, divisor, x);
}

static inline void unchecked_exponents(const struct check *k, uint32_t first, uint32_t *wire) {
    for (uint32_t j = first, n = INART_EXPONENT_WORDS(k->values); j < n; j++)
        wire[j] = wire[j + n] = __builtin_bswap32(wire[j] << CHECK_CODE_BITS);
}

#endif

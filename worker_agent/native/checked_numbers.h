/* Computes numbers and their check words in one pass: the same as numbers.h and check.h one after the other give, at a
 * fraction of the time. A worker spends half a microsecond on a packet, and another pass over words that were just
 * written costs a tenth of it. */
#ifndef INART_CHECKED_NUMBERS_H
#define INART_CHECKED_NUMBERS_H

#include "check.h"
#include "numbers.h"

/* 2^e may be beyond float32 for tiny exponents; those chunks, few as they are, take two passes. */
static inline bool checked_one_pass(const struct check *k, size_t n, int32_t biased, int shift) {
    return n + INART_CHECK_WORDS == k->values && k->values % 16 == 0 && biased > 0 && biased < INART_NONFINITE &&
           shift >= -126 && shift <= 127;
}

#ifdef CHECK_VECTORS
#if CHECK_WIDTH == 16
/* Returns a vector of values as fixed point. With `last` the vector's last value is left out, because the check word
 * takes its place. */
static inline check_vector checked_fixed(const float *x, bool last, float scale, float most) {
    __m512 f = _mm512_mul_ps(last ? _mm512_maskz_loadu_ps(0x7fff, x) : _mm512_loadu_ps(x), _mm512_set1_ps(scale));
    f = _mm512_range_ps(f, _mm512_set1_ps(most),
                        2); /* the less in magnitude, with the sign of f: what is too large is `most` */
    return _mm512_cvtps_epi32(f);
}

static inline void checked_float(float *x, check_vector v, bool last, float scale, float divisor) {
    __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(scale));
    if (divisor != 1.0f) f = _mm512_div_ps(f, _mm512_set1_ps(divisor));
    if (last) /* masked stores take long */
        _mm512_mask_storeu_ps(x, 0x7fff, f);
    else
        _mm512_storeu_ps(x, f);
}

static inline void checked_store(uint32_t *wire, check_vector v) { _mm512_storeu_si512(wire, v); }
#else
static inline __m256i checked_last(void) { return _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, -1, 0); }

static inline check_vector checked_fixed(const float *x, bool last, float scale, float most) {
    __m256 f = _mm256_mul_ps(last ? _mm256_maskload_ps(x, checked_last()) : _mm256_loadu_ps(x), _mm256_set1_ps(scale));
    f = _mm256_min_ps(_mm256_max_ps(f, _mm256_set1_ps(-most)), _mm256_set1_ps(most));
    return _mm256_cvtps_epi32(f);
}

static inline void checked_float(float *x, check_vector v, bool last, float scale, float divisor) {
    __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(scale));
    if (divisor != 1.0f) f = _mm256_div_ps(f, _mm256_set1_ps(divisor));
    if (last)
        _mm256_maskstore_ps(x, checked_last(), f);
    else
        _mm256_storeu_ps(x, f);
}

static inline void checked_store(uint32_t *wire, check_vector v) { _mm256_storeu_si256((__m256i *)(void *)wire, v); }
#endif

/* The data that a pass over a packet reads and writes. */
struct checked_quantiser {
    const float *x;
    uint32_t *wire;
    float scale, most;
};

CHECK_INLINE void checked_quantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                        const void *with) {
    const struct checked_quantiser *q = with;
    check_vector v = checked_fixed(q->x + j, last, q->scale, q->most);
    check_take(s, low, high, v, j);
    checked_store(q->wire + j, check_swap(v));
}

struct checked_dequantiser {
    const uint32_t *wire;
    float *x, scale, divisor;
};

CHECK_INLINE void checked_dequantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                          const void *with) {
    const struct checked_dequantiser *d = with;
    check_vector v = check_swap(check_load(d->wire + j));
    check_take(s, low, high, v, j);
    checked_float(d->x + j, v, last, d->scale, 1.0f);
}

CHECK_INLINE void checked_mean_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                    const void *with) {
    const struct checked_dequantiser *d = with;
    check_vector v = check_swap(check_load(d->wire + j));
    check_take(s, low, high, v, j);
    checked_float(d->x + j, v, last, d->scale, d->divisor);
}

CHECK_PASS uint64_t checked_quantise_pass(const struct check *k, const struct checked_quantiser *given) {
    const struct checked_quantiser q = *given;
    const uint64_t offset = k->offset; /* before what is written, which could be *k for all that compilers know */
    return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, checked_quantise_step, &q) + offset;
}

CHECK_PASS uint64_t checked_dequantise_pass(const struct check *k, const struct checked_dequantiser *given) {
    const struct checked_dequantiser d = *given;
    const uint64_t offset = k->offset;
    if (d.divisor == 1.0f)
        return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, checked_dequantise_step, &d) + offset;
    return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, checked_mean_step, &d) + offset;
}
#endif

/* Does the same as inart_quantise, and returns check_sum of the words that it wrote. */
static inline uint64_t checked_quantise(const struct check *k, const float *restrict x, size_t n, int32_t biased,
                                        uint32_t *restrict wire) {
#ifdef CHECK_VECTORS
    int bits = inart_fraction_bits((int)k->workers), shift = bits - (biased - INART_EXPONENT_BIAS);
    if (checked_one_pass(k, n, biased, shift)) {
        const struct checked_quantiser q = {x, wire, inart_power(shift), inart_power(bits)};
        return checked_quantise_pass(k, &q);
    }
#endif
    inart_quantise(x, n, INART_DATA_VALUES(k->values), biased, k->workers, wire);
    return check_sum(k, wire);
}

/* Does the same as inart_dequantise, and returns check_sum of the words that it read. Where that turns out to be wrong,
 * `x` holds nothing of use. */
static inline uint64_t checked_dequantise(const struct check *k, const uint32_t *restrict wire, size_t n,
                                          int32_t biased, float divisor, float *restrict x) {
#ifdef CHECK_VECTORS
    int shift = biased - INART_EXPONENT_BIAS - inart_fraction_bits((int)k->workers);
    if (checked_one_pass(k, n, biased, shift) && shift <= INART_SAFE_SHIFT) {
        const struct checked_dequantiser d = {wire, x, inart_power(shift), divisor};
        return checked_dequantise_pass(k, &d);
    }
#endif
    inart_dequantise(wire, n, biased, k->workers, divisor, x);
    return check_sum(k, wire);
}

#endif

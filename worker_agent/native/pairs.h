/* Converts bfloat16, two in a word, straight from the array to the packet's words and back: the same bits as numbers.h,
 * fields.h and check.h give by way of an array of float32, in a fifth of the time. It is for whole chunks of finite
 * values; all others take the other way. */
#ifndef INART_PAIRS_H
#define INART_PAIRS_H

#include "check.h"
#include "fields.h"

static inline bool inart_pairs_fit(const struct inart_fields *f, int dtype, size_t n, size_t words, int32_t biased) {
    int shift = f->fraction_bits - (biased - INART_EXPONENT_BIAS);
    return dtype == INART_BFLOAT16 && f->count == 2 && !f->stochastic && n == 2 * words && biased > 0 &&
           biased < INART_NONFINITE && shift <= 126 && shift >= -INART_SAFE_SHIFT;
}

/* Returns the same as inart_fields_exponent, of bfloat16 values. */
static inline int32_t inart_pairs_exponent(const struct inart_fields *f, const uint16_t *restrict x, size_t n,
                                           float *restrict scratch) {
    int16_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int16_t m = (int16_t)(x[i] & 0x7fff);
        most = m > most ? m : most;
    }
    if (most < 0x7f80) return inart_fields_exponent_of(f, inart_from_bfloat((uint16_t)most));
    return inart_fields_exponent(f, inart_load(x, n, INART_BFLOAT16, scratch), n);
}

#ifdef CHECK_VECTORS
#if CHECK_WIDTH == 16
/* Returns values as fixed point. With `last` the vector's last value is left out, because the check word takes its
 * place. */
static inline check_vector pairs_fixed(const uint16_t *x, bool last, float scale, float most) {
    __m256i h = last ? _mm256_maskz_loadu_epi16(0x7fff, x) : _mm256_loadu_si256((const __m256i *)(const void *)x);
    __m512 f = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    f = _mm512_range_ps(_mm512_mul_ps(f, _mm512_set1_ps(scale)), _mm512_set1_ps(most), 2);
    return _mm512_cvtps_epi32(f);
}

static inline check_vector pairs_join(check_vector low, check_vector high) {
    return _mm512_add_epi32(low, _mm512_slli_epi32(high, 16));
}

static inline void pairs_wire(uint32_t *wire, check_vector v) { _mm512_storeu_si512(wire, check_swap(v)); }

/* Return the lower half, and the upper half, of each word as a field without a sign. */
static inline check_vector pairs_low(check_vector both) { return _mm512_and_si512(both, _mm512_set1_epi32(0xffff)); }
static inline check_vector pairs_high(check_vector both) { return _mm512_srli_epi32(both, 16); }

static inline check_vector pairs_both(check_vector v) {
    return _mm512_add_epi32(v, _mm512_set1_epi32((int32_t)0x80008000u));
}

/* Returns fields as bfloat16, in the lower halves of the words. */
static inline check_vector pairs_round(check_vector q, float scale, float divisor) {
    __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(0x8000))), _mm512_set1_ps(scale));
    if (divisor != 1.0f) f = _mm512_div_ps(f, _mm512_set1_ps(divisor));
    check_vector bits = _mm512_castps_si512(f),
                 odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
}

static inline void pairs_store(uint16_t *low, uint16_t *high, check_vector of_low, check_vector of_high) {
    _mm256_storeu_si256((__m256i *)(void *)low, _mm512_cvtepi32_epi16(of_low));
    _mm256_storeu_si256((__m256i *)(void *)high, _mm512_cvtepi32_epi16(of_high));
}
#else
static inline check_vector pairs_fixed(const uint16_t *x, bool last, float scale, float most) {
    uint16_t seven[8] = {0};
    if (last) memcpy(seven, x, 14);
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(last ? seven : x));
    __m256 f = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    f = _mm256_mul_ps(f, _mm256_set1_ps(scale));
    f = _mm256_min_ps(_mm256_max_ps(f, _mm256_set1_ps(-most)), _mm256_set1_ps(most));
    return _mm256_cvtps_epi32(f);
}

static inline check_vector pairs_join(check_vector low, check_vector high) {
    return _mm256_add_epi32(low, _mm256_slli_epi32(high, 16));
}

static inline void pairs_wire(uint32_t *wire, check_vector v) {
    _mm256_storeu_si256((__m256i *)(void *)wire, check_swap(v));
}

static inline check_vector pairs_low(check_vector both) { return _mm256_and_si256(both, _mm256_set1_epi32(0xffff)); }
static inline check_vector pairs_high(check_vector both) { return _mm256_srli_epi32(both, 16); }

static inline check_vector pairs_both(check_vector v) {
    return _mm256_add_epi32(v, _mm256_set1_epi32((int32_t)0x80008000u));
}

static inline check_vector pairs_round(check_vector q, float scale, float divisor) {
    __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(0x8000))), _mm256_set1_ps(scale));
    if (divisor != 1.0f) f = _mm256_div_ps(f, _mm256_set1_ps(divisor));
    check_vector bits = _mm256_castps_si256(f),
                 odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}

static inline void pairs_store(uint16_t *low, uint16_t *high, check_vector of_low, check_vector of_high) {
    check_vector h = _mm256_permute4x64_epi64(_mm256_packus_epi32(of_low, of_high), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)low, _mm256_castsi256_si128(h));
    _mm_storeu_si128((__m128i *)(void *)high, _mm256_extracti128_si256(h, 1));
}
#endif

/* The data that a pass over a packet reads and writes. */
struct pairs_quantiser {
    const uint16_t *x;
    size_t words;
    uint32_t *wire;
    float scale, most;
};

CHECK_INLINE void pairs_quantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                      const void *with) {
    const struct pairs_quantiser *q = with;
    check_vector v = pairs_join(pairs_fixed(q->x + j, false, q->scale, q->most),
                                pairs_fixed(q->x + q->words + j, last, q->scale, q->most));
    check_take(s, low, high, v, j);
    pairs_wire(q->wire + j, v);
}

CHECK_PASS uint64_t pairs_quantise_pass(const struct check *k, const struct pairs_quantiser *given) {
    const struct pairs_quantiser q = *given;
    const uint64_t offset = k->offset; /* before what is written, which could be *k for all that compilers know */
    return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, pairs_quantise_step, &q) + offset;
}

struct pairs_dequantiser {
    const uint32_t *wire;
    size_t words;
    uint16_t *x;
    float scale, divisor;
};

CHECK_INLINE void pairs_values(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j,
                               const struct pairs_dequantiser *d, float divisor) {
    check_vector v = check_swap(check_load(d->wire + j)), both = pairs_both(v);
    check_take(s, low, high, v, j);
    pairs_store(d->x + j, d->x + d->words + j, pairs_round(pairs_low(both), d->scale, divisor),
                pairs_round(pairs_high(both), d->scale, divisor));
}

CHECK_INLINE void pairs_dequantise_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                        const void *with) {
    (void)last;
    pairs_values(s, low, high, j, with, 1.0f);
}

CHECK_INLINE void pairs_mean_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                  const void *with) {
    (void)last;
    pairs_values(s, low, high, j, with, ((const struct pairs_dequantiser *)with)->divisor);
}

CHECK_PASS uint64_t pairs_dequantise_pass(const struct check *k, const struct pairs_dequantiser *given) {
    const struct pairs_dequantiser d = *given;
    const uint64_t offset = k->offset;
    if (d.divisor == 1.0f)
        return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, pairs_dequantise_step, &d) + offset;
    return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, pairs_mean_step, &d) + offset;
}

/* Returns whether vectors divide a packet's words evenly, so that the last word of the last vector is the check word.
 */
static inline bool inart_pairs_vectors(const struct check *k) { return k->values % 16 == 0; }
#else
static inline bool inart_pairs_vectors(const struct check *k) { return (void)k, false; }
#endif

/* Does the same as inart_fields_quantise with all values of a chunk, and returns check_sum of the words that it wrote.
 */
static inline uint64_t inart_pairs_quantise(const struct inart_fields *f, const struct check *k,
                                            const uint16_t *restrict x, int32_t biased, uint32_t *restrict wire) {
    const float scale = inart_power(f->fraction_bits - (biased - INART_EXPONENT_BIAS)), most = f->most;
    const size_t words = INART_DATA_VALUES(k->values);
#ifdef CHECK_VECTORS
    if (inart_pairs_vectors(k)) {
        const struct pairs_quantiser q = {x, words, wire, scale, most};
        return pairs_quantise_pass(k, &q);
    }
#endif
    for (size_t j = 0; j < words; j++) {
        uint32_t low = inart_fixed(inart_from_bfloat(x[j]) * scale, most),
                 high = inart_fixed(inart_from_bfloat(x[words + j]) * scale, most);
        wire[j] = __builtin_bswap32(low + (high << 16));
    }
    return check_sum(k, wire);
}

/* Converts a packet's word to its two values. */
static inline void inart_pairs_word(uint32_t wire, float scale, float divisor, uint16_t *low, uint16_t *high) {
    uint32_t both = __builtin_bswap32(wire) + 0x80008000u;
    *low = inart_to_bfloat((float)((int32_t)(both & 0xffff) - 0x8000) * scale / divisor);
    *high = inart_to_bfloat((float)((int32_t)(both >> 16) - 0x8000) * scale / divisor);
}

/* Does the same as inart_fields_dequantise with all values of a chunk, as bfloat16, and returns check_sum of the words
 * that it read. Where that turns out to be wrong, `x` holds nothing of use. `x` has room for two values of each word of
 * a packet, the check word included. */
static inline uint64_t inart_pairs_dequantise(const struct inart_fields *f, const struct check *k,
                                              const uint32_t *restrict wire, int32_t biased, float divisor,
                                              uint16_t *restrict x) {
    const float scale = inart_power(biased - INART_EXPONENT_BIAS - f->fraction_bits);
    const size_t words = INART_DATA_VALUES(k->values);
#ifdef CHECK_VECTORS
    if (inart_pairs_vectors(k)) {
        const struct pairs_dequantiser d = {wire, words, x, scale, divisor};
        uint64_t sum = pairs_dequantise_pass(k, &d);
        uint16_t beyond; /* the check word's lower half has taken the place of the first word's upper one */
        inart_pairs_word(wire[0], scale, divisor, &beyond, x + words);
        return sum;
    }
#endif
    for (size_t j = 0; j < words; j++) inart_pairs_word(wire[j], scale, divisor, x + j, x + words + j);
    return check_sum(k, wire);
}

#endif

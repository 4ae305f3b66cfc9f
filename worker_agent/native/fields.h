/* Several values in a word of 32 bits (docs/protocol.md, "Fields in words"; worker_agent/fields.py is the reference in
 * numpy, which must give the same bits).
 *
 * A word of n fields of w = 32 / n bits each (rounded down) is the number
 *
 *     word = sum_i q_i * 2^(w i),   |q_i| <= M = (2^(w-1) - 1) / W, rounded down
 *
 * for W workers. The chunk's exponent e is such that no value is above M steps of 2^(e-F), with F the bits of M: else
 * values near 2^e would be cut off if W is a power of two, which has a mean error. The sum of W such words is the same
 * expression of the sums Q_i of the fields, and |Q_i| < 2^(w-1): so each Q_i can be told from the word, and |word| <
 * 2^(nw - 1): it wraps nowhere, and neither switches, nor the root, nor the check word need to know that there are
 * fields. With 2^(w-1) added to each field, none is negative, and they are the word's bits.
 *
 * Of a chunk with N words, value v is in word v modulo N, field v / N.
 */
#ifndef INART_FIELDS_H
#define INART_FIELDS_H

#include <stdbool.h>

#include "numbers.h"

#define INART_MOST_FIELDS 4

/* The encoding of values. `count` is the number of fields in a word; with 1 the word is the value's, and numbers.h has
 * its form. A step is 2^(e-F), with the chunk's exponent e and F `fraction_bits`. A value is at most `most` steps. */
struct inart_fields {
    uint32_t count, width, workers;
    int32_t fraction_bits;
    float most;
    uint32_t stochastic,
        key; /* rounded up or down by numbers that follow from the key and the value's position; else to nearest even */
};

/* A permutation of 32-bit numbers that leaves no visible pattern (Wellons, "Prospecting for hash functions"). */
static inline uint32_t inart_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static inline struct inart_fields inart_fields_of(uint32_t count, uint32_t workers, bool stochastic, uint64_t seed,
                                                  uint32_t worker) {
    struct inart_fields f = {.count = count, .width = 32 / count, .workers = workers, .stochastic = stochastic};
    uint32_t most = ((1u << (f.width - 1)) - 1) / workers;
    f.fraction_bits = most ? 32 - __builtin_clz(most) : 0;
    f.most = (float)most;
    f.key = inart_mix(inart_mix(inart_mix((uint32_t)seed) ^ (uint32_t)(seed >> 32)) + worker);
    return f;
}

/* Returns the biased exponent that values of this largest magnitude need: the least with which none is above `most`
 * steps. */
static inline int32_t inart_fields_exponent_of(const struct inart_fields *f, float largest) {
    int32_t biased = inart_exponent_of(largest);
    if (f->count == 1 || !biased) return biased;
    double wide = largest; /* normal, whatever the float is */
    uint64_t bits;
    memcpy(&bits, &wide, sizeof bits);
    bits = (bits & 0xfffffffffffffull) | 0x3fe0000000000000ull; /* the significand, from 1/2 to 1: largest / 2^e */
    memcpy(&wide, &bits, sizeof bits);
    return biased + (wide > f->most * inart_power(-f->fraction_bits));
}

/* Returns the biased exponent that `n` values need. */
static inline int32_t inart_fields_exponent(const struct inart_fields *f, const float *restrict x, size_t n) {
    int32_t flag;
    float largest = inart_largest(x, n, &flag);
    return flag + inart_fields_exponent_of(f, largest);
}

/* 2^shift as two factors, because it may be beyond float32 for the least exponents and for the greatest. */
struct inart_scale {
    float first, second;
};

static inline struct inart_scale inart_fields_scale(const struct inart_fields *f, int32_t biased) {
    int shift = f->fraction_bits - (biased - INART_EXPONENT_BIAS);
    int first = shift > 127 ? 127 : shift < -126 ? -126 : shift;
    return (struct inart_scale){inart_power(first), inart_power(shift - first)};
}

/* Converts a value to an integer, rounded to nearest even (inart_nearest), or rounded up with the probability of the
 * fraction that is lost, in 256 equal steps. */
static inline int32_t inart_nearest(float value, struct inart_scale s, float most) {
    return (int32_t)inart_fixed(value * s.first * s.second, most);
}

static inline int32_t inart_random(float value, struct inart_scale s, float most, uint32_t key, uint32_t position) {
    float scaled = value * s.first * s.second,
          up = (float)(2 * (inart_mix(key + position * 0x9e3779b1u) >> 24) + 1) * (1.0f / 512);
    scaled = scaled > -most ? scaled : -most;
    return (int32_t)floorf((scaled < most ? scaled : most) + up);
}

/* Writes n values, the first of which is at `position` of the array, as `words` words. */
static inline void inart_fields_quantise(const struct inart_fields *f, const float *restrict x, size_t n, size_t words,
                                         int32_t biased, uint32_t position, uint32_t *restrict wire) {
    memset(wire, 0, words * 4);
    if (biased == 0) return;
    bool mixed = biased >= INART_NONFINITE;
    struct inart_mixed m = inart_mixed_of(f->workers, f->width);
    struct inart_scale scale = inart_fields_scale(f, mixed ? INART_EXPONENT_BIAS : biased);
    double mixed_scale = inart_mixed_scale(&m, mixed ? biased - INART_NONFINITE : 0);
    const float most = f->most;
    const uint32_t key = f->key;
    for (uint32_t i = 0; i * words < n; i++) {
        const float *restrict v = x + i * words;
        const size_t here = n - i * words < words ? n - i * words : words;
        const uint32_t left = i * f->width, first = position + (uint32_t)(i * words);
        if (mixed)
            for (size_t j = 0; j < here; j++) wire[j] += inart_mixed_word(&m, v[j], mixed_scale) << left;
        else if (f->stochastic)
            for (size_t j = 0; j < here; j++)
                wire[j] += (uint32_t)inart_random(v[j], scale, most, key, first + (uint32_t)j) << left;
        else
            for (size_t j = 0; j < here; j++) wire[j] += (uint32_t)inart_nearest(v[j], scale, most) << left;
    }
    for (size_t j = 0; j < words; j++) wire[j] = __builtin_bswap32(wire[j]);
}

/* Computes the part of each value that does not travel, for the next time. For a chunk with NaN or infinities it is 0.
 */
static inline void inart_fields_residual(const struct inart_fields *f, const float *restrict x, size_t n,
                                         int32_t biased, uint32_t position, float *restrict residual) {
    struct inart_scale scale =
        inart_fields_scale(f, biased >= INART_NONFINITE || !biased ? INART_EXPONENT_BIAS : biased);
    double step = ldexp(1.0, biased - INART_EXPONENT_BIAS - f->fraction_bits);
    if (biased >= INART_NONFINITE || !biased)
        memset(residual, 0, n * sizeof *residual);
    else if (f->stochastic)
        for (size_t i = 0; i < n; i++)
            residual[i] = (float)(x[i] - inart_random(x[i], scale, f->most, f->key, position + (uint32_t)i) * step);
    else
        for (size_t i = 0; i < n; i++) residual[i] = (float)(x[i] - inart_nearest(x[i], scale, f->most) * step);
}

/* Computes the sums, or the means over `divisor` workers (1: sums), of n values from `words` words. */
static inline void inart_fields_dequantise(const struct inart_fields *f, const uint32_t *restrict wire, size_t n,
                                           size_t words, int32_t biased, float divisor, float *restrict x) {
    const uint32_t half = 1u << (f->width - 1), mask = 2 * half - 1;
    const bool mixed = biased >= INART_NONFINITE;
    struct inart_mixed m = inart_mixed_of(f->workers, f->width);
    const double mixed_scale = mixed && biased > INART_NONFINITE
                                   ? ldexp(1.0, biased - INART_NONFINITE - INART_EXPONENT_BIAS - m.fraction_bits)
                                   : 0;
    uint32_t bias = 0;
    for (uint32_t i = 0; i < f->count; i++) bias += half << i * f->width;
    int shift = biased - INART_EXPONENT_BIAS - f->fraction_bits;
    if (biased == 0) {
        memset(x, 0, n * 4);
        return;
    }
    for (uint32_t i = 0; i * words < n; i++) {
        float *restrict v = x + i * words;
        const size_t here = n - i * words < words ? n - i * words : words;
        const uint32_t right = i * f->width;
        if (mixed) {
            for (size_t j = 0; j < here; j++)
                v[j] = inart_mixed_value(&m, ((__builtin_bswap32(wire[j]) + bias) >> right & mask) - half, mixed_scale,
                                         divisor);
        } else if (shift > INART_SAFE_SHIFT) { /* the sum may be beyond float32, but not the mean: divided first */
            const float first = inart_power(INART_SAFE_SHIFT), second = inart_power(shift - INART_SAFE_SHIFT);
            for (size_t j = 0; j < here; j++)
                v[j] = (float)((int32_t)((__builtin_bswap32(wire[j]) + bias) >> right & mask) - (int32_t)half) /
                       divisor * first * second;
        } else if (shift >= -126) {
            const float scale = inart_power(shift);
            for (size_t j = 0; j < here; j++)
                v[j] = (float)((int32_t)((__builtin_bswap32(wire[j]) + bias) >> right & mask) - (int32_t)half) * scale;
        } else { /* the result may be subnormal: one rounding only */
            const double scale = ldexp(1.0, shift);
            for (size_t j = 0; j < here; j++)
                v[j] =
                    (float)((double)((int32_t)((__builtin_bswap32(wire[j]) + bias) >> right & mask) - (int32_t)half) *
                            scale);
        }
    }
    if (divisor != 1.0f && !mixed && shift <= INART_SAFE_SHIFT)
        for (size_t i = 0; i < n; i++) x[i] /= divisor;
}

#endif

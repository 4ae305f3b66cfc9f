/* Numbers and their check words in one pass: the same as numbers.h and check.h one after the other give, at a fraction of the
 * time. A worker spends half a microsecond on a packet, and another pass over words that were just written costs a tenth of it.
 */
#ifndef INART_CHECKED_NUMBERS_H
#define INART_CHECKED_NUMBERS_H

#include "check.h"
#include "numbers.h"

/* 2^e may be beyond float32 for tiny exponents; those chunks, few as they are, take two passes. */
static inline bool checked_one_pass(const struct check *k, size_t n, int32_t biased, int shift)
{
    return n + INART_CHECK_WORDS == k->values && k->values <= CHECK_BLOCK && k->values % 16 == 0 && biased > 0 && biased < INART_NONFINITE
        && shift >= -126 && shift <= 127;
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define CHECKED_VECTORS
typedef struct { __m512i even, odd; } checked_sums;

static inline __m512i checked_swap(__m512i v)
{
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)));
}

static inline checked_sums checked_none(void) { return (checked_sums){_mm512_setzero_si512(), _mm512_setzero_si512()}; }

static inline void checked_add(checked_sums *s, const uint64_t *even, const uint64_t *odd, __m512i v, size_t j)
{
    s->even = _mm512_add_epi64(s->even, _mm512_mul_epi32(v, _mm512_load_si512(even + j / 2)));
    s->odd = _mm512_add_epi64(s->odd, _mm512_mul_epi32(_mm512_srli_epi64(v, 32), _mm512_load_si512(odd + j / 2)));
}

static inline uint32_t checked_total(const checked_sums *s, const struct check *k)
{
    return check_modulo(k, (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(s->even, s->odd)) + k->positive);
}

/* 16 of the words, `last` of them without the word that is to be the check word. */
static inline void checked_quantise_16(checked_sums *s, const uint64_t *even, const uint64_t *odd, const float *x, size_t j, bool last, float scale, float most,
                                       uint32_t *wire)
{
    __m512 f = _mm512_mul_ps(last ? _mm512_maskz_loadu_ps(0x7fff, x + j) : _mm512_loadu_ps(x + j), _mm512_set1_ps(scale));
    f = _mm512_range_ps(f, _mm512_set1_ps(most), 2); /* the less in magnitude, with the sign of f: what is too large is `most` */
    __m512i v = _mm512_cvtps_epi32(f);
    checked_add(s, even, odd, v, j);
    _mm512_storeu_si512(wire + j, checked_swap(v));
}

static inline void checked_dequantise_16(checked_sums *s, const uint64_t *even, const uint64_t *odd, const uint32_t *wire, size_t j, bool last, float scale,
                                         float divisor, float *x)
{
    __m512i v = checked_swap(_mm512_loadu_si512(wire + j));
    checked_add(s, even, odd, v, j);
    __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(v), _mm512_set1_ps(scale));
    if (divisor != 1.0f)
        f = _mm512_div_ps(f, _mm512_set1_ps(divisor));
    if (last) /* masked stores take long */
        _mm512_mask_storeu_ps(x + j, 0x7fff, f);
    else
        _mm512_storeu_ps(x + j, f);
}
#elif defined(__AVX2__)
#define CHECKED_VECTORS
typedef struct { __m256i even, odd; } checked_sums;

static inline __m256i checked_swap(__m256i v)
{
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)));
}

static inline checked_sums checked_none(void) { return (checked_sums){_mm256_setzero_si256(), _mm256_setzero_si256()}; }

static inline void checked_add(checked_sums *s, const uint64_t *even, const uint64_t *odd, __m256i v, size_t j)
{
    __m256i c = _mm256_load_si256((const __m256i *)(const void *)(even + j / 2));
    __m256i d = _mm256_load_si256((const __m256i *)(const void *)(odd + j / 2));
    s->even = _mm256_add_epi64(s->even, _mm256_mul_epi32(v, c));
    s->odd = _mm256_add_epi64(s->odd, _mm256_mul_epi32(_mm256_srli_epi64(v, 32), d));
}

static inline uint32_t checked_total(const checked_sums *s, const struct check *k)
{
    int64_t lanes[4];
    _mm256_storeu_si256((__m256i *)(void *)lanes, _mm256_add_epi64(s->even, s->odd));
    return check_modulo(k, (uint64_t)(lanes[0] + lanes[1] + lanes[2] + lanes[3]) + k->positive);
}

static inline __m256i checked_last(void) { return _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, -1, 0); }

static inline void checked_quantise_16(checked_sums *s, const uint64_t *even, const uint64_t *odd, const float *x, size_t j, bool last, float scale, float most,
                                       uint32_t *wire)
{
    for (int half = 0; half < 2; half++, j += 8) {
        __m256 f = _mm256_mul_ps(last && half ? _mm256_maskload_ps(x + j, checked_last()) : _mm256_loadu_ps(x + j), _mm256_set1_ps(scale));
        f = _mm256_min_ps(_mm256_max_ps(f, _mm256_set1_ps(-most)), _mm256_set1_ps(most));
        __m256i v = _mm256_cvtps_epi32(f);
        checked_add(s, even, odd, v, j);
        _mm256_storeu_si256((__m256i *)(void *)(wire + j), checked_swap(v));
    }
}

static inline void checked_dequantise_16(checked_sums *s, const uint64_t *even, const uint64_t *odd, const uint32_t *wire, size_t j, bool last, float scale,
                                         float divisor, float *x)
{
    for (int half = 0; half < 2; half++, j += 8) {
        __m256i v = checked_swap(_mm256_loadu_si256((const __m256i *)(const void *)(wire + j)));
        checked_add(s, even, odd, v, j);
        __m256 f = _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_set1_ps(scale));
        if (divisor != 1.0f)
            f = _mm256_div_ps(f, _mm256_set1_ps(divisor));
        if (last && half) /* masked stores take long */
            _mm256_maskstore_ps(x + j, checked_last(), f);
        else
            _mm256_storeu_ps(x + j, f);
    }
}
#endif

/* inart_quantise, and check_sum of what it wrote. */
static inline uint32_t checked_quantise(const struct check *k, const float *restrict x, size_t n, int32_t biased, uint32_t *restrict wire)
{
#ifdef CHECKED_VECTORS
    int bits = inart_fraction_bits((int)k->workers), shift = bits - (biased - INART_EXPONENT_BIAS);
    if (checked_one_pass(k, n, biased, shift)) {
        float scale = inart_power(shift), most = inart_power(bits);
        const uint64_t *even = k->even, *odd = k->odd; /* here: what is written could be *k, for all that the compiler knows */
        const size_t values = k->values;
        checked_sums s = checked_none();
        size_t j = 0;
        for (; j + 16 < values; j += 16)
            checked_quantise_16(&s, even, odd, x, j, false, scale, most, wire);
        checked_quantise_16(&s, even, odd, x, j, true, scale, most, wire);
        return checked_total(&s, k);
    }
#endif
    inart_quantise(x, n, INART_DATA_VALUES(k->values), biased, k->workers, wire);
    return check_sum(k, wire);
}

/* inart_dequantise, and check_sum of what it read: `x` holds nothing of use where that turns out to be wrong. */
static inline uint32_t checked_dequantise(const struct check *k, const uint32_t *restrict wire, size_t n, int32_t biased, float divisor,
                                          float *restrict x)
{
#ifdef CHECKED_VECTORS
    int shift = biased - INART_EXPONENT_BIAS - inart_fraction_bits((int)k->workers);
    if (checked_one_pass(k, n, biased, shift)) {
        float scale = inart_power(shift);
        const uint64_t *even = k->even, *odd = k->odd; /* here: what is written could be *k, for all that the compiler knows */
        const size_t values = k->values;
        checked_sums s = checked_none();
        size_t j = 0;
        for (; j + 16 < values; j += 16)
            checked_dequantise_16(&s, even, odd, wire, j, false, scale, divisor, x);
        checked_dequantise_16(&s, even, odd, wire, j, true, scale, divisor, x);
        return checked_total(&s, k);
    }
#endif
    inart_dequantise(wire, n, biased, k->workers, divisor, x);
    return check_sum(k, wire);
}

#endif

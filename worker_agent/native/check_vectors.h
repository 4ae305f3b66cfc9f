/* Computes the check word (check.h) with the processor's vector instructions, several words at a time.
 *
 * The sum of c_j * v_j modulo p over words v_j of 32 bits takes products of more bits than fit into a lane of 32. There
 * are two ways, and each kind of processor has the one that takes fewer instructions there.
 *
 * Halves and digits (AVX-512): a word is taken as two halves, v = 2^16 h + l, and a coefficient is a pair (x, y) with y
 * = 2^16 x modulo p, so that c v = x l + y h modulo p. Each of x and y is two digits of 13 bits with a sign, x = x0 +
 * 2^13 x1. Then one instruction multiplies the halves of a word by 16 bits each and adds both products (vpmaddwd;
 * vpdpwssd also adds the earlier sum), in 32 bits, which hold the sum over 8 words: 8 * 2^15 * 2 * 4095 < 2^31. l is
 * without a sign, and these instructions have one: they get l - 2^15, and 2^15 times the sum of all x is added once
 * (check.h, `offset`). The sums in 32 bits have a sign, too, and begin at 2^31, so that they have none when they are
 * widened to 64 bits: a mask and a shift do that, which would otherwise take multiplications. This, too, is in
 * `offset`.
 *
 * Whole words (AVX2, where nothing adds a product to a sum in one instruction): vpmuldq multiplies the even words of a
 * vector by 32 bits each, and, shifted down, the odd ones. Products of 31 and 25 bits are added in four sums of four
 * lanes of 64 bits, each of 128 words at most (of INART_MAX_VALUES), and 128 * 2^31 * (2^25 - 1) < 2^63, so nothing is
 * widened on the way. At the end each lane is cut at bit 40, and the part above is multiplied by 2^40 modulo p
 * (`wide`). */
#ifndef INART_CHECK_VECTORS_H
#define INART_CHECK_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK_DIGIT 13 /* bits of a coefficient's digits */
#define CHECK_DIGIT_MOST 4095
#define CHECK_ADDED 8 /* vectors of a group: of halves and digits as many products as a lane of 32 bits holds */
#define CHECK_BIAS (1u << 31)
#define CHECK_WIDE 40 /* bits of a lane of 64 below the cut */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define CHECK_VECTORS
#define CHECK_WIDTH 16 /* words of a vector */
#define CHECK_DIGITS
typedef __m512i check_vector;

static inline check_vector check_zero(void) { return _mm512_setzero_si512(); }
static inline check_vector check_words(uint32_t word) { return _mm512_set1_epi32((int32_t)word); }
static inline check_vector check_load(const uint32_t *wire) { return _mm512_loadu_si512(wire); }
/* Writes a vector past the caches (stream.h). */
static inline void check_stream(uint32_t *to, check_vector v) { _mm512_stream_si512((void *)to, v); }

/* Converts big-endian words to the processor's order, and back. */
static inline check_vector check_swap(check_vector v) {
    return _mm512_shuffle_epi8(
        v, _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)));
}

static inline check_vector check_halves(check_vector v) { return _mm512_xor_si512(v, _mm512_set1_epi32(0x8000)); }

static inline check_vector check_multiply_add(check_vector sum, check_vector halves, const uint32_t *digits) {
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, halves, _mm512_load_si512(digits));
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(halves, _mm512_load_si512(digits)));
#endif
}

/* Adds lanes of 32 bits without a sign in pairs, into lanes of 64 bits. */
static inline check_vector check_widen(check_vector sum) {
    return _mm512_add_epi64(_mm512_and_si512(sum, _mm512_set1_epi64(UINT32_MAX)), _mm512_srli_epi64(sum, 32));
}

static inline check_vector check_upper(check_vector sum) { return _mm512_slli_epi64(sum, CHECK_DIGIT); }

static inline check_vector check_add(check_vector a, check_vector b) { return _mm512_add_epi64(a, b); }
static inline int64_t check_across(check_vector total) { return _mm512_reduce_add_epi64(total); }

#elif defined(__AVX2__)
#include <immintrin.h>
#define CHECK_VECTORS
#define CHECK_WIDTH 8
typedef __m256i check_vector;

static inline check_vector check_zero(void) { return _mm256_setzero_si256(); }
static inline check_vector check_words(uint32_t word) { return _mm256_set1_epi32((int32_t)word); }
static inline check_vector check_load(const uint32_t *wire) {
    return _mm256_loadu_si256((const __m256i *)(const void *)wire);
}
static inline void check_stream(uint32_t *to, check_vector v) { _mm256_stream_si256((__m256i *)(void *)to, v); }

static inline check_vector check_swap(check_vector v) {
    return _mm256_shuffle_epi8(
        v, _mm256_broadcastsi128_si256(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)));
}

/* Adds the products of the even words of `words` and of `coefficients` to `sum`. The empty instruction keeps the
 * additions in this order: compilers otherwise add pairs of products first, which keeps all products of a group in
 * registers at once, more than there are, so that each was written to memory and read again (Zen 3, gcc 12: half of the
 * check's time). */
static inline check_vector check_multiply_even(check_vector sum, check_vector words, const uint32_t *coefficients) {
    sum =
        _mm256_add_epi64(sum, _mm256_mul_epi32(words, _mm256_load_si256((const __m256i *)(const void *)coefficients)));
    __asm__("" : "+x"(sum));
    return sum;
}

static inline check_vector check_odd(check_vector v) { return _mm256_srli_epi64(v, 32); }
static inline check_vector check_add(check_vector a, check_vector b) { return _mm256_add_epi64(a, b); }

static inline int64_t check_across(check_vector total) {
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    return _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
}
#else
#define CHECK_WIDTH 1
#define CHECK_DIGITS
#endif

#ifdef CHECK_VECTORS
#define CHECK_GROUP (CHECK_ADDED * CHECK_WIDTH) /* words */
#define CHECK_INLINE static inline __attribute__((always_inline))
/* Marks one pass over a packet, which is a function of its own. Its callers stay small, and it is the same code for all
 * of them; inlined into an engine's large functions, compilers made a jump of each vector. */
#define CHECK_PASS __attribute__((noinline, unused)) static

#ifdef CHECK_DIGITS
/* The contribution of CHECK_BIAS to the sum of a group. */
#define CHECK_GROUP_BIAS ((int64_t)CHECK_WIDTH * CHECK_BIAS * (1 + (1 << CHECK_DIGIT)))

/* The sums of the products of up to CHECK_ADDED vectors with each of the two digits (`low`, `high`), and of all earlier
 * groups (`total`). */
typedef struct {
    check_vector low, high, total;
} check_sums;

CHECK_INLINE check_sums check_nothing(void) {
    return (check_sums){check_words(CHECK_BIAS), check_words(CHECK_BIAS), check_zero()};
}

/* Adds the products of words j to j + CHECK_WIDTH - 1, which are in `v`. */
CHECK_INLINE void check_take(check_sums *s, const uint32_t *low, const uint32_t *high, check_vector v, uint64_t j) {
    check_vector halves = check_halves(v);
    s->low = check_multiply_add(s->low, halves, low + j);
    s->high = check_multiply_add(s->high, halves, high + j);
}

/* Adds a group's sums to the total, and begins the next group. */
CHECK_INLINE void check_fold(check_sums *s) {
    s->total = check_add(s->total, check_add(check_widen(s->low), check_upper(check_widen(s->high))));
    s->low = s->high = check_words(CHECK_BIAS);
}

/* Returns the sum to which check.h's `offset` is added. */
CHECK_INLINE int64_t check_end(const check_sums *one, const check_sums *other, uint64_t wide, size_t values) {
    (void)wide, (void)values;
    return check_across(check_add(one->total, other->total));
}
#else
#define CHECK_TOGETHER 512                           /* words of which one lane of four holds all products */
#define CHECK_LANES_BIAS (4ull << (63 - CHECK_WIDE)) /* above the cut, of all lanes of a sum */

/* The sums of the products of the even words and of the odd ones. */
typedef struct {
    check_vector even, odd;
} check_sums;

CHECK_INLINE check_sums check_nothing(void) { return (check_sums){check_zero(), check_zero()}; }

CHECK_INLINE void check_take(check_sums *s, const uint32_t *low, const uint32_t *high, check_vector v, uint64_t j) {
    s->even = check_multiply_even(s->even, v, low + j);
    s->odd = check_multiply_even(s->odd, check_odd(v), high + j);
}

CHECK_INLINE void check_fold(check_sums *s) { (void)s; }

/* Returns the parts of lanes above the cut, without a sign: 2^63 is added to each lane, which check.h's `offset`
 * subtracts. */
CHECK_INLINE check_vector check_above(check_vector sum) {
    return _mm256_srli_epi64(_mm256_xor_si256(sum, _mm256_set1_epi64x(INT64_MIN)), CHECK_WIDE);
}

CHECK_INLINE check_vector check_below(check_vector sum) {
    return _mm256_and_si256(sum, _mm256_set1_epi64x((1ll << CHECK_WIDE) - 1));
}

CHECK_INLINE int64_t check_cut(check_vector sum, uint64_t wide) {
    return check_across(check_below(sum)) + check_across(check_above(sum)) * (int64_t)wide;
}

CHECK_INLINE int64_t check_end(const check_sums *one, const check_sums *other, uint64_t wide, size_t values) {
    if (values <= CHECK_TOGETHER)
        return check_cut(check_add(check_add(one->even, one->odd), check_add(other->even, other->odd)), wide);
    return check_cut(one->even, wide) + check_cut(one->odd, wide) + check_cut(other->even, wide) +
           check_cut(other->odd, wide);
}
#endif

/* Gets or makes the vector of a packet's words from j on, and hands it to check_take. `last` says that its last word is
 * the check word; `with` is the function's own data. */
typedef void check_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                        const void *with);

/* Goes through a packet of so many words, a multiple of CHECK_WIDTH, and returns the sum of c_j v_j without check.h's
 * `offset`. `wide` is 2^CHECK_WIDE modulo p.
 *
 * Two groups go side by side: each addition has to wait for the one before it in its group, and meanwhile the processor
 * does the other group's. Whether a vector has the packet's last word is tested once a turn, not once a vector. */
CHECK_INLINE int64_t check_pass(const uint32_t *low, const uint32_t *high, uint64_t wide, size_t values,
                                check_step *step, const void *with) {
    check_sums one = check_nothing(), other = check_nothing();
    size_t j = 0;
    for (; j + 2 * CHECK_GROUP <= values; j += 2 * CHECK_GROUP) {
        const bool last = j + 2 * CHECK_GROUP == values;
#pragma GCC unroll 8
        for (int i = 0; i < CHECK_ADDED; i++) {
            size_t at = j + (size_t)i * CHECK_WIDTH;
            step(&one, low, high, at, false, with);
            step(&other, low, high, at + CHECK_GROUP, i == CHECK_ADDED - 1 && last, with);
        }
        check_fold(&one);
        check_fold(&other);
    }
    for (; j < values; check_fold(&one))
        for (int i = 0; i < CHECK_ADDED && j < values; i++, j += CHECK_WIDTH)
            step(&one, low, high, j, j + CHECK_WIDTH == values, with);
    return check_end(&one, &other, wide, values);
}
#endif

#endif

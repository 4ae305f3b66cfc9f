/* Fixed point with one exponent a chunk (docs/architecture.md section 3, "Numbers"; worker_agent/fixedpoint.py is the
 * reference in numpy, which must give the same bits).
 *
 * Values on the wire are big-endian; `wire` pointers are 4-byte aligned.
 */
#ifndef INART_NUMBERS_H
#define INART_NUMBERS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INART_EXPONENT_BIAS 1024
#define INART_NONFINITE 4096
#define INART_EXPONENT_LOWEST (INART_EXPONENT_BIAS - 148) /* of the smallest subnormal float32, 2^-149 */
#define INART_EXPONENT_HIGHEST (INART_EXPONENT_BIAS + 128)
#define INART_CODE_NAN 1u
#define INART_CODE_PLUS (1u << 10)
#define INART_CODE_MINUS (1u << 20)

enum inart_dtype { INART_FLOAT32 = 0, INART_FLOAT16 = 1, INART_BFLOAT16 = 2, INART_BYTES = 3 /* travel as they are */ };

static inline size_t inart_dtype_bytes(int dtype) { return dtype == INART_FLOAT32 ? 4 : dtype == INART_BYTES ? 1 : 2; }

static inline float inart_float(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline uint32_t inart_bits(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }
static inline float inart_power(int e) { return inart_float((uint32_t)(e + 127) << 23); } /* 2^e, -126 <= e <= 127 */

/* F: the sum of W values below 2^F stays below 2^31. */
static inline int inart_fraction_bits(int workers)
{
    int log = 0;
    while ((1 << log) < workers)
        log++;
    return 30 - log;
}

/* float16 -> float32: shifted into float32's fields and scaled by 2^112, which also makes subnormals right. */
static inline float inart_from_half(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t scaled = inart_bits(inart_float(magnitude) * inart_power(112));
    uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : scaled;
    return inart_float(bits | (uint32_t)(h & 0x8000) << 16);
}

/* float32 -> float16, to nearest even. */
static inline uint16_t inart_to_half(float f)
{
    uint32_t bits = inart_bits(f), sign = bits >> 16 & 0x8000, m = bits & 0x7fffffffu;
    /* Adding 0.5 leaves the float16 subnormal in the low bits, rounded by the addition itself. */
    uint32_t small = inart_bits(inart_float(m) + 0.5f) - 0x3f000000u;
    uint32_t normal = (m + 0xc8000fffu + (m >> 13 & 1)) >> 13;
    uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t h = m < 0x38800000u ? small : m < 0x477ff000u ? normal : large;
    return (uint16_t)(sign | h);
}

static inline float inart_from_bfloat(uint16_t h) { return inart_float((uint32_t)h << 16); }

/* float32 -> bfloat16, to nearest even. */
static inline uint16_t inart_to_bfloat(float f)
{
    uint32_t bits = inart_bits(f);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* The biased exponent that `n` values need. */
static inline int32_t inart_exponent(const float *restrict x, size_t n)
{
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t m = (int32_t)(inart_bits(x[i]) & 0x7fffffffu);
        most = m > most ? m : most;
    }
    int32_t flag = 0;
    if (most >= 0x7f800000) {
        flag = INART_NONFINITE;
        most = 0;
        for (size_t i = 0; i < n; i++) {
            int32_t m = (int32_t)(inart_bits(x[i]) & 0x7fffffffu);
            m = m >= 0x7f800000 ? 0 : m;
            most = m > most ? m : most;
        }
    }
    if (most == 0)
        return flag;
    int e = most >= 0x00800000 ? (most >> 23) - 126 : 32 - __builtin_clz((uint32_t)most) - 149;
    return flag + INART_EXPONENT_BIAS + e;
}

static inline int inart_exponent_valid(int32_t biased)
{
    int32_t finite = biased >= INART_NONFINITE ? biased - INART_NONFINITE : biased;
    return finite == 0 || (finite >= INART_EXPONENT_LOWEST && finite <= INART_EXPONENT_HIGHEST);
}

/* n values as fixed point with the agreed exponent, then zeros up to `padded`. */
static inline void inart_quantise(const float *restrict x, size_t n, size_t padded, int32_t biased, int fraction_bits,
                                  uint32_t *restrict wire)
{
    if (biased >= INART_NONFINITE) {
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = inart_bits(x[i]), m = bits & 0x7fffffffu;
            uint32_t code = m > 0x7f800000u ? INART_CODE_NAN : bits >> 31 ? INART_CODE_MINUS : INART_CODE_PLUS;
            wire[i] = __builtin_bswap32(m >= 0x7f800000u ? code : 0);
        }
    } else if (biased == 0) {
        memset(wire, 0, n * 4);
    } else {
        /* 2^shift may be beyond float32 for tiny exponents: in two exact steps. */
        int shift = fraction_bits - (biased - INART_EXPONENT_BIAS);
        float first = inart_power(shift > 127 ? 127 : shift);
        if (shift <= 127) {
            for (size_t i = 0; i < n; i++)
                wire[i] = __builtin_bswap32((uint32_t)(int32_t)rintf(x[i] * first));
        } else {
            float second = inart_power(shift - 127);
            for (size_t i = 0; i < n; i++)
                wire[i] = __builtin_bswap32((uint32_t)(int32_t)rintf(x[i] * first * second));
        }
    }
    memset(wire + n, 0, (padded - n) * 4);
}

/* The sum, or the mean over `divisor` workers (1: the sum). */
static inline void inart_dequantise(const uint32_t *restrict wire, size_t n, int32_t biased, int fraction_bits, float divisor,
                                    float *restrict x)
{
    if (biased >= INART_NONFINITE) {
        for (size_t i = 0; i < n; i++) {
            uint32_t code = __builtin_bswap32(wire[i]);
            int nan = code & 1023, plus = code >> 10 & 1023, minus = code >> 20 & 1023;
            uint32_t bits = 0x7fc00000u; /* NaN, also where all values were finite: they did not travel */
            if (!nan && plus && !minus)
                bits = 0x7f800000u;
            if (!nan && minus && !plus)
                bits = 0xff800000u;
            x[i] = inart_float(bits);
        }
        return;
    }
    if (biased == 0) {
        memset(x, 0, n * 4);
        return;
    }
    int shift = biased - INART_EXPONENT_BIAS - fraction_bits;
    if (shift >= -126) {
        float scale = inart_power(shift > 127 ? 127 : shift);
        for (size_t i = 0; i < n; i++)
            x[i] = (float)(int32_t)__builtin_bswap32(wire[i]) * scale;
    } else { /* the result may be subnormal: one rounding only */
        double scale = ldexp(1.0, shift);
        for (size_t i = 0; i < n; i++)
            x[i] = (float)((double)(int32_t)__builtin_bswap32(wire[i]) * scale);
    }
    if (divisor != 1.0f)
        for (size_t i = 0; i < n; i++)
            x[i] /= divisor;
}

/* The same for any dtype: `data` points at the first of n values of the chunk; `scratch` holds n floats. */
static inline const float *inart_load(const void *restrict data, size_t n, int dtype, float *restrict scratch)
{
    const uint16_t *h = data;
    if (dtype == INART_FLOAT32)
        return data;
    if (dtype == INART_FLOAT16)
        for (size_t i = 0; i < n; i++)
            scratch[i] = inart_from_half(h[i]);
    else
        for (size_t i = 0; i < n; i++)
            scratch[i] = inart_from_bfloat(h[i]);
    return scratch;
}

static inline void inart_store(const float *restrict x, size_t n, int dtype, void *restrict data)
{
    uint16_t *h = data;
    if (dtype == INART_FLOAT32)
        memcpy(data, x, n * 4);
    else if (dtype == INART_FLOAT16)
        for (size_t i = 0; i < n; i++)
            h[i] = inart_to_half(x[i]);
    else
        for (size_t i = 0; i < n; i++)
            h[i] = inart_to_bfloat(x[i]);
}

#endif

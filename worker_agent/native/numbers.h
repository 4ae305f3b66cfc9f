/* Fixed point with one exponent a chunk (docs/protocol.md, "Numbers"; worker_agent/fixedpoint.py is the reference in
 * numpy, which must give the same bits).
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
#define INART_EXPONENT_LOWEST (INART_EXPONENT_BIAS - 148)  /* of the smallest subnormal float32, 2^-149 */
#define INART_EXPONENT_HIGHEST (INART_EXPONENT_BIAS + 129) /* fields.h may need one more than the largest float32 */
/* The highest power of two that a sum of 31 bits may be multiplied by, because the product is finite in float32. */
#define INART_SAFE_SHIFT 96

/* The types of elements. INART_BYTES travel unchanged. Those from INART_FLOAT64 on are for small operations only
 * (gathered.h). */
enum inart_dtype {
    INART_FLOAT32,
    INART_FLOAT16,
    INART_BFLOAT16,
    INART_BYTES,
    INART_FLOAT64,
    INART_INT64,
    INART_INT32,
    INART_INT8,
    INART_UINT8,
    INART_DTYPES
};

static inline size_t inart_dtype_bytes(int dtype) {
    static const uint8_t bytes[INART_DTYPES] = {4, 2, 2, 1, 8, 8, 4, 1, 1};
    return bytes[dtype];
}

static inline float inart_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t inart_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}
static inline float inart_power(int e) { return inart_float((uint32_t)(e + 127) << 23); } /* 2^e, -126 <= e <= 127 */

/* Returns F, such that the sum of W values of at most 2^F stays below 2^31. */
static inline int inart_fraction_bits(int workers) {
    int log = 0;
    while ((1 << log) < workers) log++;
    return 30 - log;
}

/* The layout of a word, or of a field of `width` bits in it, in a chunk that holds NaN or Inf. It has a finite value of
 * fewer bits, with room for the sum of all workers' values. Above it are, times `unit`, a count of the workers that
 * contribute +Inf and, times `minus`, of those that contribute -Inf. NaN counts as both. Each worker subtracts `bias`,
 * so that the sum fits into so many signed bits. Where a field has no room for that (fraction_bits -1) it is 0, and the
 * result NaN. */
struct inart_mixed {
    int fraction_bits;
    uint32_t workers, unit, minus, bias, most; /* most: of the finite values' sum */
};

static inline struct inart_mixed inart_mixed_of(uint32_t workers, uint32_t width) {
    struct inart_mixed m = {.fraction_bits = -1, .workers = workers, .minus = workers + 1};
    uint64_t counts = (uint64_t)m.minus * m.minus, room = (1ull << width) - workers;
    while (m.fraction_bits < 29 && (((uint64_t)workers * 2 << (m.fraction_bits + 1)) + 1) * counts <= room)
        m.fraction_bits++;
    if (m.fraction_bits < 0) return m;
    m.most = workers << m.fraction_bits;
    m.unit = 2 * m.most + 1;
    m.bias = ((1u << (width - 1)) - (width < 32) - m.most) / workers;
    return m;
}

static inline double inart_mixed_scale(const struct inart_mixed *m, int32_t finite) {
    return finite ? ldexp(1.0, m->fraction_bits - (finite - INART_EXPONENT_BIAS)) : 0;
}

static inline uint32_t inart_mixed_word(const struct inart_mixed *m, float x, double scale) {
    if (m->fraction_bits < 0) return 0;
    double most = (double)(1u << m->fraction_bits), value = (double)x * scale;
    uint32_t bits, magnitude;
    memcpy(&bits, &x, 4);
    magnitude = bits & 0x7fffffffu;
    uint32_t count = magnitude > 0x7f800000u ? 1 + m->minus : bits >> 31 ? m->minus : 1;
    value = value > most ? most : value > -most ? value : -most;
    return (magnitude >= 0x7f800000u ? count * m->unit : (uint32_t)(int32_t)rint(value)) - m->bias;
}

/* Returns the result of the sum of such words; `scale` is the size of a step. */
static inline float inart_mixed_value(const struct inart_mixed *m, uint32_t sum, double scale, float divisor) {
    if (m->fraction_bits < 0) return inart_float(0x7fc00000u);
    sum += m->bias * m->workers + m->most;
    uint32_t counts = sum / m->unit;
    if (counts)
        return inart_float(counts % m->minus && counts / m->minus ? 0x7fc00000u
                           : counts / m->minus                    ? 0xff800000u
                                                                  : 0x7f800000u);
    return (float)(((double)(sum % m->unit) - m->most) * scale / divisor); /* the sum may be beyond float32 */
}

/* Converts float16 to float32: the bits are shifted into float32's fields and scaled by 2^112, which also makes
 * subnormals right. */
static inline float inart_from_half(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t scaled = inart_bits(inart_float(magnitude) * inart_power(112));
    uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : scaled;
    return inart_float(bits | (uint32_t)(h & 0x8000) << 16);
}

/* Converts float32 to float16, to nearest even. */
static inline uint16_t inart_to_half(float f) {
    uint32_t bits = inart_bits(f), sign = bits >> 16 & 0x8000, m = bits & 0x7fffffffu;
    /* Adding 0.5 leaves the float16 subnormal in the low bits, rounded by the addition itself. */
    uint32_t small = inart_bits(inart_float(m) + 0.5f) - 0x3f000000u;
    uint32_t normal = (m + 0xc8000fffu + (m >> 13 & 1)) >> 13;
    uint32_t large = m > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t h = m < 0x38800000u ? small : m < 0x477ff000u ? normal : large;
    return (uint16_t)(sign | h);
}

static inline float inart_from_bfloat(uint16_t h) { return inart_float((uint32_t)h << 16); }

/* Converts float32 to bfloat16, to nearest even. */
static inline uint16_t inart_to_bfloat(float f) {
    uint32_t bits = inart_bits(f);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* Returns the largest finite magnitude of `n` values, and sets *flag to INART_NONFINITE if some value is NaN or
 * infinite, and otherwise to 0. */
static inline float inart_largest(const float *restrict x, size_t n, int32_t *flag) {
    int32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t m = (int32_t)(inart_bits(x[i]) & 0x7fffffffu);
        most = m > most ? m : most;
    }
    *flag = 0;
    if (most >= 0x7f800000) {
        *flag = INART_NONFINITE;
        most = 0;
        for (size_t i = 0; i < n; i++) {
            int32_t m = (int32_t)(inart_bits(x[i]) & 0x7fffffffu);
            m = m >= 0x7f800000 ? 0 : m;
            most = m > most ? m : most;
        }
    }
    return inart_float((uint32_t)most);
}

/* Returns the biased exponent e of a magnitude, for the smallest 2^e above it; 0 for 0. */
static inline int32_t inart_exponent_of(float magnitude) {
    uint32_t bits = inart_bits(magnitude);
    if (bits == 0) return 0;
    int e = bits >= 0x00800000 ? (int)(bits >> 23) - 126 : 32 - __builtin_clz(bits) - 149;
    return INART_EXPONENT_BIAS + e;
}

/* Returns the biased exponent that `n` values need. */
static inline int32_t inart_exponent(const float *restrict x, size_t n) {
    int32_t flag;
    float largest = inart_largest(x, n, &flag);
    return flag + inart_exponent_of(largest);
}

static inline int inart_exponent_valid(int32_t biased) {
    int32_t finite = biased >= INART_NONFINITE ? biased - INART_NONFINITE : biased;
    return finite == 0 || (finite >= INART_EXPONENT_LOWEST && finite <= INART_EXPONENT_HIGHEST);
}

/* Writes the values of a chunk that holds NaN or Inf, as a worker of a job of `workers` workers. */
static inline void inart_quantise_mixed(const float *restrict x, size_t n, int32_t finite, uint32_t workers,
                                        uint32_t *restrict wire) {
    struct inart_mixed m = inart_mixed_of(workers, 32);
    double scale = inart_mixed_scale(&m, finite);
    for (size_t i = 0; i < n; i++) wire[i] = __builtin_bswap32(inart_mixed_word(&m, x[i], scale));
}

static inline void inart_dequantise_mixed(const uint32_t *restrict wire, size_t n, int32_t finite, uint32_t workers,
                                          float divisor, float *restrict x) {
    struct inart_mixed m = inart_mixed_of(workers, 32);
    double scale = finite ? ldexp(1.0, finite - INART_EXPONENT_BIAS - m.fraction_bits) : 0;
    for (size_t i = 0; i < n; i++) x[i] = inart_mixed_value(&m, __builtin_bswap32(wire[i]), scale, divisor);
}

/* Returns the fixed-point integer of a value. A value that is too large was written to the array during the operation:
 * the sum has no room for it, and converting it would be undefined. */
static inline uint32_t inart_fixed(float value, float most) {
    value = value > -most ? value : -most;
    return (uint32_t)(int32_t)rintf(value < most ? value : most);
}

/* Writes n values as fixed point with the agreed exponent, then zeros up to `padded`. */
static inline void inart_quantise(const float *restrict x, size_t n, size_t padded, int32_t biased, uint32_t workers,
                                  uint32_t *restrict wire) {
    int fraction_bits = inart_fraction_bits((int)workers);
    float most = inart_power(fraction_bits);
    if (biased >= INART_NONFINITE) {
        inart_quantise_mixed(x, n, biased - INART_NONFINITE, workers, wire);
    } else if (biased == 0) {
        memset(wire, 0, n * 4);
    } else {
        /* 2^shift may be beyond float32 for tiny exponents: in two exact steps. */
        int shift = fraction_bits - (biased - INART_EXPONENT_BIAS);
        float first = inart_power(shift > 127 ? 127 : shift);
        if (shift <= 127) {
            for (size_t i = 0; i < n; i++) wire[i] = __builtin_bswap32(inart_fixed(x[i] * first, most));
        } else {
            float second = inart_power(shift - 127);
            for (size_t i = 0; i < n; i++) wire[i] = __builtin_bswap32(inart_fixed(x[i] * first * second, most));
        }
    }
    memset(wire + n, 0, (padded - n) * 4);
}

/* Computes the sum, or the mean over `divisor` workers (1: the sum). */
static inline void inart_dequantise(const uint32_t *restrict wire, size_t n, int32_t biased, uint32_t workers,
                                    float divisor, float *restrict x) {
    int fraction_bits = inart_fraction_bits((int)workers);
    if (biased >= INART_NONFINITE) {
        inart_dequantise_mixed(wire, n, biased - INART_NONFINITE, workers, divisor, x);
        return;
    }
    if (biased == 0) {
        memset(x, 0, n * 4);
        return;
    }
    int shift = biased - INART_EXPONENT_BIAS - fraction_bits;
    if (shift > INART_SAFE_SHIFT) { /* the sum may be beyond float32, but not the mean: divided first */
        float first = inart_power(INART_SAFE_SHIFT), second = inart_power(shift - INART_SAFE_SHIFT);
        for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)__builtin_bswap32(wire[i]) / divisor * first * second;
        return;
    }
    if (shift >= -126) {
        float scale = inart_power(shift);
        for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)__builtin_bswap32(wire[i]) * scale;
    } else { /* the result may be subnormal: one rounding only */
        double scale = ldexp(1.0, shift);
        for (size_t i = 0; i < n; i++) x[i] = (float)((double)(int32_t)__builtin_bswap32(wire[i]) * scale);
    }
    if (divisor != 1.0f)
        for (size_t i = 0; i < n; i++) x[i] /= divisor;
}

/* Limits the means of a chunk to the largest finite value of the type. No mean of finite values is larger, but the
 * rounding to steps may have gone beyond. */
static inline void inart_limit(float *restrict x, size_t n, int dtype, int32_t biased) {
    const float largest = dtype == INART_FLOAT16    ? 65504.0f
                          : dtype == INART_BFLOAT16 ? inart_float(0x7f7f0000u)
                                                    : inart_float(0x7f7fffffu);
    if (biased >= INART_NONFINITE || biased < inart_exponent_of(largest)) return;
    for (size_t i = 0; i < n; i++) x[i] = x[i] > largest ? largest : x[i] < -largest ? -largest : x[i];
}

/* Returns n values of a chunk as float32, of any dtype. `data` points at the first of them; `scratch` has room for n
 * floats. */
static inline const float *inart_load(const void *restrict data, size_t n, int dtype, float *restrict scratch) {
    const uint16_t *h = data;
    if (dtype == INART_FLOAT32) return data;
    if (dtype == INART_FLOAT16)
        for (size_t i = 0; i < n; i++) scratch[i] = inart_from_half(h[i]);
    else
        for (size_t i = 0; i < n; i++) scratch[i] = inart_from_bfloat(h[i]);
    return scratch;
}

static inline void inart_store(const float *restrict x, size_t n, int dtype, void *restrict data) {
    uint16_t *h = data;
    if (dtype == INART_FLOAT32)
        memcpy(data, x, n * 4);
    else if (dtype == INART_FLOAT16)
        for (size_t i = 0; i < n; i++) h[i] = inart_to_half(x[i]);
    else
        for (size_t i = 0; i < n; i++) h[i] = inart_to_bfloat(x[i]);
}

#endif

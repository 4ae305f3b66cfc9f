/* Small operations in one round: each worker writes its values into words of its own and zeros into all others, so the
 * sum that switches and root make is the values of all workers, side by side, and each worker adds them up itself, in
 * the order of the workers. No exponent has to be agreed first, any dtype and any operation can be had, and all workers
 * get the same bits (docs/protocol.md, "Small operations"; worker_agent/gathered.py says which operations are small).
 *
 * A chunk has `columns` columns of `words` words: column w is worker w's, or in a broadcast the only one is the
 * source's. Values travel as they are in memory.
 */
#ifndef INART_GATHERED_H
#define INART_GATHERED_H

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "numbers.h"

/* The operators, as worker_agent/collectives.py numbers them. With INART_SIDE_BY_SIDE nothing is added up: each
 * worker's values have their own place. */
enum inart_reduction {
    INART_SUM,
    INART_MEAN,
    INART_LARGEST,
    INART_SMALLEST,
    INART_PRODUCT,
    INART_AND,
    INART_OR,
    INART_XOR,
    INART_SIDE_BY_SIDE
};

/* The division of a chunk; `columns` is 0 where the operation is not a small one. */
struct inart_gathered {
    uint32_t columns, words;
    int32_t reduction;
};

static inline double inart_real(const uint8_t *at, int dtype) {
    double wide;
    float single;
    uint16_t half;
    memcpy(&wide, at, dtype == INART_FLOAT64 ? sizeof wide : 0);
    memcpy(&single, at, dtype == INART_FLOAT32 ? sizeof single : 0);
    memcpy(&half, at, dtype == INART_FLOAT16 || dtype == INART_BFLOAT16 ? sizeof half : 0);
    return dtype == INART_FLOAT64   ? wide
           : dtype == INART_FLOAT32 ? single
           : dtype == INART_FLOAT16 ? inart_from_half(half)
                                    : inart_from_bfloat(half);
}

static inline void inart_real_store(double value, int dtype, uint8_t *to) {
    float single = (float)value;
    uint16_t half = dtype == INART_FLOAT16 ? inart_to_half(single) : inart_to_bfloat(single);
    const void *from = dtype == INART_FLOAT64   ? (const void *)&value
                       : dtype == INART_FLOAT32 ? (const void *)&single
                                                : (const void *)&half;
    memcpy(to, from, inart_dtype_bytes(dtype));
}

static inline bool inart_is_real(int dtype) { return dtype <= INART_BFLOAT16 || dtype == INART_FLOAT64; }

/* Reads an integer of any size and extends its sign: sums and products keep as many of the lowest bits as the type has,
 * as the processor's own do. */
static inline uint64_t inart_whole(const uint8_t *at, int dtype) {
    int64_t wide;
    int32_t word;
    switch (dtype) {
    case INART_INT64:
        memcpy(&wide, at, sizeof wide);
        return (uint64_t)wide;
    case INART_INT32:
        memcpy(&word, at, sizeof word);
        return (uint64_t)(int64_t)word;
    case INART_INT8:
        return (uint64_t)(int64_t)(int8_t)*at;
    default:
        return *at;
    }
}

/* Combines two numbers; NaN wins against all numbers, as in torch. */
static inline double inart_real_with(double a, double b, int reduction) {
    switch (reduction) {
    case INART_LARGEST:
        return isnan(a) || a > b ? a : b;
    case INART_SMALLEST:
        return isnan(a) || a < b ? a : b;
    case INART_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

static inline uint64_t inart_whole_with(uint64_t a, uint64_t b, int reduction) {
    switch (reduction) {
    case INART_LARGEST:
        return (int64_t)a > (int64_t)b ? a : b;
    case INART_SMALLEST:
        return (int64_t)a < (int64_t)b ? a : b;
    case INART_PRODUCT:
        return a * b;
    case INART_AND:
        return a & b;
    case INART_OR:
        return a | b;
    case INART_XOR:
        return a ^ b;
    default:
        return a + b;
    }
}

/* Writes this worker's column of a chunk, `bytes` of it; all other words are 0. `words` is the number of data words of
 * a packet. `column` is the place of the values of `from`; beyond the columns, this worker has no values. */
static inline void inart_gathered_write(const struct inart_gathered *g, const uint8_t *from, size_t bytes,
                                        uint32_t column, uint32_t words, uint32_t *wire) {
    memset(wire, 0, words * 4);
    if (column < g->columns) memcpy(wire + (size_t)column * g->words, from, bytes);
}

/* Returns the mean of a value in each column. If the sum is beyond double, it is computed at a smaller scale: the mean
 * of finite values is finite. */
static inline double inart_gathered_mean(const struct inart_gathered *g, const uint8_t *at, size_t stride, int dtype,
                                         double sum) {
    if (isfinite(sum)) return sum / g->columns;
    double scaled = 0; /* of at most 1,024 workers */
    for (uint32_t w = 0; w < g->columns; w++) scaled += inart_real(at + w * stride, dtype) * 0x1p-10;
    if (!isfinite(scaled)) return scaled;
    double mean = scaled / g->columns * 0x1p10; /* may have been rounded up beyond the largest double */
    return mean > DBL_MAX ? DBL_MAX : mean < -DBL_MAX ? -DBL_MAX : mean;
}

/* Merges the values of `bytes` bytes in each column. Sums and products of floating point are computed in double and
 * rounded once. */
static inline void inart_gathered_merge(const struct inart_gathered *g, const uint32_t *wire, size_t bytes, int dtype,
                                        uint8_t *to) {
    const uint8_t *column = (const uint8_t *)wire;
    size_t size = inart_dtype_bytes(dtype), stride = 4 * (size_t)g->words;
    for (size_t at = 0; at + size <= bytes; at += size) {
        if (inart_is_real(dtype)) {
            double value = inart_real(column + at, dtype);
            for (uint32_t w = 1; w < g->columns; w++)
                value = inart_real_with(value, inart_real(column + w * stride + at, dtype), g->reduction);
            if (g->reduction == INART_MEAN) value = inart_gathered_mean(g, column + at, stride, dtype, value);
            inart_real_store(value, dtype, to + at);
        } else {
            uint64_t value = inart_whole(column + at, dtype);
            for (uint32_t w = 1; w < g->columns; w++)
                value = inart_whole_with(value, inart_whole(column + w * stride + at, dtype), g->reduction);
            memcpy(to + at, &value,
                   size); /* the lowest bytes: little-endian machines only, as all that the engine runs on */
        }
    }
}

#endif

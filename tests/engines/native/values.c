#include "values.h"

#include <math.h>
#include <stdlib.h>

#include "collectives.h"
#include "fields.h"
#include "gathered.h"
#include "numbering.h"

static float either_sign(struct random *r, float x) { return random_bits(r) & 1 ? x : -x; }

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float draw(struct random *r, enum values_kind kind) {
    static const float nonfinite[] = {NAN, INFINITY, -INFINITY};
    uint64_t one;
    switch (kind) {
    case VALUES_ANY_BITS: {
        float x = float_of((uint32_t)random_bits(r));
        return isfinite(x) ? x : 1.0f;
    }
    case VALUES_SUBNORMAL:
        return float_of((uint32_t)random_bits(r) & 0x807fffffu);
    case VALUES_LARGEST:
        return either_sign(r, 3.4028235e38f);
    case VALUES_ZEROS:
        return either_sign(r, 0);
    case VALUES_FAR_APART:
        return random_bits(r) & 1 ? 1e30f : 1e-30f;
    case VALUES_NEAR_ONE:
        return 1.0f - 0x1p-24f;
    case VALUES_POWERS:
        return either_sign(r, (float)ldexp(1.0, (int)random_below(r, 250) - 125));
    case VALUES_MIXED:
        return draw(r, (enum values_kind)random_below(r, VALUES_NONFINITE));
    case VALUES_NONFINITE:
        one = random_below(r, 40);
        if (one < 3) return nonfinite[one];
        return (float)(random_unit(r) - 0.5);
    default:
        return (float)(random_unit(r) - 0.5);
    }
}

static uint16_t draw_half(struct random *r, enum values_kind kind, int dtype) {
    bool wide =
        dtype == INART_FLOAT16 && (kind == VALUES_ANY_BITS || kind >= VALUES_FAR_APART) && kind < VALUES_NONFINITE;
    float x = wide ? (float)((random_unit(r) - 0.5) * pow(2, (double)random_below(r, 30) - 14)) : draw(r, kind);
    uint16_t half = dtype == INART_FLOAT16 ? inart_to_half(x) : inart_to_bfloat(x);
    uint16_t exponent = dtype == INART_FLOAT16 ? 0x7c00 : 0x7f80;
    bool infinite = (half & exponent) == exponent;
    return infinite && kind != VALUES_NONFINITE ? (uint16_t)(exponent - 1) : half;
}

void values_fill(struct random *r, enum values_kind kind, int dtype, uint8_t *to, uint64_t bytes) {
    size_t item = inart_dtype_bytes(dtype);
    for (uint64_t i = 0; !inart_is_real(dtype) && i < bytes; i++) to[i] = (uint8_t)(random_bits(r) >> 56);
    for (uint64_t i = 0; inart_is_real(dtype) && i < bytes / item; i++) {
        if (item == sizeof(uint16_t)) {
            uint16_t half = draw_half(r, kind, dtype);
            memcpy(to + i * item, &half, item);
        } else
            inart_real_store(draw(r, kind), dtype, to + i * item);
    }
}

/* ---- results ---- */

/* What the words of one chunk depend on. `first` is its first element in the array. */
struct chunk {
    uint64_t first;
    size_t count, words;
    int32_t exponent;
};

static int32_t exponent_of(const struct shape *s, const struct operation *o, const uint8_t *array, uint64_t first,
                           size_t count, float *scratch) {
    struct inart_fields f = inart_fields_of(o->encoding.fields, s->workers, false, 0, 0);
    const float *values = inart_load(array + first * inart_dtype_bytes(o->dtype), count, o->dtype, scratch);
    return inart_fields_exponent(&f, values, count);
}

static size_t at_most(uint64_t left, size_t n) { return left < n ? (size_t)left : n; }

/* Returns the exponent that the workers agree on for data chunk `index` of a part of `elements` values from `first` on,
 * with the mark of a group in which some worker has NaN or infinities. */
static int32_t agreed(const struct shape *s, const struct operation *o, uint8_t *const *in, uint64_t first,
                      uint64_t elements, uint64_t index, size_t n, float *scratch) {
    int32_t most = 0;
    bool mixed = false;
    for (uint32_t w = 0; w < s->workers; w++)
        for (uint64_t i = index / EXPONENT_GROUP * EXPONENT_GROUP;
             i < (index / EXPONENT_GROUP + 1) * EXPONENT_GROUP && i * n < elements; i++) {
            int32_t e = exponent_of(s, o, in[w], first + i * n, at_most(elements - i * n, n), scratch);
            mixed |= e >= INART_NONFINITE;
            if (i == index && e % INART_NONFINITE > most) most = e % INART_NONFINITE;
        }
    return most + (mixed ? INART_NONFINITE : 0);
}

/* Adds up the words of one chunk over all workers. Returns 0, or -1: a word wrapped. */
static int sum_words(const struct shape *s, const struct operation *o, uint8_t *const *in, const struct chunk *c,
                     float *scratch, uint32_t *wire, int32_t *sum) {
    memset(sum, 0, c->words * sizeof *sum);
    for (uint32_t w = 0; w < s->workers; w++) {
        const uint8_t *array = in[w] + c->first * inart_dtype_bytes(o->dtype);
        const float *values = inart_load(array, c->count, o->dtype, scratch);
        memset(wire, 0, c->words * sizeof *wire);
        if (o->encoding.fields == 1)
            inart_quantise(values, c->count, c->words, c->exponent, s->workers, wire);
        else {
            struct inart_fields f =
                inart_fields_of(o->encoding.fields, s->workers, o->encoding.stochastic, o->encoding.seed, w);
            inart_fields_quantise(&f, values, c->count, c->words, c->exponent, (uint32_t)c->first, wire);
        }
        for (size_t i = 0; i < c->words; i++)
            if (__builtin_add_overflow(sum[i], (int32_t)__builtin_bswap32(wire[i]), &sum[i])) return -1;
    }
    return 0;
}

static int reduce(const struct shape *s, const struct operation *o, uint8_t *const *in, uint8_t *to) {
    size_t words = INART_DATA_VALUES(s->values), n = o->encoding.fields * words, item = inart_dtype_bytes(o->dtype);
    uint64_t parts = o->kind == INART_REDUCE_SCATTER ? s->workers : 1, each = o->elements / parts;
    float *scratch = malloc(n * sizeof *scratch), *result = malloc(n * sizeof *result);
    uint32_t *wire = malloc(words * sizeof *wire);
    int32_t *sum = malloc(words * sizeof *sum);
    float divisor = o->mean ? (float)s->workers : 1;
    int wrong = 0;
    for (uint64_t part = 0; part < parts; part++)
        for (uint64_t i = 0; i * n < each && !wrong; i++) {
            struct chunk c = {.first = part * each + i * n, .count = at_most(each - i * n, n), .words = words};
            c.exponent = agreed(s, o, in, part * each, each, i, n, scratch);
            wrong = sum_words(s, o, in, &c, scratch, wire, sum);
            for (size_t k = 0; k < words; k++) wire[k] = __builtin_bswap32((uint32_t)sum[k]);
            if (o->encoding.fields == 1)
                inart_dequantise(wire, c.count, c.exponent, s->workers, divisor, result);
            else {
                struct inart_fields f = inart_fields_of(o->encoding.fields, s->workers, false, 0, 0);
                inart_fields_dequantise(&f, wire, c.count, words, c.exponent, divisor, result);
            }
            if (o->mean || s->workers == 1) inart_limit(result, c.count, o->dtype, c.exponent);
            inart_store(result, c.count, o->dtype, to + c.first * item);
        }
    free(scratch);
    free(result);
    free(wire);
    free(sum);
    return wrong;
}

/* A small operation: each worker's values are merged one after the other. */
static void merge(const struct shape *s, const struct operation *o, uint8_t *const *in, uint8_t *to) {
    int reduction = o->encoding.gathered.reduction;
    size_t item = inart_dtype_bytes(o->dtype);
    for (uint64_t at = 0; at < o->elements * item; at += item) {
        if (inart_is_real(o->dtype)) {
            double value = inart_real(in[0] + at, o->dtype);
            for (uint32_t w = 1; w < s->workers; w++)
                value = inart_real_with(value, inart_real(in[w] + at, o->dtype), reduction);
            inart_real_store(reduction == INART_MEAN ? value / s->workers : value, o->dtype, to + at);
        } else {
            uint64_t value = inart_whole(in[0] + at, o->dtype);
            for (uint32_t w = 1; w < s->workers; w++)
                value = inart_whole_with(value, inart_whole(in[w] + at, o->dtype), reduction);
            memcpy(to + at, &value, item);
        }
    }
}

int values_result(const struct shape *shape, const struct operation *o, uint8_t *const *in, uint8_t *to) {
    size_t item = inart_dtype_bytes(o->dtype);
    uint64_t bytes = o->elements * item, each = bytes / shape->workers;
    if (o->kind != INART_GATHER && o->encoding.gathered.columns)
        merge(shape, o, in, to);
    else if (o->kind != INART_GATHER)
        return reduce(shape, o, in, to);
    else if (o->source >= 0)
        memcpy(to, in[o->source], bytes);
    else
        for (uint32_t w = 0; w < shape->workers; w++) memcpy(to + w * each, in[w] + w * each, each);
    return 0;
}

bool values_finite(const uint8_t *at, int dtype, uint64_t elements) {
    size_t item = inart_dtype_bytes(dtype);
    for (uint64_t i = 0; i < elements; i++)
        if (!isfinite(inart_real(at + i * item, dtype))) return false;
    return true;
}

bool values_same(const uint8_t *a, const uint8_t *b, int dtype, uint64_t elements) {
    size_t item = inart_dtype_bytes(dtype);
    for (uint64_t at = 0; at < elements * item; at += item) {
        if (!memcmp(a + at, b + at, item)) continue;
        bool real = inart_is_real(dtype);
        if (!real || !isnan(inart_real(a + at, dtype)) || !isnan(inart_real(b + at, dtype))) return false;
    }
    return true;
}

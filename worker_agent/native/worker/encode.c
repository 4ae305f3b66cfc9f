#include "encode.h"
#include "operations.h"
#include "parts.h"

/* The bytes by which the prefetch of an array is ahead of the reads; they are more than the processor prefetches by
 * itself. */
#define ARRAY_FETCH 4096

uint64_t worker_data_at(const struct worker_thread *x, const struct worker_part *p, uint32_t index, size_t *count) {
    const struct worker_operation *o = p->operation;
    uint64_t n = chunk_values(x, o), turn = inart_turn(&o->layout, index),
             at = (p->offset + turn * n) * inart_dtype_bytes(o->dtype);
    *count = chunk_elements(p, (uint32_t)turn, n);
    if (o->layout.kind != INART_ALL_REDUCE)
        at += inart_owner(&o->layout, part_data_sequence(p, index)) * o->layout.stride;
    return at;
}

/* Returns the values of data chunk `index` as they are in the array, `count` of them, and prefetches those that follow.
 */
static const void *find_chunk(struct worker_thread *x, const struct worker_part *p, uint32_t index, size_t *count) {
    const struct worker_operation *o = p->operation;
    const uint8_t *data = o->in + worker_data_at(x, p, index, count);
    for (size_t i = 0; i < *count * inart_dtype_bytes(o->dtype); i += 64) __builtin_prefetch(data + ARRAY_FETCH + i);
    return data;
}

static const float *load_chunk(struct worker_thread *x, const struct worker_part *p, uint32_t index, size_t *count) {
    const void *data = find_chunk(x, p, index, count);
    return inart_load(data, *count, p->operation->dtype, x->scratch);
}

/* Writes a chunk of a gather: the owner's bytes unchanged, and zeros from the others. */
static void write_bytes(struct worker_thread *x, const struct worker_part *p, uint32_t index, uint8_t *wire) {
    size_t count = 0, size = chunk_values(x, p->operation);
    if (chunk_is_own(p, index)) {
        uint64_t at = worker_data_at(x, p, index, &count);
        memcpy(wire, p->operation->in + at, count);
    }
    memset(wire + count, 0, size - count);
}

/* Writes this worker's contribution to a chunk of a gathered operation, in its own words. */
static void write_gathered(struct worker_thread *x, const struct worker_part *p, uint32_t index, uint32_t *wire) {
    const struct worker_operation *o = p->operation;
    const struct inart_layout *l = &o->places;
    size_t count;
    uint64_t at = worker_data_at(x, p, index, &count),
             place = inart_takes_turns(l) && l->kind == INART_GATHER ? l->index * l->stride : 0;
    uint32_t column = l->source < 0 ? l->index : (uint32_t)l->source == l->index ? 0 : o->gathered.columns;
    inart_gathered_write(&o->gathered, o->in + place + at, count * inart_dtype_bytes(o->dtype), column, x->worker->data,
                         wire);
}

/* Finds this worker's own exponents of a group of data chunks. They are kept until all workers have agreed, so that
 * resends are equal to what was sent first. */
static void own_exponents(struct worker_thread *x, struct worker_part *p, uint32_t first) {
    uint32_t group = first / EXPONENT_GROUP;
    for (uint32_t i = first; i < p->order.data && i < first + EXPONENT_GROUP; i++) {
        size_t count;
        if (p->exponents[i] != NOT_AGREED) continue;
        const void *values = find_chunk(x, p, i, &count);
        const struct worker_operation *o = p->operation;
        int32_t own = o->dtype == INART_BFLOAT16
                          ? inart_pairs_exponent(&o->fields, values, count, x->scratch)
                          : inart_fields_exponent(&o->fields, inart_load(values, count, o->dtype, x->scratch), count);
        if (own >= INART_NONFINITE && p->mixed[group] == NOT_AGREED) p->mixed[group] = OWN_MIXED;
        p->exponents[i] = (int16_t)(NOT_AGREED - 1 - own % INART_NONFINITE);
    }
}

uint32_t worker_operation_mark(const struct worker_operation *o, uint32_t position) {
    uint64_t h = (uint64_t)o->tag << 32 | o->elements;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdull;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
    uint32_t bits = h >> (11 * (position / 2)) & 2047;
    return CHECK_MARK + (position % 2 ? 2047 - bits : bits);
}

static void write_exponents(struct worker_thread *x, struct worker_part *p, uint32_t chunk, uint32_t tree,
                            uint64_t sequence, uint32_t *wire) {
    const struct worker_operation *o = p->operation;
    uint32_t n = INART_EXPONENT_WORDS(x->worker->config.values);
    memset(wire + 2 * n, 0, (x->worker->config.values - 2 * n) * sizeof *wire);
    for (uint32_t j = 0; j < n; j++) {
        uint64_t place = (uint64_t)chunk * n + j, index;
        uint32_t exponent = 0;
        if (place < 2) { /* sizes: the largest, and the smallest; negative, which no exponent is */
            wire[j] = wire[j + n] =
                __builtin_bswap32((1u << 31) + (uint32_t)(place ? INT32_MAX - o->elements : o->elements));
            continue;
        }
        if (place < CHECK_VALUES)
            exponent = worker_operation_mark(o, (uint32_t)place - 2);
        else if (worker_has_exponents(o)) {
            bool one = numbering_word(place, &index);
            if (index < p->order.data) {
                if (p->exponents[index] == NOT_AGREED) /* of the group, then: it is found as a whole */
                    own_exponents(x, p, (uint32_t)index / EXPONENT_GROUP * EXPONENT_GROUP);
                int8_t mixed = p->mixed[index / EXPONENT_GROUP];
                if (!one)
                    exponent = mixed == OWN_MIXED || mixed == 1;
                else
                    exponent = (uint32_t)(p->exponents[index] >= 0 ? p->exponents[index]
                                                                   : part_own_exponent(p, (uint32_t)index));
            }
        }
        wire[j] = exponent;
    }
    uint32_t first = chunk * n < 2 ? 2 - chunk * n : 0; /* sizes have no code */
    check_seal_exponents(x->worker->check, tree, sequence, first, wire);
}

/* Writes the words of a data chunk with several values in each, and returns check_sum of them. */
static uint64_t write_fields(struct worker_thread *x, const struct worker_part *p, uint32_t index, uint32_t *wire) {
    const struct worker_operation *o = p->operation;
    size_t count, words = x->worker->data;
    const void *data = find_chunk(x, p, index, &count);
    int32_t exponent = part_exponent(p, index);
    if (inart_pairs_fit(&o->fields, o->dtype, count, words, exponent) && !o->residual)
        return inart_pairs_quantise(&o->fields, x->worker->check, data, exponent, wire);
    const float *values = inart_load(data, count, o->dtype, x->scratch);
    uint64_t position = (uint64_t)((const uint8_t *)data - o->in) / inart_dtype_bytes(o->dtype);
    if (o->residual)
        inart_fields_residual(&o->fields, values, count, exponent, (uint32_t)position, o->residual + position);
    inart_fields_quantise(&o->fields, values, count, words, exponent, (uint32_t)position, wire);
    return check_sum(x->worker->check, wire);
}

void worker_write_words(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t sequence,
                        int kind, uint32_t index, uint8_t flags, uint32_t *wire) {
    const struct inart_worker *w = x->worker;
    if (kind == EXPONENT) {
        write_exponents(x, p, index, worker_checked_tree(t), sequence, wire);
        return;
    }
    uint64_t sum;
    if (p->operation->layout.kind == INART_GATHER) {
        write_bytes(x, p, index, (uint8_t *)wire);
        sum = check_sum(w->check, wire);
    } else if (p->operation->gathered.columns) {
        write_gathered(x, p, index, wire);
        sum = check_sum(w->check, wire);
    } else if (p->operation->fields.count > 1) {
        sum = write_fields(x, p, index, wire);
    } else {
        size_t count;
        const float *values = load_chunk(x, p, index, &count);
        sum = checked_quantise(w->check, values, count, part_exponent(p, index), wire);
    }
    uint32_t mask =
        check_own_mask(w->check, t->masks, w->config.index, worker_checked_tree(t), flags & CHECK_KINDS, sequence);
    wire[w->data] = __builtin_bswap32(check_word(w->check, sum, mask));
}

void worker_write_request(const struct worker_thread *x, struct worker_tree *t, uint64_t sequence, uint32_t *wire) {
    uint32_t n = x->worker->config.values, most = 32 * (n - 2);
    uint64_t count = t->complete - sequence < most ? t->complete - sequence : most;
    memset(wire, 0, n * sizeof *wire);
    for (uint32_t i = 0; i < count; i++) {
        const struct worker_chunk *c = chunk_of(t, sequence + i);
        enum chunk_state waiting = chunk_waiting(c->state);
        if (waiting == CHUNK_SENT || waiting == CHUNK_AWAITED) wire[1 + i / 32] |= __builtin_bswap32(1u << i % 32);
    }
    wire[0] = __builtin_bswap32((uint32_t)count);
}

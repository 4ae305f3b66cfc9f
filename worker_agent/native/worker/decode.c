#include "decode.h"
#include "encode.h"
#include "operations.h"
#include "parts.h"

static void fail_mismatch(struct worker_thread *x, const struct worker_part *p) {
    const struct worker_operation *o = p->operation;
    if (p->smallest < p->largest)
        worker_fail(
            x, STATUS_MISMATCH,
            "operation %lld: the workers' tensors differ in size: the smallest has %d elements, the largest %d, "
            "this worker's %llu",
            (long long)o->id, p->smallest, p->largest, (unsigned long long)o->elements);
    else
        worker_fail(x, STATUS_MISMATCH,
                    "operation %lld: the workers' tensors differ in %sdtype, bits or operation (sum, mean), or their "
                    "agents are of "
                    "different versions",
                    (long long)o->id, p->smallest == p->largest ? "" : "size, ");
}

/* Takes one word of the exponents that came back, which is at `place` among the part's. */
static enum taken take_exponent(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint64_t place,
                                int32_t exponent) {
    uint64_t index;
    if (place < CHECK_VALUES) {
        if (exponent == (int32_t)worker_operation_mark(p->operation, (uint32_t)place - 2)) return TAKEN;
        fail_mismatch(x, p);
        return FAILED;
    }
    bool one = numbering_word(place, &index);
    if (index >= p->order.data || !worker_has_exponents(p->operation)) return TAKEN;
    int8_t *mixed = &p->mixed[index / EXPONENT_GROUP];
    int16_t *agreed = &p->exponents[index];
    /* The root's seal was right, so the root holds this for the result, and other workers may have used it. */
    if (one ? *agreed < NOT_AGREED && exponent < part_own_exponent(p, (uint32_t)index)
            : *mixed == OWN_MIXED && !exponent) {
        worker_fail(x, STATUS_PROTOCOL,
                    "tree %u (root %s): the workers were to agree on an exponent below this worker's own: a switch has "
                    "lost what this worker sent",
                    t->config.tree, t->config.root);
        return FAILED;
    }
    if (one ? !inart_exponent_valid(exponent) : exponent > 1) {
        worker_fail(x, STATUS_PROTOCOL, "tree %u (root %s): an impossible exponent came back (%d)", t->config.tree,
                    t->config.root, exponent);
        return FAILED;
    }
    if (one)
        *agreed = (int16_t)exponent;
    else
        *mixed = (int8_t)exponent;
    return TAKEN;
}

enum taken worker_take_exponents(struct worker_thread *x, struct worker_tree *t, struct worker_part *p, uint32_t chunk,
                                 const struct inart_header *h, const uint32_t *wire) {
    const struct check *check = x->worker->check;
    uint32_t n = INART_EXPONENT_WORDS(x->worker->config.values), tree = worker_checked_tree(t);
    if (!check_result_right(check, &t->results[EXPONENT], wire, 0, tree, INART_FLAG_MAXIMUM, h->sequence,
                            (uint32_t)(h->bitmap >> 32)) ||
        !check_maximum_right(check, wire, tree, h->sequence))
        return NOT_RIGHT;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t place = (uint64_t)chunk * n + j;
        uint32_t word = __builtin_bswap32(wire[j]);
        if (place < 2 && word >> 31)
            *(place ? &p->smallest : &p->largest) =
                place ? INT32_MAX - (int32_t)(word & INT32_MAX) : (int32_t)(word & INT32_MAX);
        else if (place >= 2 && word >> 31)
            return NOT_RIGHT;
        else if (place >= 2) {
            enum taken taken = take_exponent(x, t, p, place, (int32_t)(word >> CHECK_CODE_BITS));
            if (taken != TAKEN) return taken;
        }
    }
    if (!worker_has_exponents(p->operation)) { /* all are there, and data may go */
        memset(p->exponents, 0, p->order.data * sizeof *p->exponents);
        memset(p->mixed, 0, (p->order.data + EXPONENT_GROUP - 1) / EXPONENT_GROUP * sizeof *p->mixed);
    }
    return TAKEN;
}

/* Returns whether a data chunk's result is the sum of what the workers have sent; `sum` is check_sum of its words. */
static bool values_right(struct worker_thread *x, struct worker_tree *t, const struct worker_part *p,
                         const struct inart_header *h, uint32_t index, const uint32_t *wire, uint64_t sum) {
    return check_result_right(x->worker->check, &t->results[DATA], wire, sum, worker_checked_tree(t),
                              chunk_flags(t, p, index), h->sequence, (uint32_t)(h->bitmap >> 32));
}

/* Puts all workers' contributions to a chunk of a gathered operation into the array, merged or side by side. */
static void take_gathered(struct worker_thread *x, const struct worker_part *p, uint32_t index, const uint32_t *wire) {
    struct worker_operation *o = p->operation;
    const struct inart_layout *l = &o->places;
    size_t count, stride = INART_VALUE_BYTES * (size_t)o->gathered.words;
    uint64_t at = worker_data_at(x, p, index, &count), bytes = count * inart_dtype_bytes(o->dtype);
    if (l->kind == INART_GATHER) {
        for (uint32_t w = 0; w < o->gathered.columns; w++)
            memcpy(o->out + w * l->stride + at, (const uint8_t *)wire + w * stride, bytes);
        return;
    }
    uint8_t *merged = (uint8_t *)x->scratch;
    inart_gathered_merge(&o->gathered, wire, bytes, o->dtype, merged);
    uint64_t from = 0, until = bytes, own = l->index * l->stride;
    if (l->kind == INART_REDUCE_SCATTER) {
        from = at < own ? own - at : 0;
        until = own + l->stride > at ? own + l->stride - at : 0;
        until = until < bytes ? until : bytes;
    }
    if (from < until) memcpy(o->out + at + from, merged + from, until - from);
}

enum taken worker_take_values(struct worker_thread *x, struct worker_tree *t, struct worker_part *p,
                              const struct inart_header *h, uint32_t index, const uint32_t *wire) {
    struct worker_operation *o = p->operation;
    const struct check *check = x->worker->check;
    bool raw = o->layout.kind == INART_GATHER,
         others = o->layout.kind == INART_REDUCE_SCATTER && !chunk_is_own(p, index);
    size_t count;
    if (o->gathered.columns) {
        if (!values_right(x, t, p, h, index, wire, check_sum(check, wire))) return NOT_RIGHT;
        take_gathered(x, p, index, wire);
        return TAKEN;
    }
    uint8_t *data = o->out + worker_data_at(x, p, index, &count);
    bool fields = o->fields.count > 1, as_they_are = raw || others;
    int32_t exponent = as_they_are ? 0 : part_exponent(p, index);
    bool pairs = !as_they_are && fields && inart_pairs_fit(&o->fields, o->dtype, count, x->worker->data, exponent);
    uint64_t sum;
    if (pairs)
        sum = inart_pairs_dequantise(&o->fields, check, wire, exponent, o->divisor, (uint16_t *)(void *)x->scratch);
    else if (as_they_are || fields)
        sum = check_sum(check, wire);
    else
        sum = checked_dequantise(check, wire, count, exponent, o->divisor, x->scratch);
    if (!values_right(x, t, p, h, index, wire, sum)) return NOT_RIGHT;
    if (others) return TAKEN;
    if (fields && !pairs && !raw)
        inart_fields_dequantise(&o->fields, wire, count, x->worker->data, exponent, o->divisor, x->scratch);
    bool mean = o->divisor == (float)x->worker->config.workers; /* or the sum of one worker */
    if (mean && !raw && !pairs) inart_limit(x->scratch, count, o->dtype, exponent);
    size_t bytes = count * inart_dtype_bytes(o->dtype);
    if (raw)
        memcpy(data, wire, count);
    else if (!pairs && o->dtype != INART_FLOAT32)
        inart_store(x->scratch, count, o->dtype, data);
    else if (o->elements * inart_dtype_bytes(o->dtype) >= INART_STREAM_LEAST)
        inart_stream(data, x->scratch, bytes);
    else
        memcpy(data, x->scratch, bytes);
    return TAKEN;
}

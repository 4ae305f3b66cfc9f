/* Tells the chunks of a part apart: their numbers, their elements and their owners. */
#ifndef INART_WORKER_PARTS_H
#define INART_WORKER_PARTS_H

#include "state.h"

static inline uint32_t worker_random(struct worker_thread *x) /* xorshift: only spreads timers */
{
    x->random ^= x->random << 13;
    x->random ^= x->random >> 17;
    x->random ^= x->random << 5;
    return x->random;
}

static inline uint64_t worker_random_below(struct worker_thread *x, uint64_t n) { return n ? worker_random(x) % n : 0; }

static inline struct worker_chunk *chunk_of(struct worker_tree *t, uint64_t sequence) {
    return &t->ring[sequence & t->mask];
}

static inline void chunk_change(struct worker_chunk *c, enum chunk_event event) {
    c->state = (uint8_t)chunk_after((enum chunk_state)c->state, event);
}

static inline uint64_t part_chunks(const struct worker_part *p) { return (uint64_t)p->order.exponents + p->order.data; }

static inline struct worker_part *part_of(struct worker_tree *t, uint64_t sequence) {
    for (struct worker_part *p = t->parts; p; p = p->next)
        if (sequence - p->base < part_chunks(p)) return p;
    return NULL;
}

/* Returns the number of elements of data chunk `index`: at most `n`, fewer in the last. */
static inline size_t chunk_elements(const struct worker_part *p, uint32_t index, size_t n) {
    uint64_t left = p->count - (uint64_t)index * n;
    return left < n ? (size_t)left : n;
}

/* Returns the number of values in a chunk. */
static inline size_t chunk_values(const struct worker_thread *x, const struct worker_operation *o) {
    if (o->gathered.columns) return INART_VALUE_BYTES * (size_t)o->gathered.words / inart_dtype_bytes(o->dtype);
    return o->dtype == INART_BYTES ? INART_VALUE_BYTES * (size_t)x->worker->data
                                   : o->fields.count * (size_t)x->worker->data;
}

static inline uint64_t part_sequence(const struct worker_part *p, int kind, uint32_t index) {
    return p->base + numbering_place(&p->order, kind, index);
}

static inline uint64_t part_data_sequence(const struct worker_part *p, uint32_t index) {
    return part_sequence(p, DATA, index);
}

static inline bool chunk_is_everybodys(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    return inart_everybodys(part_data_sequence(p, index), index, p->order.data, t->period);
}

/* Returns whether data chunk `index` is this worker's own. */
static inline bool chunk_is_own(const struct worker_part *p, uint32_t index) {
    const struct inart_layout *l = &p->operation->layout;
    return inart_owner(l, part_data_sequence(p, index)) == l->index;
}

/* Returns whether another worker's packet is the whole chunk: this worker sends nothing, but asks for the chunk when it
 * does not come. */
static inline bool chunk_is_awaited(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    return p->operation->layout.kind == INART_GATHER && !chunk_is_own(p, index) && !chunk_is_everybodys(t, p, index);
}

/* Returns whether the result goes to other workers, so that this one only hears that the chunk is complete. */
static inline bool chunk_is_elsewhere(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    if (p->operation->layout.kind == INART_REDUCE_SCATTER) return !chunk_is_own(p, index);
    return p->operation->layout.kind == INART_GATHER && t->config.others && chunk_is_own(p, index) &&
           !chunk_is_everybodys(t, p, index);
}

/* Returns the number by which check words know the tree. */
static inline uint32_t worker_checked_tree(const struct worker_tree *t) {
    return inart_checked_tree(&t->direction, t->config.tree);
}

/* Returns the same tree's other direction; NULL where the tree has only one. */
static inline struct worker_tree *worker_other_direction(const struct worker_tree *t) {
    if (t->direction.of < INART_DIRECTIONS) return NULL;
    return (struct worker_tree *)(uintptr_t)(t->direction.number ? t - 1 : t + 1);
}

/* Returns the cost of a data chunk in tokens, of which a packet at the tree's rate takes one. In an all-gather it is
 * less than one, because no link to a worker carries all of the chunks. Beside a reduce-scatter the all-gather goes at
 * the tree's rate, and the reduce-scatter at what is left of it (worker_send_chunk): both together fill the links.
 * Other operations fill the links by themselves, so two of them go half as fast each. */
static inline double chunk_cost(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    const struct inart_layout *l = &p->operation->layout;
    const struct worker_tree *other = worker_other_direction(t);
    if (other && other->parts)
        return !t->crowded && inart_takes_turns(l) && inart_takes_turns(&other->parts->operation->layout) ? 1 : 2;
    return l->kind == INART_GATHER && l->source < 0 && !chunk_is_everybodys(t, p, index) ? 1 / t->config.gather_speed
                                                                                         : 1;
}

/* Returns whether the chunk's exponent is agreed, and whether any worker has NaN or Inf in its group. */
static inline bool chunk_is_agreed(const struct worker_part *p, uint32_t index) {
    return p->exponents[index] >= 0 && p->mixed[index / EXPONENT_GROUP] >= 0;
}

static inline int32_t part_exponent(const struct worker_part *p, uint32_t index) {
    return p->exponents[index] + (p->mixed[index / EXPONENT_GROUP] ? INART_NONFINITE : 0);
}

/* Returns the flags that all packets of a data chunk have, whichever worker sends them. */
static inline uint8_t chunk_flags(const struct worker_tree *t, const struct worker_part *p, uint32_t index) {
    int kind = p->operation->layout.kind;
    if (kind == INART_ALL_REDUCE || chunk_is_everybodys(t, p, index)) return 0;
    return kind == INART_REDUCE_SCATTER ? INART_FLAG_SCATTER : INART_FLAG_SINGLE;
}

/* Returns whether exponents are agreed before the operation's data goes. */
static inline bool worker_has_exponents(const struct worker_operation *o) {
    return o->layout.kind != INART_GATHER && !o->gathered.columns;
}

static inline int32_t part_own_exponent(const struct worker_part *p, uint32_t index) {
    return NOT_AGREED - 1 - p->exponents[index];
}

/* Returns the sequence number of the next chunk of a kind that the part has to send. */
static inline uint64_t part_next(const struct worker_part *p, int kind) {
    return part_sequence(p, kind, p->sent[kind]);
}

#endif

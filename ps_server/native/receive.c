#include "receive.h"
#include "asking.h"
#include "chunks.h"
#include "results.h"
#include "verify.h"

#define AHEAD 4 /* chunks */

/* Sets `set` to the workers whose contributions a packet of the flow has. Returns false where it has none, or a bit
 * without a meaning. */
static bool contributors(const struct root_flow *flow, uint64_t bitmap, uint32_t words, uint64_t *set) {
    if (!flow->partial) {
        memcpy(set, flow->sets, words * sizeof *set);
        return true;
    }
    if (!bitmap || (flow->parts < MOST_PARTS && bitmap >> flow->parts)) return false;
    memset(set, 0, words * sizeof *set);
    for (; bitmap; bitmap &= bitmap - 1) {
        const uint64_t *part = flow->sets + (uint32_t)__builtin_ctzll(bitmap) * words;
        for (uint32_t i = 0; i < words; i++) set[i] |= part[i];
    }
    return true;
}

static void add(uint32_t *restrict sum, const uint32_t *restrict wire, uint32_t n, bool fresh, bool maximum) {
    if (fresh)
        memcpy(sum, wire, n * sizeof *sum);
    else if (maximum)
        for (uint32_t i = 0; i < n; i++) {
            int32_t v = (int32_t)__builtin_bswap32(wire[i]), most = (int32_t)__builtin_bswap32(sum[i]);
            sum[i] = __builtin_bswap32((uint32_t)(v > most ? v : most));
        }
    else /* unsigned: a hostile packet must not make the sum undefined */
        for (uint32_t i = 0; i < n; i++)
            sum[i] = __builtin_bswap32(__builtin_bswap32(sum[i]) + __builtin_bswap32(wire[i]));
}

/* Prefetches a later chunk's values: the ring is larger than the caches, and chunks come in order. */
static void prefetch(const struct root_thread *x, const struct root_tree *t, uint64_t sequence) {
    const uint32_t *values = t->values + ((sequence + AHEAD) & t->mask) * x->values;
    for (uint32_t i = 0; i < x->values; i += 16) __builtin_prefetch(values + i, 1);
}

/* Returns the flow that a packet belongs to, and its header; NULL: it is none of this job's, which is counted. */
static struct root_flow *flow_of(struct root_thread *x, uint8_t *packet, size_t length, struct inart_header *h) {
    x->stats.packets_received++;
    x->stats.bytes_received += INART_OFFSET_HEADER + length;
    if (inart_parse(packet, length, x->engine.io->packet_bytes, h)) {
        x->stats.malformed++;
        return NULL;
    }
    int32_t number = h->flags & INART_FLAG_RESULT || h->job != x->job ? -1 : label_map_get(&x->labels, h->label);
    if (number < 0) {
        x->stats.unknown++;
        return NULL;
    }
    if (!inart_same_epoch(h->epoch, x->epoch)) {
        x->stats.other_epoch++;
        return NULL;
    }
    return &x->flows[number];
}

/* Returns whether another chunk will become complete later, whose result tells the owner of the present one that this
 * one is complete. There is always one after a chunk of a single worker, because the last of an operation is
 * everybody's. */
static bool more_comes(const struct root_tree *t) {
    return t->oldest < t->stats.newest || root_cell_of(t, t->stats.newest - 1)->flags & INART_FLAG_SINGLE;
}

/* Sends the result of a chunk that has become complete by the packet of workers `set` with header h. `values` are the
 * chunk's, wherever they are nearest. */
static void finish(struct root_thread *x, struct root_tree *t, struct root_cell *c, const struct inart_header *h,
                   const uint64_t *set, const uint32_t *values, uint64_t now) {
    uint64_t sequence = h->sequence;
    uint8_t kind = c->flags;
    root_take_complete(t, h, kind, inart_attempt(h->epoch, x->epoch), now);
    c->asked_at = 0;
    root_cell_change(c, CELL_FULL);
    c->asker = 0;
    t->stats.completed++;
    t->stats.last_result_ns = now;
    uint64_t oldest = t->oldest;
    if (sequence == oldest) {
        while (root_is_complete(t, t->oldest)) t->oldest++;
        t->oldest_since = now;
    }
    /* A sum that only its owner needs, and a chunk that all but its owner need, go to these workers alone. But when
     * later chunks waited for it, all workers must hear that those are complete. */
    uint32_t label = t->return_label;
    if (t->oldest - oldest <= 1 && kind & INART_FLAG_SCATTER)
        label = t->answer_labels[sequence % x->workers];
    else if ((t->oldest - oldest <= 1 || more_comes(t)) && kind & INART_FLAG_SINGLE && t->others_labels)
        label = t->others_labels[root_set_first(set, x->words)];
    c->sent_at = label == t->return_label ? now : 0;
    t->stats.results += root_send_result(x, t, sequence, values, label, now);
}

/* A packet of this job that reaches a chunk's cell. `set` are the workers whose contributions it has, `size` of them;
 * `wire` are its values. */
struct arrival {
    const struct root_flow *flow;
    struct inart_header h; /* its sequence is that of the tree */
    struct root_tree *tree;
    struct root_cell *cell;
    const uint32_t *wire;
    uint64_t set[MOST_WORDS];
    uint32_t size;
    uint8_t kind;
};

/* Returns the lane, of the flow's tree, that a chunk belongs to; NULL: it came by a port that is not the lane's. */
static struct root_tree *tree_of(struct root_thread *x, const struct root_flow *flow, struct inart_header *h) {
    struct root_tree *t = &x->trees[flow->tree];
    uint32_t ways = inart_ways(&t->direction);
    int way = t->family.at[h->sequence & (ways - 1)];
    if (way < 0) return NULL;
    h->sequence >>= __builtin_ctz(ways);
    return t + way;
}

/* Takes note that the tree has heard of a chunk. */
static void note_newest(struct root_tree *t, uint64_t sequence, uint64_t now) {
    if (!t->stats.first_packet_ns) t->stats.first_packet_ns = now;
    if (sequence < t->stats.newest) return;
    if (t->stats.newest <= t->oldest) /* nothing was waiting */
        t->oldest_since = now;
    t->stats.newest = sequence + 1;
}

/* Forgets a chunk's contributions where the packet begins it anew: it is the answer to a request for all contributions;
 * or it is a sum of more workers than the root has; or what the root has was never sent by this job. `both` says
 * whether some of the packet's contributions are in the chunk already, `new` whether some are not. Returns `both` as it
 * is afterwards. */
static uint64_t begin_anew(struct root_thread *x, const struct arrival *a, uint64_t both, uint64_t new) {
    struct root_tree *t = a->tree;
    struct root_cell *c = a->cell;
    uint64_t sequence = a->h.sequence;
    if (cell_begins_anew(c->state) && inart_attempt(a->h.epoch, x->epoch) == c->attempt) {
        root_cell_forget(x, t, sequence);
        root_cell_change(c, CELL_BEGUN);
        both = 0;
    }
    bool empty = c->missing == x->workers;
    if (!empty && c->flags == a->kind && both && new && a->size > x->workers - c->missing) {
        root_cell_forget(x, t, sequence);
        both = 0;
        empty = true;
    }
    if (!empty && c->flags != a->kind && !cell_verifies(c->state) &&
        verify_words(x, t, a->kind, sequence, a->set, a->wire)) {
        root_forget_chunk(x, t, sequence, a->kind);
        both = 0;
    }
    return both;
}

/* Handles a packet for a complete chunk, to which nothing is added any more. If a worker of the chunk asks for the
 * result, it is sent. */
static void take_of_complete(struct root_thread *x, const struct arrival *a, const uint64_t *there, uint64_t now) {
    struct root_tree *t = a->tree;
    const struct root_cell *c = a->cell;
    bool foreign = c->flags != a->kind;
    for (uint32_t i = 0; i < x->words; i++) foreign |= (a->set[i] & ~there[i]) != 0;
    if (foreign) {
        t->stats.refused++;
        return;
    }
    t->stats.duplicates++;
    bool hasty = a->h.flags & INART_FLAG_LATE && now - c->sent_at < root_arrival_time(t);
    if (a->h.flags & (INART_FLAG_RESEND | INART_FLAG_LATE) && !hasty)
        root_take_request(x, t, a->h.sequence, a->set, now);
}

/* Adds the packet to its chunk, whose workers so far are `there`, and finishes the chunk when it is complete and right.
 */
static void take_contribution(struct root_thread *x, const struct arrival *a, uint64_t *there, bool empty,
                              uint64_t now) {
    struct root_tree *t = a->tree;
    struct root_cell *c = a->cell;
    uint64_t sequence = a->h.sequence;
    uint32_t *sum = root_values_of(x, t, sequence);
    for (uint32_t i = 0; i < x->words; i++) there[i] |= a->set[i];
    c->missing = a->kind & INART_FLAG_SINGLE ? 0 : c->missing - a->size;
    bool right = cell_verifies(c->state); /* then it was looked at before */
    if (empty && !c->missing) {           /* only a RESEND will read it */
        if (right)
            inart_stream(sum, a->wire, x->values * sizeof *sum);
        else
            right = verify_streamed(x, t, a->kind, sequence, there, a->wire, sum);
    } else {
        prefetch(x, t, sequence);
        add(sum, a->wire, x->values, empty, a->kind & INART_FLAG_MAXIMUM);
    }
    t->stats.added++;
    if (c->missing) {
        if (c->asked_at) t->wanted_slow = 0; /* what was asked for comes */
        root_take_hint(x, t, a->flow, &a->h, a->size, now);
        return;
    }
    if (!right && (empty || !verify_words(x, t, a->kind, sequence, there, sum))) {
        verify_sum_wrong(x, t, sequence, a->kind, a->set, a->wire, a->h.label, now);
        return;
    }
    finish(x, t, c, &a->h, a->set, empty ? a->wire : sum, now);
}

void root_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now) {
    struct root_thread *x = (struct root_thread *)engine;
    struct arrival a;
    a.flow = flow_of(x, packet, length, &a.h);
    if (!a.flow) return;
    struct root_tree *t = a.tree = tree_of(x, a.flow, &a.h);
    if (!t) {
        x->stats.unknown++;
        return;
    }
    t->stats.packets++;
    t->stats.bytes += INART_OFFSET_HEADER + length;
    uint64_t sequence = a.h.sequence;
    a.kind = a.h.flags & CHECK_KINDS;
    /* A chunk is of one kind at most. The words of a maximum prove themselves, but not that they are of that kind. */
    if (a.kind & (a.kind - 1) || !contributors(a.flow, a.h.bitmap, x->words, a.set) ||
        sequence >= t->oldest + t->slots) {
        t->stats.refused++;
        return;
    }
    struct root_cell *c = a.cell = root_cell_of(t, sequence);
    a.wire = (const uint32_t *)inart_values(packet);
    if (c->owner > sequence + 1) { /* everybody has had its answer */
        t->stats.duplicates++;
        return;
    }
    bool fresh = c->owner != sequence + 1, complete = !fresh && cell_is_complete(c->state);
    if (a.h.flags & INART_FLAG_ASK) { /* has nothing to add */
        t->stats.duplicates++;
        if (complete) root_take_requests(x, t, sequence, a.set, a.wire, now);
        return;
    }
    uint64_t *there = root_workers_of(x, t, sequence), both = 0, new = 0;
    if (complete) {
        take_of_complete(x, &a, there, now);
        return;
    }
    a.size = root_set_size(a.set, x->words);
    if (a.kind & INART_FLAG_SINGLE && a.size != 1) {
        t->stats.refused++;
        return;
    }
    if (fresh) root_cell_begin(x, t, sequence);
    c->congested |= x->engine.congested;
    for (uint32_t i = 0; i < x->words; i++) {
        both |= there[i] & a.set[i];
        new |= a.set[i] & ~there[i];
    }
    note_newest(t, sequence, now);
    both = begin_anew(x, &a, both, new);
    bool empty = c->missing == x->workers;
    if (empty) c->flags = a.kind;
    if (both || c->flags != a.kind) { /* it has a contribution that the chunk has, or is of another kind */
        ++*(new || c->flags != a.kind ? &t->stats.refused : &t->stats.duplicates);
        root_take_hint(x, t, a.flow, &a.h, a.size, now);
    } else if (!(cell_verifies(c->state) || now < t->wary_until) ||
               verify_packet(x, t, sequence, a.kind, a.set, a.wire, a.h.label, now))
        take_contribution(x, &a, there, empty, now);
}

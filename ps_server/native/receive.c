#include "receive.h"
#include "asking.h"
#include "chunks.h"
#include "results.h"
#include "verify.h"

#define AHEAD 4 /* chunks */

/* Whose contributions a packet of the flow has, to `set`. False: none, or a bit that means nothing. */
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

/* The ring is larger than the caches, and chunks come in order: the one that comes a few later is fetched meanwhile. */
static void prefetch(const struct root_thread *x, const struct root_tree *t, uint64_t sequence) {
    const uint32_t *values = t->values + ((sequence + AHEAD) & t->mask) * x->values;
    for (uint32_t i = 0; i < x->values; i += 16) __builtin_prefetch(values + i, 1);
}

/* The flow that a packet is of, and its header; NULL: it is of none of this job, and counted so. */
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

/* Is some chunk still to become complete, whose result tells the owner of the present one that this one is? After a
 * chunk of one worker there is: the last of an operation is everybody's. */
static bool more_comes(const struct root_tree *t) {
    return t->oldest < t->stats.newest || cell_of(t, t->stats.newest - 1)->flags & INART_FLAG_SINGLE;
}

/* Chunk `sequence` has become complete by the packet of workers `set` with header h: its result leaves. values: of the
 * chunk, where they are nearest. */
static void finish(struct root_thread *x, struct root_tree *t, struct root_cell *c, const struct inart_header *h,
                   const uint64_t *set, const uint32_t *values, uint64_t now) {
    uint64_t sequence = h->sequence;
    uint8_t kind = c->flags;
    root_take_complete(t, h, kind, inart_attempt(h->epoch, x->epoch), now);
    c->asked_at = 0;
    c->alone = false;
    c->asker = 0;
    t->stats.completed++;
    t->stats.last_result_ns = now;
    uint64_t oldest = t->oldest;
    if (sequence == oldest) {
        while (cell_of(t, t->oldest)->owner == t->oldest + 1 && !cell_of(t, t->oldest)->missing) t->oldest++;
        t->oldest_since = now;
    }
    /* A sum that only its owner needs, or what all but its owner do; but when later chunks waited for it, all must hear
     * that these are complete. */
    uint32_t label = t->return_label;
    if (t->oldest - oldest <= 1 && kind & INART_FLAG_SCATTER)
        label = t->answer_labels[sequence % x->workers];
    else if ((t->oldest - oldest <= 1 || more_comes(t)) && kind & INART_FLAG_SINGLE && t->others_labels)
        label = t->others_labels[first_of(set, x->words)];
    c->sent_at = label == t->return_label ? now : 0;
    t->stats.results += root_send_result(x, t, sequence, values, label, now);
}

void root_receive(struct engine_thread *engine, uint8_t *packet, size_t length, uint64_t now) {
    struct root_thread *x = (struct root_thread *)engine;
    struct inart_header h;
    struct root_flow *flow = flow_of(x, packet, length, &h);
    if (!flow) return;
    struct root_tree *t = &x->trees[flow->tree];
    if (t->direction.of == INART_DIRECTIONS) {
        t += h.sequence % INART_DIRECTIONS;
        h.sequence /= INART_DIRECTIONS;
    }
    t->stats.packets++;
    t->stats.bytes += INART_OFFSET_HEADER + length;
    uint64_t set[MOST_WORDS], sequence = h.sequence;
    if (!contributors(flow, h.bitmap, x->words, set) || sequence >= t->oldest + t->slots) {
        t->stats.refused++;
        return;
    }
    struct root_cell *c = cell_of(t, sequence);
    uint8_t kind = h.flags & CHECK_KINDS;
    if (c->owner > sequence + 1) { /* everybody has had its answer */
        t->stats.duplicates++;
        return;
    }
    bool fresh = c->owner != sequence + 1;
    if (h.flags & INART_FLAG_ASK) { /* has nothing to add */
        t->stats.duplicates++;
        if (!fresh && !c->missing) root_take_requests(x, t, sequence, set, (const uint32_t *)inart_values(packet), now);
        return;
    }
    uint32_t size = size_of(set, x->words);
    if (kind & INART_FLAG_SINGLE && size != 1) {
        t->stats.refused++;
        return;
    }
    uint64_t *there = workers_of(x, t, sequence), both = 0, new = 0;
    if (fresh) root_cell_begin(x, t, sequence);
    c->congested |= x->engine.congested;
    for (uint32_t i = 0; i < x->words; i++) {
        both |= there[i] & set[i];
        new |= set[i] & ~there[i];
    }
    if (!t->stats.first_packet_ns) t->stats.first_packet_ns = now;
    if (sequence >= t->stats.newest) {
        if (t->stats.newest <= t->oldest) /* nothing was waiting */
            t->oldest_since = now;
        t->stats.newest = sequence + 1;
    }
    if (c->renew && c->missing && inart_attempt(h.epoch, x->epoch) == c->attempt) {
        root_cell_forget(x, t, sequence);
        both = 0;
        c->renew = false;
    }
    bool empty = c->missing == x->workers;
    if (!empty && c->missing && c->flags == kind && both && new &&
        size > x->workers - c->missing) { /* a sum of more workers than are there */
        root_cell_forget(x, t, sequence);
        both = 0;
        empty = true;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    if (!empty && c->flags != kind && !c->alone && c->missing && verify_words(x, t, kind, sequence, set, wire)) {
        root_forget_chunk(x, t, sequence, kind); /* what came before was never what this job sends */
        both = 0;
        empty = true;
    }
    if (empty) c->flags = kind;
    if (both || c->flags != kind) {
        if (new || c->flags != kind)
            t->stats.refused++;
        else {
            t->stats.duplicates++;
            bool hasty = h.flags & INART_FLAG_LATE && now - c->sent_at < root_arrival_time(t);
            if (!c->missing && h.flags & (INART_FLAG_RESEND | INART_FLAG_LATE) && !hasty)
                root_take_request(x, t, sequence, set, now);
        }
        if (c->missing) root_take_hint(x, t, flow, &h, size, now);
        return;
    }
    if ((c->alone || now < t->wary_until) && !verify_packet(x, t, sequence, kind, set, wire, h.label, now)) return;
    uint32_t *sum = values_of(x, t, sequence);
    for (uint32_t i = 0; i < x->words; i++) there[i] |= set[i];
    c->missing = kind & INART_FLAG_SINGLE ? 0 : c->missing - size;
    bool right = c->alone;      /* then it was looked at before */
    if (empty && !c->missing) { /* only a RESEND will read it */
        if (right)
            inart_stream(sum, wire, x->values * sizeof *sum);
        else
            right = verify_streamed(x, t, kind, sequence, there, wire, sum);
    } else {
        prefetch(x, t, sequence);
        add(sum, wire, x->values, empty, kind & INART_FLAG_MAXIMUM);
    }
    t->stats.added++;
    if (c->missing) {
        if (c->asked_at) t->wanted_slow = 0; /* what was asked for comes */
        root_take_hint(x, t, flow, &h, size, now);
        return;
    }
    if (!right && (empty || !verify_words(x, t, kind, sequence, there, sum))) {
        verify_sum_wrong(x, t, sequence, kind, set, wire, h.label, now);
        return;
    }
    finish(x, t, c, &h, set, empty ? wire : sum, now);
}

/* The parameter server's engine: the root of any number of trees, spread over I/O threads by their ports.
 *
 * Per tree a ring of 2 x slots chunks. A worker's window is `slots` chunks wide, so while a worker may still ask for chunk c
 * nobody sends chunk c + 2 x slots or later; and nobody sends a chunk `slots` or more past the oldest incomplete one, so a
 * packet that does is refused. Results are sent once, when a chunk is complete; a RESEND of a complete chunk is answered
 * from the ring. A result that finds no room in the kernel is dropped: the workers ask again.
 * What is lost on the way here the root asks for (asking.h).
 *
 * The root tells all workers of its job apart, the aggregation points below it only their own flows: of a partial sum each
 * bit of the packet's bitmap stands for a part, the workers behind one flow of the point that it comes from.
 *
 * When the controller has led a tree another way, the results that a worker may lack are sent once more, to all at once: what
 * they would ask for one by one.
 *
 * A thread's lock covers its trees and its lanes; the thread lets go of it while it sleeps.
 */
#define _GNU_SOURCE
#include "check.h"
#include "engine.h"
#include "labels.h"
#include "stream.h"

#define AHEAD 4        /* chunks */
#define EVERYBODY UINT16_MAX
#define MOST_WORDS ((INART_MAX_WORKERS + 63) / 64) /* of a set of workers, a bit each */
#define MOST_PARTS 64 /* bits of a packet's bitmap */
#define REPEAT_PAUSE (INART_NS / 1000)
#define INART_SUSPECTS 32
#define MOST_QUESTION 1024 /* chunks */
#define RECENT_ATTEMPTS 16 /* a divisor of INART_ATTEMPTS */

/* ---- shared with ps_server/server.py (ctypes), which compares the sizes (inart_root_sizes) ---- */
struct inart_root_flow { /* partial: the bitmap says which parts are in a packet; else all of them */
    uint32_t label;
    int32_t partial;
    uint32_t workers; /* in all parts */
    const uint32_t *worker, *part; /* each worker's index, and its part */
};
struct inart_root_tree_config {
    uint32_t tree, return_label, slots, flows, port, thread, here; /* here: a worker of the tree is on this host */
    double rate_mbps; /* of results, as planned; 0: not known */
    const struct inart_root_flow *flow;
    const uint32_t *answer_labels; /* by worker index */
    const uint32_t *others_labels; /* all but this worker, by its index; NULL: there are none */
};
struct inart_root_config {
    uint32_t job, epoch, workers, values, trees;
    uint8_t key[CHECK_KEY_BYTES]; /* of the epoch: check.h */
    uint32_t sources;
    const uint32_t *source; /* addresses of the workers, host order; none: any */
    const struct inart_root_tree_config *tree;
};
/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_root_tree_stats {
    uint64_t packets, bytes, added, completed, duplicates, refused, results, answers, results_dropped, check_failures, questions;
    uint64_t first_packet_ns, last_result_ns;
    uint64_t oldest_incomplete, oldest_waiting_ns, newest; /* newest: highest sequence seen + 1 */
    uint64_t oldest_workers[MOST_WORDS]; /* who is in the oldest incomplete chunk */
    uint64_t suspects[INART_SUSPECTS]; /* labels of packets that were wrong, in the upper half, and how many; 0: none */
    uint32_t suspect_workers[INART_SUSPECTS]; /* whose each of them is: the worker's index + 1; 0: of several */
};
/* ---------------------------------------------------------------- */

struct cell {
    uint64_t owner; /* sequence + 1; 0: fresh */
    uint32_t missing; /* workers */
    uint8_t flags; /* those of CHECK_KINDS that its packets have */
    uint8_t attempt, asks; /* that it was asked for in, and how often */
    bool renew; /* what is there is forgotten when the first packet of the attempt comes */
    bool alone; /* it was wrong once: each packet is verified before it is added; of a complete chunk: it was sent to all once more */
    uint16_t asker; /* of a complete chunk, whom its result is to be sent once more: a worker's index + 1, or EVERYBODY; 0: nobody */
    uint64_t asked_at; /* 0: never; of a complete chunk: when its result was last sent once more */
    uint64_t sent_at; /* when its result was last sent to all */
};

struct tree {
    uint32_t number, return_label, slots, mask, lane;
    struct cell *ring;
    uint64_t *workers; /* ring x words: who is in a chunk */
    uint32_t *values; /* ring x values per packet, big-endian as on the wire */
    struct check_recent recent[2]; /* of sums, and of maxima */
    uint64_t oldest; /* incomplete */
    uint64_t oldest_since;
    uint64_t wary_until; /* each packet is verified before it is added */
    uint32_t *answer_labels, *others_labels; /* by worker index; others_labels: NULL: there are none */
    /* Results that are to be sent once more (cell.asker) are from `repeat` to before `repeat_end`. All packets to the workers take
     * tokens, which come at a little more than the planned rate (packets a second): what is sent once more is what new
     * results leave of it, so that it never fills the links with what nobody lacks. */
    uint64_t repeat, repeat_end, tokens_at;
    double planned, tokens;
    /* asking.h. evident: all workers have sent what is before it; evident_before: at the last look; wanted: a worker waits for it. */
    uint64_t evident, evident_before, wanted, look_at, guard;
    uint64_t wanted_asked, probed_at, probed; /* probed: by a RESEND of a chunk that lacked somebody */
    uint64_t question_rtt, asked_came; /* when a chunk that was asked for came */
    uint64_t attempt_at[RECENT_ATTEMPTS]; /* when they were asked for; 0: and something of it has come */
    uint64_t unadded_since; /* packets that were asked for since then, and that no switch will add */
    uint64_t heard_of, heard[MOST_WORDS]; /* who was in a chunk that was asked for anew */
    uint64_t rate_since, guard_since;
    uint32_t unadded, rate_count;
    double rate;
    uint8_t attempt, wanted_asks, wanted_slow, wanted_left;
    struct inart_root_tree_stats stats;
};

struct flow {
    uint32_t tree;
    bool partial;
    uint32_t parts, workers;
    uint64_t everyone[MOST_WORDS]; /* of all parts */
    uint64_t *sets; /* parts x words; of a flow that is not partial one for all parts */
};

struct io_thread {
    struct engine_thread engine; /* first */
    uint32_t job, epoch, values, workers, words;
    struct tree *trees;
    uint32_t tree_count;
    struct flow *flows;
    uint32_t flow_count;
    struct label_map labels;
    struct check *check;
    struct label_map sources; /* who may send */
    bool any_source;
    struct inart_packet_stats stats;
};

struct inart_root {
    struct inart_io_config io;
    struct io_thread *threads;
};

static double packets_per_second(double mbps, uint32_t values) { return mbps / (8e-6 * INART_FRAME_BYTES((double)values)); }

static struct cell *cell_of(struct tree *t, uint64_t sequence) { return &t->ring[sequence & t->mask]; }

static uint32_t *values_of(struct io_thread *x, struct tree *t, uint64_t sequence)
{
    return t->values + (sequence & t->mask) * x->values;
}

static uint64_t *workers_of(struct io_thread *x, struct tree *t, uint64_t sequence)
{
    return t->workers + (sequence & t->mask) * x->words;
}

/* Whose contributions a packet of the flow has, to `set`. False: none, or a bit that means nothing. */
static bool contributors(const struct flow *flow, uint64_t bitmap, uint32_t words, uint64_t *set)
{
    if (!flow->partial) {
        memcpy(set, flow->sets, words * sizeof *set);
        return true;
    }
    if (!bitmap || (flow->parts < MOST_PARTS && bitmap >> flow->parts))
        return false;
    memset(set, 0, words * sizeof *set);
    for (; bitmap; bitmap &= bitmap - 1) {
        const uint64_t *part = flow->sets + (uint32_t)__builtin_ctzll(bitmap) * words;
        for (uint32_t i = 0; i < words; i++)
            set[i] |= part[i];
    }
    return true;
}

static uint32_t size_of(const uint64_t *set, uint32_t words)
{
    uint32_t size = 0;
    for (uint32_t i = 0; i < words; i++)
        size += (uint32_t)__builtin_popcountll(set[i]);
    return size;
}

/* The lowest worker of a set that is not empty. */
static uint32_t first_of(const uint64_t *set, uint32_t words)
{
    uint32_t i = 0;
    while (i + 1 < words && !set[i])
        i++;
    return 64 * i + (uint32_t)__builtin_ctzll(set[i]);
}

static void ask_alone(struct tree *t, uint64_t sequence);

#include "root_check.h"

#define TOKENS_LEAST (-4.0)
#define TOKENS_MOST 16.0
#define SPEED 1.125 /* of the planned rate: so much more may be sent to the workers while something is lost */
#define RATE_LEAST 200.0 /* packets a second, when nothing is known */

/* Packets a second to the workers, new results and others. */
static double pace_of(const struct tree *t)
{
    return SPEED * (t->planned > 0 ? t->planned : t->rate > RATE_LEAST ? t->rate : RATE_LEAST);
}

static void take_token(struct tree *t)
{
    if (t->tokens > TOKENS_LEAST)
        t->tokens -= 1;
}

/* When something may be sent once more: `now` or earlier: at once. */
static uint64_t token_due(struct tree *t, uint64_t now)
{
    double pace = pace_of(t), tokens = t->tokens + (now > t->tokens_at ? (double)(now - t->tokens_at) * 1e-9 * pace : 0);
    t->tokens = tokens < TOKENS_MOST ? tokens : TOKENS_MOST;
    t->tokens_at = now;
    return t->tokens >= 1 ? now : now + 1 + (uint64_t)((1 - t->tokens) / pace * 1e9);
}

/* `values`: of the chunk, where they are nearest. */
static bool send_result(struct io_thread *x, struct tree *t, uint64_t sequence, const void *values, uint32_t label, uint64_t now)
{
    struct io *io = x->engine.io;
    if (!io_room(io, t->lane))
        io_flush(io, now);
    if (!io_room(io, t->lane)) {
        t->stats.results_dropped++;
        return false;
    }
    struct cell *c = cell_of(t, sequence);
    struct inart_header h = {
        .flags = (uint8_t)(INART_FLAG_RESULT | c->flags), .job = (uint16_t)x->job, .label = label, .epoch = x->epoch,
        .sequence = (uint32_t)sequence, .bitmap = t->oldest << 32 | x->workers,
    };
    uint32_t *words = (uint32_t *)inart_values(io_build(io, t->lane, &h));
    memcpy(words, values, x->values * sizeof(uint32_t));
    seal_result(x, t, sequence, c->flags, (uint32_t)t->oldest, words);
    if (io_complete(io, t->lane))
        io_flush(io, now);
    x->stats.packets_sent++;
    x->stats.bytes_sent += io->frame_bytes;
    uplink_take(x->engine.uplink, io->frame_bytes, now);
    take_token(t);
    return true;
}

static void add(uint32_t *restrict sum, const uint32_t *restrict wire, uint32_t n, bool fresh, bool maximum)
{
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

#include "asking.h"

/* The ring is larger than the caches, and chunks come in order: the one that comes a few later is fetched meanwhile. */
static void prefetch(const struct io_thread *x, const struct tree *t, uint64_t sequence)
{
    const uint32_t *values = t->values + ((sequence + AHEAD) & t->mask) * x->values;
    for (uint32_t i = 0; i < x->values; i += 16)
        __builtin_prefetch(values + i, 1);
}

static void receive(struct io_thread *x, uint8_t *packet, size_t length, uint64_t now)
{
    struct inart_header h;
    x->stats.packets_received++;
    x->stats.bytes_received += INART_OFFSET_HEADER + length;
    if (inart_parse(packet, length, x->engine.io->packet_bytes, &h)) {
        x->stats.malformed++;
        return;
    }
    int32_t number = h.flags & INART_FLAG_RESULT || h.job != x->job ? -1 : label_map_get(&x->labels, h.label);
    if (number < 0) {
        x->stats.unknown++;
        return;
    }
    if (!inart_same_epoch(h.epoch, x->epoch)) {
        x->stats.other_epoch++;
        return;
    }
    struct flow *flow = &x->flows[number];
    struct tree *t = &x->trees[flow->tree];
    t->stats.packets++;
    t->stats.bytes += INART_OFFSET_HEADER + length;
    uint64_t set[MOST_WORDS], sequence = h.sequence;
    if (!contributors(flow, h.bitmap, x->words, set) || sequence >= t->oldest + t->slots) {
        t->stats.refused++;
        return;
    }
    struct cell *c = cell_of(t, sequence);
    uint8_t kind = h.flags & CHECK_KINDS;
    if (c->owner > sequence + 1) { /* everybody has had its answer */
        t->stats.duplicates++;
        return;
    }
    bool fresh = c->owner != sequence + 1;
    if (h.flags & INART_FLAG_ASK) { /* has nothing to add */
        t->stats.duplicates++;
        if (!fresh && !c->missing)
            take_requests(x, t, sequence, set, (const uint32_t *)inart_values(packet), now);
        return;
    }
    uint32_t size = size_of(set, x->words);
    if (kind & INART_FLAG_SINGLE && size != 1) {
        t->stats.refused++;
        return;
    }
    uint64_t *there = workers_of(x, t, sequence), both = 0, new = 0;
    if (fresh)
        cell_begin(x, t, sequence);
    for (uint32_t i = 0; i < x->words; i++) {
        both |= there[i] & set[i];
        new |= set[i] & ~there[i];
    }
    if (!t->stats.first_packet_ns)
        t->stats.first_packet_ns = now;
    if (sequence >= t->stats.newest) {
        if (t->stats.newest <= t->oldest) /* nothing was waiting */
            t->oldest_since = now;
        t->stats.newest = sequence + 1;
    }
    if (c->renew && c->missing && inart_attempt(h.epoch, x->epoch) == c->attempt) {
        cell_forget(x, t, sequence);
        both = 0;
        c->renew = false;
    }
    bool empty = c->missing == x->workers;
    if (!empty && c->missing && c->flags == kind && both && new && size > x->workers - c->missing) { /* a sum of more workers than are there */
        cell_forget(x, t, sequence);
        both = 0;
        empty = true;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    if (!empty && c->flags != kind && !c->alone && c->missing && words_right(x, t, kind, sequence, set, wire)) {
        forget_chunk(x, t, sequence, kind); /* what came before was never what this job sends */
        both = 0;
        empty = true;
    }
    if (empty)
        c->flags = kind;
    if (both || c->flags != kind) {
        if (new || c->flags != kind)
            t->stats.refused++;
        else {
            t->stats.duplicates++;
            bool hasty = h.flags & INART_FLAG_LATE && now - c->sent_at < arrival_time(t);
            if (!c->missing && h.flags & (INART_FLAG_RESEND | INART_FLAG_LATE) && !hasty)
                take_request(x, t, sequence, set, now);
        }
        if (c->missing)
            take_hint(x, t, flow, &h, size, now);
        return;
    }
    if ((c->alone || now < t->wary_until) && !packet_right(x, t, sequence, kind, set, wire, h.label, now))
        return;
    uint32_t *sum = values_of(x, t, sequence);
    for (uint32_t i = 0; i < x->words; i++)
        there[i] |= set[i];
    c->missing = kind & INART_FLAG_SINGLE ? 0 : c->missing - size;
    if (empty && !c->missing) /* only a RESEND will read it */
        inart_stream(sum, wire, x->values * sizeof *sum);
    else {
        prefetch(x, t, sequence);
        add(sum, wire, x->values, empty, kind & INART_FLAG_MAXIMUM);
    }
    t->stats.added++;
    if (c->missing) {
        if (c->asked_at)
            t->wanted_slow = 0; /* what was asked for comes */
        take_hint(x, t, flow, &h, size, now);
        return;
    }
    if (!c->alone && !words_right(x, t, kind, sequence, there, empty ? wire : sum)) {
        sum_wrong(x, t, sequence, kind, set, wire, h.label, now);
        return;
    }
    take_complete(t, &h, kind, inart_attempt(h.epoch, x->epoch), now);
    c->asked_at = 0;
    c->alone = false;
    c->asker = 0;
    t->stats.completed++;
    t->stats.last_result_ns = now;
    uint64_t oldest = t->oldest;
    if (sequence == oldest) {
        while (cell_of(t, t->oldest)->owner == t->oldest + 1 && !cell_of(t, t->oldest)->missing)
            t->oldest++;
        t->oldest_since = now;
    }
    /* A sum that only its owner needs, or what all but its owner do; but when later chunks waited for it, all must hear that
     * these are complete. */
    uint32_t label = t->return_label;
    if (t->oldest - oldest <= 1 && kind & INART_FLAG_SCATTER)
        label = t->answer_labels[sequence % x->workers];
    else if (t->oldest - oldest <= 1 && kind & INART_FLAG_SINGLE && t->others_labels)
        label = t->others_labels[first_of(set, x->words)];
    c->sent_at = label == t->return_label ? now : 0;
    t->stats.results += send_result(x, t, sequence, empty ? wire : sum, label, now);
}

/* Sends results once more that workers have asked for, as far as tokens allow; when the next may go, UINT64_MAX: there is none. */
static uint64_t repeat_results(struct io_thread *x, struct tree *t, uint64_t now)
{
    for (; t->repeat < t->repeat_end; t->repeat++) {
        struct cell *c = cell_of(t, t->repeat);
        if (c->owner != t->repeat + 1 || c->missing || !c->asker)
            continue;
        uint64_t due = token_due(t, now), link = uplink_due(x->engine.uplink, x->engine.io->frame_bytes, now);
        due = link > due ? link : due;
        if (due > now || !io_room(x->engine.io, t->lane))
            return due > now ? due : now + REPEAT_PAUSE;
        uint32_t label = c->asker == EVERYBODY ? t->return_label : t->answer_labels[c->asker - 1];
        t->stats.answers += send_result(x, t, t->repeat, values_of(x, t, t->repeat), label, now);
        c->alone = c->asker == EVERYBODY;
        c->asked_at = now;
        if (c->alone)
            c->sent_at = now;
        c->asker = 0;
    }
    return UINT64_MAX;
}

/* One round: what has come, and what it completes. Says how long nothing will happen by itself. */
static struct engine_sleep work(struct engine_thread *engine)
{
    struct io_thread *x = (struct io_thread *)engine;
    struct io *io = engine->io;
    struct engine_sleep sleep = {.until = UINT64_MAX, .listen = true, .sparse = true};
    if (!io)
        return sleep;
    uint64_t now = inart_now();
    int received = 0;
    io_flush(io, now);
    for (int rounds = 0; rounds < ROUNDS && io->ready; rounds++) {
        for (unsigned source = 0; source < io->sources; source++) {
            if (!(io->ready >> source & 1))
                continue;
            int n = io_receive(io, source);
            for (int i = 0; i < n; i++) {
                const struct io_in *in = &io->in[i];
                if (!sources_have(&x->sources, x->any_source, in, &x->stats))
                    continue;
                for (uint32_t at = 0; at < in->bytes || !at; at += in->segment ? in->segment : 1, received++) {
                    io_fetch(in, at);
                    receive(x, in->data + at, in->bytes - at < in->segment ? in->bytes - at : in->segment, now);
                }
            }
        }
        io->ready &= (uint32_t)((1ull << io->sources) - 1);
        io_flush(io, now);
    }
    for (uint32_t i = 0; i < x->tree_count; i++) {
        uint64_t until = repeat_results(x, &x->trees[i], now), asking = ask(x, &x->trees[i], now);
        until = asking < until ? asking : until;
        if (until < sleep.until)
            sleep.until = until;
    }
    io_flush(io, now);
    sleep.sparse = received < SPARSE;
    if (io->ready)
        sleep.until = now;
    else if (io_unsent(io) && (!io->retry || io->retry < sleep.until))
        sleep.until = io->retry ? io->retry : now;
    return sleep;
}

/* What one thread is to have. */
struct share {
    struct io_spec spec;
    struct tree *trees;
    uint32_t tree_count;
    struct flow *flows;
    uint32_t flow_count;
    struct label_map labels, sources;
    struct check *check;
};

static void share_free(struct tree *trees, uint32_t count, struct flow *flows, uint32_t flow_count, struct label_map *labels,
                       struct label_map *sources, struct check *check)
{
    check_free(check);
    label_map_free(sources);
    for (uint32_t i = 0; trees && i < count; i++) {
        free(trees[i].ring);
        free(trees[i].values);
        free(trees[i].workers);
        free(trees[i].answer_labels);
        free(trees[i].others_labels);
    }
    for (uint32_t i = 0; flows && i < flow_count; i++)
        free(flows[i].sets);
    free(trees);
    free(flows);
    label_map_free(labels);
}

/* 0; -1: out of memory, or (with the reason in `error`) sets that cannot be. */
static int flow_make(struct flow *flow, const struct inart_root_flow *from, uint32_t workers, char *error, size_t size)
{
    uint32_t words = (workers + 63) / 64;
    uint64_t everyone[MOST_WORDS] = {0};
    flow->partial = from->partial != 0;
    flow->parts = 1;
    for (uint32_t i = 0; i < from->workers; i++) {
        uint32_t worker = from->worker[i];
        if (worker >= workers || from->part[i] >= MOST_PARTS || everyone[worker / 64] >> worker % 64 & 1) {
            snprintf(error, size, "label %u: worker %u of %u in part %u: each worker once, at most %d parts", from->label, worker, workers,
                     from->part[i], MOST_PARTS);
            return -1;
        }
        everyone[worker / 64] |= 1ull << worker % 64;
        if (flow->partial && from->part[i] >= flow->parts)
            flow->parts = from->part[i] + 1;
    }
    if (!from->workers) {
        snprintf(error, size, "label %u: no worker sends with it", from->label);
        return -1;
    }
    flow->workers = from->workers;
    memcpy(flow->everyone, everyone, sizeof everyone);
    flow->sets = calloc((size_t)flow->parts * words, sizeof *flow->sets);
    for (uint32_t i = 0; flow->sets && i < from->workers; i++)
        flow->sets[(flow->partial ? from->part[i] : 0) * words + from->worker[i] / 64] |= 1ull << from->worker[i] % 64;
    return flow->sets ? 0 : -1;
}

static uint32_t *labels_copy(const uint32_t *from, uint32_t count)
{
    uint32_t *to = calloc(count, sizeof *to);
    if (to)
        memcpy(to, from, count * sizeof *to);
    return to;
}

static int share_make(struct inart_root *r, const struct inart_root_config *config, uint32_t thread, struct share *s, char *error, size_t size)
{
    uint32_t flow_count = 0, words = (config->workers + 63) / 64;
    for (uint32_t i = 0; i < config->trees; i++)
        flow_count += config->tree[i].flows;
    s->spec = spec_of(&r->io, config->values);
    s->trees = calloc(config->trees + 1, sizeof *s->trees);
    s->flows = calloc(flow_count + 1, sizeof *s->flows);
    s->check = check_make(config->key, config->workers, config->values);
    bool bad = !s->trees || !s->flows || !s->check || sources_make(&s->sources, config->source, config->sources) || label_map_make(&s->labels, flow_count);
    error[0] = 0;
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_root_tree_config *from = &config->tree[i];
        if (from->thread != thread)
            continue;
        struct tree *t = &s->trees[s->tree_count];
        *t = (struct tree){.number = from->tree, .return_label = from->return_label, .slots = from->slots, .mask = 2 * from->slots - 1,
                           .oldest_since = inart_now(), .guard = GUARD_FIRST, .planned = packets_per_second(from->rate_mbps, config->values), .tokens_at = inart_now()};
        if (spec_add(&s->spec, from->port, from->here ? INART_BOTH : INART_LINK, &t->lane)) {
            snprintf(error, size, "the trees of one I/O thread have more than %d ports", INART_MOST_LANES);
            return -1;
        }
        t->answer_labels = labels_copy(from->answer_labels, config->workers);
        t->others_labels = from->others_labels ? labels_copy(from->others_labels, config->workers) : NULL;
        t->ring = calloc(2ull * from->slots, sizeof *t->ring);
        t->workers = calloc(2ull * from->slots * words, sizeof *t->workers);
        size_t bytes = 2ull * from->slots * config->values * sizeof *t->values;
        t->values = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        bad = !t->ring || !t->values || !t->workers || !t->answer_labels || (from->others_labels && !t->others_labels);
        for (uint32_t j = 0; j < from->flows && !bad; j++) {
            struct flow *flow = &s->flows[s->flow_count];
            flow->tree = s->tree_count;
            bad = flow_make(flow, &from->flow[j], config->workers, error, size) != 0;
            label_map_set(&s->labels, from->flow[j].label, (int32_t)s->flow_count++);
        }
        s->tree_count++;
    }
    if (bad && !error[0])
        snprintf(error, size, "out of memory for the chunks of %u trees", config->trees);
    return bad ? -1 : engine_open(&r->threads[thread].engine, &s->spec, error, size);
}

static int configure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size)
{
    if (check_job(config->workers, config->values, config->job, error, size))
        return -1;
    for (uint32_t i = 0; i < config->trees; i++) {
        const struct inart_root_tree_config *t = &config->tree[i];
        if (check_tree(t->tree, t->slots, t->port, t->thread, r->io.threads, error, size))
            return -1;
    }
    struct share shares[MOST_THREADS];
    memset(shares, 0, sizeof shares);
    int result = 0;
    for (uint32_t i = 0; i < r->io.threads && !result; i++)
        result = share_make(r, config, i, &shares[i], error, size);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        struct share *s = &shares[i];
        engine_enter(&x->engine);
        if (result) { /* all stays as it was */
            share_free(s->trees, s->tree_count, s->flows, s->flow_count, &s->labels, &s->sources, s->check);
            engine_discard(&x->engine);
        } else {
            share_free(x->trees, x->tree_count, x->flows, x->flow_count, &x->labels, &x->sources, x->check);
            x->trees = s->trees;
            x->tree_count = s->tree_count;
            x->flows = s->flows;
            x->flow_count = s->flow_count;
            x->labels = s->labels;
            x->check = s->check;
            x->sources = s->sources;
            x->any_source = !config->sources;
            x->job = config->job;
            x->epoch = config->epoch;
            x->values = config->values;
            x->workers = config->workers;
            x->words = (config->workers + 63) / 64;
            engine_use(&x->engine);
        }
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
    return result;
}

/* ---- the interface for Python ---- */

/* Of the structures shared with Python, in the order in which they are declared. */
const size_t inart_root_sizes[] = {
    sizeof(struct inart_root_flow), sizeof(struct inart_root_tree_config), sizeof(struct inart_root_config),
    sizeof(struct inart_io_config), sizeof(struct inart_io_stats), sizeof(struct inart_root_tree_stats), sizeof(struct inart_packet_stats), 0,
};

void inart_root_destroy(struct inart_root *r)
{
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_join(&x->engine);
        engine_free(&x->engine);
        share_free(x->trees, x->tree_count, x->flows, x->flow_count, &x->labels, &x->sources, x->check);
    }
    free(r->threads);
    free(r);
}

struct inart_root *inart_root_create(const struct inart_io_config *io, const struct inart_root_config *config, char *error, size_t size)
{
    struct inart_root *r = calloc(1, sizeof *r);
    if (r)
        r->threads = calloc(MOST_THREADS, sizeof *r->threads);
    if (!r || !r->threads || io->threads < 1 || io->threads > MOST_THREADS) {
        snprintf(error, size, "out of memory, or %u I/O threads: 1 to %d", io->threads, MOST_THREADS);
        free(r ? r->threads : NULL);
        free(r);
        return NULL;
    }
    r->io = *io;
    int result = 0;
    for (uint32_t i = 0; i < io->threads && !result; i++) {
        r->threads[i].engine.uplink = io->uplink;
        result = engine_start(&r->threads[i].engine, "inart-root", io->core[i], work);
        if (result)
            snprintf(error, size, "cannot start the server's thread: %s", strerror(result));
    }
    if (result || configure(r, config, error, size)) {
        inart_root_destroy(r);
        return NULL;
    }
    return r;
}

/* All chunks start afresh with the new configuration. 0, or -1 with the reason in `error` (the old one stays). */
int inart_root_reconfigure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size)
{
    return configure(r, config, error, size);
}

/* The tree that has `return_label` was led another way: its rate from now on (0: as before). `results`: those that workers may
 * lack are sent once more. */
void inart_root_repaired(struct inart_root *r, uint32_t return_label, double mbps, int results)
{
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct tree *t = &x->trees[j];
            if (t->return_label != return_label)
                continue;
            if (mbps > 0)
                t->planned = packets_per_second(mbps, x->values);
            uint64_t newest = t->stats.newest;
            if (results) /* a worker has the result of what is older */
                results_again(t, newest > t->slots ? newest - t->slots : 0, newest, inart_now());
        }
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
}

/* Of each of the trees `number`, its oldest chunk that lacks somebody; UINT64_MAX: it has none. */
void inart_root_open(struct inart_root *r, const uint32_t *number, uint64_t *oldest, uint32_t count)
{
    memset(oldest, 0xff, count * sizeof *oldest);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0, at = 0; j < x->tree_count; j++, at++) {
            const struct tree *t = &x->trees[j];
            while (at < count && number[at] != t->number) /* a thread has its trees in their order */
                at++;
            if (at < count && t->stats.newest > t->oldest)
                oldest[at] = t->oldest;
        }
        engine_leave(&x->engine);
    }
}

/* `trees` has room for `count` entries, of the trees `number`. */
void inart_root_statistics(struct inart_root *r, struct inart_packet_stats *stats, struct inart_io_stats *io, const uint32_t *number,
                           struct inart_root_tree_stats *trees, uint32_t count)
{
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        engine_packets(&x->engine, &x->stats, stats);
        engine_statistics(&x->engine, io);
        uint64_t now = inart_now();
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct tree *t = &x->trees[j];
            struct cell *c = cell_of(t, t->oldest);
            uint32_t at = 0;
            while (at < count && number[at] != t->number)
                at++;
            if (at == count)
                continue;
            trees[at] = t->stats;
            trees[at].oldest_incomplete = t->oldest;
            if (c->owner == t->oldest + 1)
                memcpy(trees[at].oldest_workers, workers_of(x, t, t->oldest), x->words * sizeof(uint64_t));
            for (uint32_t word = 0; word < x->words && t->heard_of == t->oldest; word++)
                trees[at].oldest_workers[word] |= t->heard[word];
            trees[at].oldest_waiting_ns = t->stats.newest > t->oldest ? now - t->oldest_since : 0;
        }
        engine_leave(&x->engine);
    }
}

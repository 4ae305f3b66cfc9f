/* The parameter server's engine: the root of any number of trees, spread over I/O threads by their ports.
 *
 * Per tree a ring of 2 x slots chunks. A worker's window is `slots` chunks wide, so while a worker may still ask for chunk c
 * nobody sends chunk c + 2 x slots or later; and nobody sends a chunk `slots` or more past the oldest incomplete one, so a
 * packet that does is refused. Results are sent once, when a chunk is complete; a RESEND of a complete chunk is answered
 * from the ring. A result that finds no room in the kernel is dropped: the workers ask again.
 *
 * A thread's lock covers its trees and its lanes; the thread lets go of it while it sleeps.
 */
#define _GNU_SOURCE
#include "engine.h"
#include "labels.h"

#define AHEAD 4        /* chunks */
#define MOST_ANSWERS 4 /* more workers than this are answered with the return label */

/* ---- shared with ps_server/server.py (ctypes), which compares the sizes (inart_root_sizes) ---- */
struct inart_root_flow {
    uint32_t label;
    int32_t partial;
    uint64_t contributors;
};
struct inart_root_tree_config {
    uint32_t tree, return_label, slots, flows, port, thread;
    uint64_t expected;
    const struct inart_root_flow *flow;
    const uint32_t *answer_labels; /* by worker index */
};
struct inart_root_config {
    uint32_t job, epoch, workers, values, trees;
    const struct inart_root_tree_config *tree;
};
/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_root_tree_stats {
    uint64_t packets, bytes, added, completed, duplicates, refused, results, answers, results_dropped;
    uint64_t first_packet_ns, last_result_ns;
    uint64_t oldest_incomplete, oldest_bitmap, oldest_waiting_ns, newest; /* newest: highest sequence seen + 1 */
};
struct inart_root_stats {
    uint64_t packets_received, bytes_received, packets_sent, bytes_sent, malformed, unknown, other_epoch, send_errors, kernel_drops;
    uint64_t wakeups, cpu_ns;
};
/* ---------------------------------------------------------------- */

struct cell {
    uint64_t owner; /* sequence + 1; 0: fresh */
    uint64_t bitmap;
    uint8_t flags; /* MAXIMUM or 0 */
    uint8_t complete;
};

struct tree {
    uint32_t number, return_label, slots, mask, lane;
    uint64_t expected;
    uint32_t answer_labels[INART_MAX_WORKERS];
    struct cell *ring;
    uint32_t *values; /* ring x values per packet, big-endian as on the wire */
    uint64_t oldest; /* incomplete */
    uint64_t oldest_since;
    struct inart_root_tree_stats stats;
};

struct flow {
    uint32_t tree;
    bool partial;
    uint64_t contributors;
};

struct io_thread {
    struct engine_thread engine; /* first */
    uint32_t job, epoch, values;
    struct tree *trees;
    uint32_t tree_count;
    struct flow *flows;
    struct label_map labels;
    struct inart_root_stats stats;
};

struct inart_root {
    struct inart_io_config io;
    struct io_thread *threads;
};

static struct cell *cell_of(struct tree *t, uint64_t sequence) { return &t->ring[sequence & t->mask]; }

static uint32_t *values_of(struct io_thread *x, struct tree *t, uint64_t sequence)
{
    return t->values + (sequence & t->mask) * x->values;
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
        .sequence = (uint32_t)sequence, .bitmap = c->bitmap,
    };
    memcpy(inart_values(io_build(io, t->lane, &h)), values, x->values * sizeof(uint32_t));
    x->stats.packets_sent++;
    x->stats.bytes_sent += io->frame_bytes;
    return true;
}

static void answer(struct io_thread *x, struct tree *t, uint64_t sequence, uint64_t bits, uint64_t now)
{
    const uint32_t *values = values_of(x, t, sequence);
    if (__builtin_popcountll(bits) > MOST_ANSWERS) {
        t->stats.answers += send_result(x, t, sequence, values, t->return_label, now);
        return;
    }
    for (; bits; bits &= bits - 1)
        t->stats.answers += send_result(x, t, sequence, values, t->answer_labels[__builtin_ctzll(bits)], now);
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
    if (h.epoch != x->epoch) {
        x->stats.other_epoch++;
        return;
    }
    struct flow *flow = &x->flows[number];
    struct tree *t = &x->trees[flow->tree];
    t->stats.packets++;
    t->stats.bytes += INART_OFFSET_HEADER + length;
    uint64_t bits = flow->partial ? h.bitmap : flow->contributors, sequence = h.sequence;
    if (!bits || bits & ~flow->contributors || sequence >= t->oldest + t->slots) {
        t->stats.refused++;
        return;
    }
    struct cell *c = cell_of(t, sequence);
    uint8_t maximum = h.flags & INART_FLAG_MAXIMUM;
    if (c->owner > sequence + 1) { /* everybody has had its answer */
        t->stats.duplicates++;
        return;
    }
    bool fresh = c->owner != sequence + 1;
    if (fresh)
        *c = (struct cell){.owner = sequence + 1, .flags = maximum};
    if (!t->stats.first_packet_ns)
        t->stats.first_packet_ns = now;
    if (sequence >= t->stats.newest) {
        if (t->stats.newest <= t->oldest) /* nothing was waiting */
            t->oldest_since = now;
        t->stats.newest = sequence + 1;
    }
    if (c->bitmap & bits || c->flags != maximum) {
        if (bits & ~c->bitmap || c->flags != maximum)
            t->stats.refused++;
        else {
            t->stats.duplicates++;
            if (c->complete && h.flags & INART_FLAG_RESEND)
                answer(x, t, sequence, bits, now);
        }
        return;
    }
    uint32_t *sum = values_of(x, t, sequence);
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    prefetch(x, t, sequence);
    add(sum, wire, x->values, fresh, maximum);
    c->bitmap |= bits;
    t->stats.added++;
    if (c->bitmap != t->expected)
        return;
    c->complete = 1;
    t->stats.completed++;
    t->stats.last_result_ns = now;
    t->stats.results += send_result(x, t, sequence, fresh ? wire : sum, t->return_label, now);
    if (sequence == t->oldest) {
        while (cell_of(t, t->oldest)->owner == t->oldest + 1 && cell_of(t, t->oldest)->complete)
            t->oldest++;
        t->oldest_since = now;
    }
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
                for (uint32_t at = 0; at < in->bytes || !at; at += in->segment ? in->segment : 1, received++)
                    receive(x, in->data + at, in->bytes - at < in->segment ? in->bytes - at : in->segment, now);
            }
        }
        io->ready &= (1u << io->sources) - 1;
        io_flush(io, now);
    }
    sleep.sparse = received < SPARSE;
    if (io->ready)
        sleep.until = now;
    else if (io_unsent(io))
        sleep.until = io->retry ? io->retry : now;
    return sleep;
}

/* What one thread is to have. */
struct share {
    struct io_spec spec;
    struct tree *trees;
    uint32_t tree_count;
    struct flow *flows;
    struct label_map labels;
    struct io *io;
};

static void share_free(struct tree *trees, uint32_t count, struct flow *flows, struct label_map *labels)
{
    for (uint32_t i = 0; trees && i < count; i++) {
        free(trees[i].ring);
        free(trees[i].values);
    }
    free(trees);
    free(flows);
    label_map_free(labels);
}

static int share_make(struct inart_root *r, const struct inart_root_config *config, uint32_t thread, struct share *s, char *error, size_t size)
{
    uint32_t flow_count = 0;
    for (uint32_t i = 0; i < config->trees; i++)
        flow_count += config->tree[i].flows;
    s->spec = spec_of(&r->io, config->values);
    s->trees = calloc(config->trees + 1, sizeof *s->trees);
    s->flows = calloc(flow_count + 1, sizeof *s->flows);
    bool bad = !s->trees || !s->flows || label_map_make(&s->labels, flow_count);
    flow_count = 0;
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_root_tree_config *from = &config->tree[i];
        if (from->thread != thread)
            continue;
        struct tree *t = &s->trees[s->tree_count];
        *t = (struct tree){.number = from->tree, .return_label = from->return_label, .slots = from->slots, .mask = 2 * from->slots - 1,
                           .expected = from->expected, .oldest_since = inart_now()};
        if (spec_add(&s->spec, from->port, &t->lane)) {
            snprintf(error, size, "the trees of one I/O thread have more than %d ports", INART_MOST_LANES);
            return -1;
        }
        for (uint32_t j = 0; j < config->workers; j++)
            t->answer_labels[j] = from->answer_labels[j];
        t->ring = calloc(2ull * from->slots, sizeof *t->ring);
        size_t bytes = 2ull * from->slots * config->values * sizeof *t->values;
        t->values = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        bad = !t->ring || !t->values;
        for (uint32_t j = 0; j < from->flows; j++) {
            s->flows[flow_count] = (struct flow){s->tree_count, from->flow[j].partial != 0, from->flow[j].contributors & from->expected};
            label_map_set(&s->labels, from->flow[j].label, (int32_t)flow_count++);
        }
        s->tree_count++;
    }
    if (bad)
        snprintf(error, size, "out of memory for the chunks of %u trees", config->trees);
    else
        s->io = engine_open(&r->threads[thread].engine, &s->spec, error, size);
    return bad || !s->io ? -1 : 0;
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
            share_free(s->trees, s->tree_count, s->flows, &s->labels);
            if (s->io != x->engine.io)
                io_close(s->io);
        } else {
            share_free(x->trees, x->tree_count, x->flows, &x->labels);
            x->trees = s->trees;
            x->tree_count = s->tree_count;
            x->flows = s->flows;
            x->labels = s->labels;
            x->job = config->job;
            x->epoch = config->epoch;
            x->values = config->values;
            engine_use(&x->engine, s->io);
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
    sizeof(struct inart_io_config), sizeof(struct inart_io_stats), sizeof(struct inart_root_tree_stats), sizeof(struct inart_root_stats), 0,
};

void inart_root_destroy(struct inart_root *r)
{
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_join(&x->engine);
        engine_free(&x->engine);
        share_free(x->trees, x->tree_count, x->flows, &x->labels);
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

static void statistics_add(struct inart_root_stats *sum, const struct inart_root_stats *s)
{
    sum->packets_received += s->packets_received;
    sum->bytes_received += s->bytes_received;
    sum->packets_sent += s->packets_sent;
    sum->bytes_sent += s->bytes_sent;
    sum->malformed += s->malformed;
    sum->unknown += s->unknown;
    sum->other_epoch += s->other_epoch;
}

/* `trees` has room for `count` entries, of the trees `number`. */
void inart_root_statistics(struct inart_root *r, struct inart_root_stats *stats, struct inart_io_stats *io, const uint32_t *number,
                           struct inart_root_tree_stats *trees, uint32_t count)
{
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct io_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        statistics_add(stats, &x->stats);
        stats->malformed += x->engine.io->counters.malformed;
        stats->packets_received += x->engine.io->counters.malformed;
        stats->send_errors += x->engine.io->counters.send_errors;
        stats->kernel_drops += engine_drops(&x->engine);
        stats->wakeups += x->engine.wakeups;
        stats->cpu_ns += engine_cpu(&x->engine);
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
            trees[at].oldest_bitmap = c->owner == t->oldest + 1 ? c->bitmap : 0;
            trees[at].oldest_waiting_ns = t->stats.newest > t->oldest ? now - t->oldest_since : 0;
        }
        engine_leave(&x->engine);
    }
}

/* The parameter server's engine: the root of any number of trees, one I/O thread.
 *
 * Per tree a ring of 2 x slots chunks. A worker's window is `slots` chunks wide, so while a worker may still ask for chunk c
 * nobody sends chunk c + 2 x slots or later; and nobody sends a chunk `slots` or more past the oldest incomplete one, so a
 * packet that does is refused. Results are sent once, when a chunk is complete; a RESEND of a complete chunk is answered
 * from the ring. A result that finds no room in the kernel is dropped: the workers ask again.
 *
 * One lock covers everything; the I/O thread lets go of it while it sleeps.
 */
#define _GNU_SOURCE
#include "engine.h"
#include "labels.h"

#define MOST_ANSWERS 4 /* more workers than this are answered with the return label */

/* ---- shared with ps_server/server.py (ctypes), which compares the sizes (inart_root_sizes) ---- */
struct inart_root_flow {
    uint32_t label;
    int32_t partial;
    uint64_t contributors;
};
struct inart_root_tree_config {
    uint32_t tree, return_label, slots, flows;
    uint64_t expected;
    const struct inart_root_flow *flow;
    const uint32_t *answer_labels; /* by worker index */
};
struct inart_root_config {
    uint32_t job, epoch, workers, values, trees;
    const struct inart_root_tree_config *tree;
};
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
    uint32_t number, return_label, slots, mask;
    uint64_t expected;
    uint32_t answer_labels[INART_MAX_WORKERS];
    struct cell *ring;
    int32_t *values; /* ring x values per packet */
    uint64_t oldest; /* incomplete */
    uint64_t oldest_since;
    struct inart_root_tree_stats stats;
};

struct flow {
    uint32_t tree;
    bool partial;
    uint64_t contributors;
};

struct inart_root {
    struct packet_io io;
    uint32_t job, epoch, workers, values;
    struct tree *trees;
    uint32_t tree_count;
    struct flow *flows;
    struct label_map labels;
    struct inart_root_stats stats;
    struct engine_lock lock;
    pthread_t thread;
    bool started, closing;
};

static struct cell *cell_of(struct tree *t, uint64_t sequence) { return &t->ring[sequence & t->mask]; }

static int32_t *values_of(struct inart_root *r, struct tree *t, uint64_t sequence)
{
    return t->values + (sequence & t->mask) * r->values;
}

static bool send_result(struct inart_root *r, struct tree *t, uint64_t sequence, uint32_t label, uint64_t now)
{
    if (!packet_io_room(&r->io))
        packet_io_flush(&r->io, now);
    if (!packet_io_room(&r->io)) {
        t->stats.results_dropped++;
        return false;
    }
    struct cell *c = cell_of(t, sequence);
    struct inart_header h = {
        .flags = (uint8_t)(INART_FLAG_RESULT | c->flags), .job = (uint16_t)r->job, .label = label, .epoch = r->epoch,
        .sequence = (uint32_t)sequence, .bitmap = c->bitmap,
    };
    int32_t *restrict wire = inart_values(packet_io_build(&r->io, &h));
    const int32_t *restrict values = values_of(r, t, sequence);
    for (uint32_t i = 0; i < r->values; i++)
        wire[i] = (int32_t)__builtin_bswap32((uint32_t)values[i]);
    r->stats.packets_sent++;
    r->stats.bytes_sent += r->io.frame_bytes;
    return true;
}

static void answer(struct inart_root *r, struct tree *t, uint64_t sequence, uint64_t bits, uint64_t now)
{
    if (__builtin_popcountll(bits) > MOST_ANSWERS) {
        t->stats.answers += send_result(r, t, sequence, t->return_label, now);
        return;
    }
    for (; bits; bits &= bits - 1)
        t->stats.answers += send_result(r, t, sequence, t->answer_labels[__builtin_ctzll(bits)], now);
}

static void add(struct inart_root *r, int32_t *restrict sum, const int32_t *restrict wire, bool fresh, bool maximum)
{
    uint32_t n = r->values;
    if (fresh)
        for (uint32_t i = 0; i < n; i++)
            sum[i] = (int32_t)__builtin_bswap32((uint32_t)wire[i]);
    else if (maximum)
        for (uint32_t i = 0; i < n; i++) {
            int32_t v = (int32_t)__builtin_bswap32((uint32_t)wire[i]);
            sum[i] = v > sum[i] ? v : sum[i];
        }
    else /* unsigned: a hostile packet must not make the sum undefined */
        for (uint32_t i = 0; i < n; i++)
            sum[i] = (int32_t)((uint32_t)sum[i] + __builtin_bswap32((uint32_t)wire[i]));
}

static void receive(struct inart_root *r, uint8_t *frame, size_t length, uint64_t now)
{
    struct inart_header h;
    r->stats.packets_received++;
    r->stats.bytes_received += length;
    if (inart_parse(frame, length, r->io.frame_bytes, &h)) {
        r->stats.malformed++;
        return;
    }
    int32_t number = h.flags & INART_FLAG_RESULT || h.job != r->job ? -1 : label_map_get(&r->labels, h.label);
    if (number < 0) {
        r->stats.unknown++;
        return;
    }
    if (h.epoch != r->epoch) {
        r->stats.other_epoch++;
        return;
    }
    struct flow *flow = &r->flows[number];
    struct tree *t = &r->trees[flow->tree];
    t->stats.packets++;
    t->stats.bytes += length;
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
                answer(r, t, sequence, bits, now);
        }
        return;
    }
    add(r, values_of(r, t, sequence), inart_values(frame), fresh, maximum);
    c->bitmap |= bits;
    t->stats.added++;
    if (c->bitmap != t->expected)
        return;
    c->complete = 1;
    t->stats.completed++;
    t->stats.last_result_ns = now;
    t->stats.results += send_result(r, t, sequence, t->return_label, now);
    if (sequence == t->oldest) {
        while (cell_of(t, t->oldest)->owner == t->oldest + 1 && cell_of(t, t->oldest)->complete)
            t->oldest++;
        t->oldest_since = now;
    }
}

static void *run(void *argument)
{
    struct inart_root *r = argument;
    uint64_t woken = 0;
    pthread_setname_np(pthread_self(), "inart-root");
    pthread_mutex_lock(&r->lock.mutex);
    while (!r->closing) {
        uint64_t now = inart_now();
        int n = 0, received = 0;
        packet_io_flush(&r->io, now);
        for (int rounds = 0; rounds < 8; rounds++) {
            received += n = packet_io_receive(&r->io);
            for (int i = 0; i < n; i++)
                receive(r, inart_rx_frame(&r->io, i), r->io.rx[i].msg_len, now);
            packet_io_flush(&r->io, now);
            if (n < INART_BATCH)
                break;
        }
        r->stats.wakeups++;
        bool unsent = r->io.tx_count != 0;
        engine_leave(&r->lock);
        struct pollfd descriptors[2] = {{.fd = r->lock.event, .events = POLLIN}, {.fd = r->io.fd, .events = POLLIN}};
        now = inart_now();
        if (n < INART_BATCH) {
            /* Packets come one by one at low rates: take a few at a time. */
            if (received < SPARSE && woken + WAKE_SPACING > now)
                pause_until(descriptors, 1, woken + WAKE_SPACING);
            if (!(descriptors[0].revents & POLLIN))
                pause_until(descriptors, 2, unsent ? inart_now() + INART_NS / 1000 : UINT64_MAX);
        }
        woken = inart_now();
        if (descriptors[0].revents & POLLIN)
            engine_woken(&r->lock);
        engine_return(&r->lock);
    }
    engine_leave(&r->lock);
    return NULL;
}

static void trees_free(struct tree *trees, uint32_t count)
{
    for (uint32_t i = 0; trees && i < count; i++) {
        free(trees[i].ring);
        free(trees[i].values);
    }
    free(trees);
}

static int configure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size)
{
    if (check_job(config->workers, config->values, config->job, error, size))
        return -1;
    uint32_t flow_count = 0;
    for (uint32_t i = 0; i < config->trees; i++) {
        if (check_slots(config->tree[i].tree, config->tree[i].slots, error, size))
            return -1;
        flow_count += config->tree[i].flows;
    }
    struct tree *trees = calloc(config->trees + 1, sizeof *trees);
    struct flow *flows = calloc(flow_count + 1, sizeof *flows);
    struct label_map labels = {0};
    bool bad = !trees || !flows || label_map_make(&labels, flow_count);
    flow_count = 0;
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_root_tree_config *from = &config->tree[i];
        struct tree *t = &trees[i];
        *t = (struct tree){.number = from->tree, .return_label = from->return_label, .slots = from->slots, .mask = 2 * from->slots - 1,
                           .expected = from->expected, .oldest_since = inart_now()};
        for (uint32_t j = 0; j < config->workers; j++)
            t->answer_labels[j] = from->answer_labels[j];
        t->ring = calloc(2ull * from->slots, sizeof *t->ring);
        size_t bytes = 2ull * from->slots * config->values * sizeof *t->values;
        t->values = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
        bad = !t->ring || !t->values;
        for (uint32_t j = 0; j < from->flows; j++) {
            flows[flow_count] = (struct flow){i, from->flow[j].partial != 0, from->flow[j].contributors & from->expected};
            label_map_set(&labels, from->flow[j].label, (int32_t)flow_count++);
        }
    }
    if (bad || (r->values != config->values && packet_io_size(&r->io, config->values))) {
        snprintf(error, size, "out of memory for the chunks of %u trees", config->trees);
        trees_free(trees, config->trees);
        free(flows);
        label_map_free(&labels);
        return -1;
    }
    trees_free(r->trees, r->tree_count);
    free(r->flows);
    label_map_free(&r->labels);
    r->trees = trees;
    r->tree_count = config->trees;
    r->flows = flows;
    r->labels = labels;
    r->job = config->job;
    r->epoch = config->epoch;
    r->workers = config->workers;
    r->values = config->values;
    r->io.tx_head = r->io.tx_count = 0;
    return 0;
}

/* ---- the interface for Python ---- */

/* Of the structures shared with Python, in the order in which they are declared. */
const size_t inart_root_sizes[] = {
    sizeof(struct inart_root_flow), sizeof(struct inart_root_tree_config), sizeof(struct inart_root_config),
    sizeof(struct inart_root_tree_stats), sizeof(struct inart_root_stats), 0,
};

void inart_root_destroy(struct inart_root *r)
{
    if (r->started) {
        engine_enter(&r->lock);
        r->closing = true;
        engine_leave(&r->lock);
        engine_wake(&r->lock);
        pthread_join(r->thread, NULL);
    }
    trees_free(r->trees, r->tree_count);
    free(r->flows);
    label_map_free(&r->labels);
    packet_io_close(&r->io);
    engine_lock_free(&r->lock);
    free(r);
}

struct inart_root *inart_root_create(const char *interface, const struct inart_root_config *config, char *error, size_t size)
{
    struct inart_root *r = calloc(1, sizeof *r);
    if (!r) {
        snprintf(error, size, "out of memory");
        return NULL;
    }
    r->io.fd = -1;
    int broken = engine_lock_make(&r->lock);
    if (packet_io_open(&r->io, interface, config->values, error, size) || configure(r, config, error, size)) {
        inart_root_destroy(r);
        return NULL;
    }
    if (broken || inart_thread_start(&r->thread, run, r)) {
        snprintf(error, size, "cannot start the server's thread: %s", strerror(errno));
        inart_root_destroy(r);
        return NULL;
    }
    r->started = true;
    return r;
}

/* All chunks start afresh with the new configuration. 0, or -1 with the reason in `error` (the old one stays). */
int inart_root_reconfigure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size)
{
    engine_enter(&r->lock);
    int result = configure(r, config, error, size);
    engine_leave(&r->lock);
    return result;
}

/* `trees` has room for `count` entries; returns the number of trees. */
uint32_t inart_root_statistics(struct inart_root *r, struct inart_root_stats *stats, struct inart_root_tree_stats *trees, uint32_t count)
{
    engine_enter(&r->lock);
    *stats = r->stats;
    stats->send_errors = r->io.send_errors;
    stats->kernel_drops = packet_io_drops(&r->io);
    stats->cpu_ns = inart_thread_cpu(r->thread);
    uint64_t now = inart_now();
    for (uint32_t i = 0; i < r->tree_count && i < count; i++) {
        struct tree *t = &r->trees[i];
        struct cell *c = cell_of(t, t->oldest);
        trees[i] = t->stats;
        trees[i].oldest_incomplete = t->oldest;
        trees[i].oldest_bitmap = c->owner == t->oldest + 1 ? c->bitmap : 0;
        trees[i].oldest_waiting_ns = t->stats.newest > t->oldest ? now - t->oldest_since : 0;
    }
    uint32_t result = r->tree_count;
    engine_leave(&r->lock);
    return result;
}

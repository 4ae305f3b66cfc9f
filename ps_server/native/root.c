/* The parameter server's engine: the root of any number of trees, spread over I/O threads by their ports.
 *
 * Per tree a ring of 2 x slots chunks. A worker's window is `slots` chunks wide, so while a worker may still ask for
 * chunk c nobody sends chunk c + 2 x slots or later; and nobody sends a chunk `slots` or more past the oldest
 * incomplete one, so a packet that does is refused. Results are sent once, when a chunk is complete; a RESEND of a
 * complete chunk is answered from the ring. A result that finds no room in the kernel is dropped: the workers ask
 * again. What is lost on the way here the root asks for (asking.c).
 *
 * The root tells all workers of its job apart, the aggregation points below it only their own flows: of a partial sum
 * each bit of the packet's bitmap stands for a part, the workers behind one flow of the point that it comes from.
 *
 * When the controller has led a tree another way, the results that a worker may lack are sent once more, to all at
 * once: what they would ask for one by one.
 *
 * A thread's lock covers its trees and its lanes; the thread lets go of it while it sleeps.
 */
#include "asking.h"
#include "chunks.h"
#include "configure.h"
#include "receive.h"
#include "results.h"

/* The sizes of the structures shared with Python, in the order in which they are declared. */
INART_PUBLIC const size_t inart_root_sizes[] = {
    sizeof(struct inart_root_flow),    sizeof(struct inart_root_tree_config),
    sizeof(struct inart_root_config),  sizeof(struct inart_io_config),
    sizeof(struct inart_io_stats),     sizeof(struct inart_root_tree_stats),
    sizeof(struct inart_packet_stats), 0,
};

/* Runs one round: handles packets that have come, and sends the results that they complete. Returns how long nothing
 * will happen by itself. */
static struct engine_sleep root_round(struct engine_thread *engine) {
    struct root_thread *x = (struct root_thread *)engine;
    struct io *io = engine->io;
    struct engine_sleep sleep = {.until = UINT64_MAX, .listen = true, .sparse = true};
    if (!io) return sleep;
    uint64_t now = inart_now();
    io_flush(io, now);
    int received = engine_receive(engine, root_receive, &x->sources, x->any_source, &x->stats, true, now);
    for (uint32_t i = 0; i < x->tree_count; i++) {
        uint64_t until = root_repeat_results(x, &x->trees[i], now), asking = root_ask(x, &x->trees[i], now);
        until = asking < until ? asking : until;
        if (until < sleep.until) sleep.until = until;
    }
    io_flush(io, now);
    sleep.sparse = received < SPARSE;
    if (io->ready)
        sleep.until = now;
    else if (io_unsent(io) && (!io->retry || io->retry < sleep.until))
        sleep.until = io->retry ? io->retry : now;
    return sleep;
}

void inart_root_destroy(struct inart_root *r) {
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct root_thread *x = &r->threads[i];
        engine_join(&x->engine);
        engine_free(&x->engine);
        root_share_free(x->trees, x->tree_count, x->flows, x->flow_count, &x->labels, &x->sources, x->check);
    }
    free(r->threads);
    free(r);
}

struct inart_root *inart_root_create(const struct inart_io_config *io, const struct inart_root_config *config,
                                     char *error, size_t size) {
    struct inart_root *r = calloc(1, sizeof *r);
    if (r) r->threads = calloc(MOST_THREADS, sizeof *r->threads);
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
        result = engine_start(&r->threads[i].engine, "inart-root", root_round);
        if (result) snprintf(error, size, "cannot start the server's thread: %s", strerror(result));
    }
    if (result || root_configure(r, config, error, size)) {
        inart_root_destroy(r);
        return NULL;
    }
    return r;
}

int inart_root_reconfigure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size) {
    return root_configure(r, config, error, size);
}

void inart_root_rerouted(struct inart_root *r, uint32_t return_label, double mbps, int results, int link) {
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct root_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct root_tree *t = &x->trees[j];
            if (t->return_label != return_label) continue;
            if (link >= 0) t->lane = engine_lane_over(&x->engine.io->spec, t->lane, (uint32_t)link);
            if (mbps > 0) t->planned = root_packets_per_second(mbps / t->direction.lanes, x->values);
            uint64_t newest = t->stats.newest;
            if (results) /* a worker has the result of what is older */
                root_results_again(t, newest > t->slots ? newest - t->slots : 0, newest, inart_now());
        }
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
}

void inart_root_open(struct inart_root *r, const uint32_t *number, uint64_t *oldest, uint32_t count) {
    memset(oldest, 0xff, count * sizeof *oldest);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct root_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0, at = 0; j < x->tree_count; j++) {
            const struct root_tree *t = &x->trees[j];
            while (at < count &&
                   number[at] != t->number) /* a thread has its trees in their order, one or several times */
                at++;
            if (at < count && t->stats.newest > t->oldest && oldest[at] == UINT64_MAX)
                oldest[at] = inart_on_wire(&t->direction, t->oldest);
        }
        engine_leave(&x->engine);
    }
}

/* Adds the suspects of one direction or lane of a tree to those of the others, as far as there is room. */
static void suspects_add(const struct inart_root_tree_stats *from, struct inart_root_tree_stats *sum) {
    for (int i = 0, at = 0; i < INART_SUSPECTS && from->suspects[i]; i++) {
        while (at < INART_SUSPECTS && sum->suspects[at]) at++;
        if (at == INART_SUSPECTS) return;
        sum->suspects[at] = from->suspects[i];
        sum->suspect_workers[at] = from->suspect_workers[i];
    }
}

/* Adds the counters of a tree, or of one of its directions or lanes, to `sum`. The oldest chunk of several lanes is
 * that of the first in which one waits, and of directions that of the reductions. */
static void tree_statistics(struct root_thread *x, struct root_tree *t, struct inart_root_tree_stats *sum,
                            uint64_t now) {
    const struct inart_root_tree_stats *s = &t->stats;
    sum->packets += s->packets;
    sum->bytes += s->bytes;
    sum->added += s->added;
    sum->completed += s->completed;
    sum->duplicates += s->duplicates;
    sum->refused += s->refused;
    sum->results += s->results;
    sum->answers += s->answers;
    sum->results_dropped += s->results_dropped;
    sum->check_failures += s->check_failures;
    sum->questions += s->questions;
    if (!sum->first_packet_ns || (s->first_packet_ns && s->first_packet_ns < sum->first_packet_ns))
        sum->first_packet_ns = s->first_packet_ns;
    sum->last_result_ns = s->last_result_ns > sum->last_result_ns ? s->last_result_ns : sum->last_result_ns;
    sum->newest =
        inart_on_wire(&t->direction, s->newest) > sum->newest ? inart_on_wire(&t->direction, s->newest) : sum->newest;
    suspects_add(s, sum);
    if (sum->oldest_waiting_ns) return;
    struct root_cell *c = root_cell_of(t, t->oldest);
    sum->oldest_incomplete = inart_on_wire(&t->direction, t->oldest);
    memset(sum->oldest_workers, 0, sizeof sum->oldest_workers);
    if (c->owner == t->oldest + 1)
        memcpy(sum->oldest_workers, root_workers_of(x, t, t->oldest), x->words * sizeof(uint64_t));
    for (uint32_t word = 0; word < x->words && t->heard_of == t->oldest; word++)
        sum->oldest_workers[word] |= t->heard[word];
    sum->oldest_waiting_ns = s->newest > t->oldest ? now - t->oldest_since : 0;
}

void inart_root_statistics(struct inart_root *r, struct inart_packet_stats *stats, struct inart_io_stats *io,
                           const uint32_t *number, struct inart_root_tree_stats *trees, uint32_t count) {
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct root_thread *x = &r->threads[i];
        engine_enter(&x->engine);
        engine_packets(&x->engine, &x->stats, stats);
        engine_statistics(&x->engine, io);
        uint64_t now = inart_now();
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct root_tree *t = &x->trees[j];
            uint32_t at = 0;
            while (at < count && number[at] != t->number) at++;
            if (at < count) tree_statistics(x, t, &trees[at], now);
        }
        engine_leave(&x->engine);
    }
}

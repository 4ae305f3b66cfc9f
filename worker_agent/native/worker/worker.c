/* The worker's engine: I/O threads that move all-reduces over the trees of one configuration.
 *
 * Sequence numbers. Every operation is cut, at submission, into one part per tree that carries some of it. On its tree
 * a part takes the next E + D sequence numbers, for E exponent chunks and D data chunks (numbering.h). All workers
 * submit the same operations in the same order, so all of them number alike. Sending order within a tree: resends, then
 * any exponent chunk that the window allows (so those of the next operation travel during the last window of the
 * present one), then data chunks whose exponents are known.
 *
 * Loss. What is lost the root asks for, in another attempt, so that switches add it up again
 * (ps_server/native/asking.h, and docs/protocol.md, "Loss never feeds itself"): W timers that send single contributions
 * would keep the root's link full, and so cause the loss that sets them off. By itself a worker sends one chunk again,
 * its oldest without an answer: as a copy, which a switch that has it drops; as a RESEND where the root has said that
 * it has the result.
 *
 * Repeating. When the controller has led a tree around what has failed, a switch may add there that has nothing of what
 * is under way. All workers are told, and send it once more, in order and at the tree's rate, without RESEND: to the
 * switches these are copies that the network has made, they are added up, and one sum a chunk goes to the root instead
 * of W packets. Timers hold for what is not answered then, as for what is sent for the first time. Where results may
 * have been lost, the parameter server sends them once more, before workers would ask for them.
 *
 * Pacing. A tree's packets leave at its rate: at most 1 ms worth of them at a time, of a slow one a few, and never more
 * than 4 super-frames. When the machine let the thread wait, it catches up at twice the rate.
 *
 * Threads. Trees are spread over the threads by their ports; a thread's lock covers its trees and its lanes, and it
 * lets go of it while it sleeps. It sleeps until the next event (tokens, timers, packets, a submission), and when
 * tokens are what it waits for it does not wake for each answer. The engine's own lock (taken last) covers what has
 * ended. An operation ends with its last part: after a failure each thread drops its parts, so nobody writes to a
 * tensor that was given back.
 */
#include "configure.h"
#include "operations.h"
#include "pacing.h"
#include "parts.h"
#include "reroute.h"
#include "thread.h"

/* The sizes of the structures shared with Python, in the order in which they are declared. */
INART_PUBLIC const size_t inart_worker_sizes[] = {
    sizeof(struct inart_tree_config),  sizeof(struct inart_worker_config),
    sizeof(struct inart_io_config),    sizeof(struct inart_io_stats),
    sizeof(struct inart_part_range),   sizeof(struct inart_encoding),
    sizeof(struct inart_completion),   sizeof(struct inart_tree_stats),
    sizeof(struct inart_worker_stats), 0,
};

void inart_worker_stop(struct inart_worker *w) {
    worker_fail_all(w, STATUS_ABORTED, "the engine was closed");
    for (uint32_t i = 0; i < w->io.threads; i++) engine_join(&w->threads[i].engine);
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_broadcast(&w->finished);
    pthread_mutex_unlock(&w->mutex);
}

void inart_worker_destroy(struct inart_worker *w) {
    while (w->done) {
        struct worker_operation *o = w->done;
        w->done = o->next;
        free(o);
    }
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        engine_free(&x->engine);
        worker_trees_free(x->trees, x->tree_count, &x->labels);
    }
    check_free(w->check);
    label_map_free(&w->sources);
    free(w->threads);
    free(w);
}

struct inart_worker *inart_worker_create(const struct inart_io_config *io, const struct inart_worker_config *config,
                                         char *error, size_t size) {
    struct inart_worker *w = calloc(1, sizeof *w);
    if (w) w->threads = calloc(MOST_THREADS, sizeof *w->threads);
    if (!w || !w->threads || io->threads < 1 || io->threads > MOST_THREADS) {
        snprintf(error, size, "out of memory, or %u I/O threads: 1 to %d", io->threads, MOST_THREADS);
        free(w ? w->threads : NULL);
        free(w);
        return NULL;
    }
    w->io = *io;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->finished, &attributes);
    pthread_condattr_destroy(&attributes);
    int result = 0;
    for (uint32_t i = 0; i < io->threads && !result; i++) {
        struct worker_thread *x = &w->threads[i];
        x->worker = w;
        /* Each worker and thread has other random numbers, whatever the time is: they decide which of all workers sends
         * something. */
        x->random = (((uint32_t)inart_now() ^ (config->index * MOST_THREADS + i + 1) * 2654435761u) * 2246822519u) | 1;
        x->engine.uplink = io->uplink;
        result = engine_start(&x->engine, "inart-worker", worker_round);
        if (result) snprintf(error, size, "cannot start the engine's thread: %s", strerror(result));
    }
    if (result || worker_configure(w, config, error, size)) {
        inart_worker_stop(w);
        inart_worker_destroy(w);
        return NULL;
    }
    return w;
}

int inart_worker_reconfigure(struct inart_worker *w, const struct inart_worker_config *config, const char *reason,
                             char *error, size_t size) {
    worker_fail_all(w, STATUS_ABORTED, reason);
    return worker_configure(w, config, error, size);
}

void inart_worker_abort(struct inart_worker *w, const char *reason) { worker_fail_all(w, STATUS_ABORTED, reason); }

void inart_worker_rerouted(struct inart_worker *w, uint32_t up_label, double rate_mbps, int contributions, int results,
                           int link) {
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0; j < x->tree_count; j++)
            if (x->trees[j].config.up_label == up_label) {
                if (link >= 0)
                    x->trees[j].lane = engine_lane_over(&x->engine.io->spec, x->trees[j].lane, (uint32_t)link);
                worker_rerouted(&x->trees[j], rate_mbps / x->trees[j].direction.lanes, contributions, results,
                                w->config.values, inart_now());
            }
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
}

void inart_worker_open(struct inart_worker *w, const uint32_t *number, uint64_t *oldest, uint32_t count) {
    memset(oldest, 0xff, count * sizeof *oldest);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0, at = 0; j < x->tree_count; j++) {
            const struct worker_tree *t = &x->trees[j];
            while (at < count &&
                   number[at] != t->config.tree) /* a thread has its trees in their order, one or several times */
                at++;
            if (at < count && t->base < t->end && oldest[at] == UINT64_MAX)
                oldest[at] = inart_on_wire(&t->direction, t->base);
        }
        engine_leave(&x->engine);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b) { return !b || (a && a < b) ? a : b; }

/* Adds the counters of a tree, or of one of its directions or lanes, to `sum`. The oldest chunk of several lanes is
 * that of the first in which one waits, and of directions that of the reductions. */
static void tree_statistics(const struct worker_tree *t, struct inart_tree_stats *sum, uint64_t now) {
    const struct inart_tree_stats *s = &t->stats;
    sum->chunks_sent += s->chunks_sent;
    sum->resent_gap += s->resent_gap;
    sum->resent_timeout += s->resent_timeout;
    sum->resent_recovery += s->resent_recovery;
    sum->answers += s->answers;
    sum->duplicates += s->duplicates;
    sum->refused += s->refused;
    sum->check_failures += s->check_failures;
    sum->marked += s->marked;
    sum->first_send_ns = earlier(s->first_send_ns, sum->first_send_ns);
    sum->last_answer_ns = s->last_answer_ns > sum->last_answer_ns ? s->last_answer_ns : sum->last_answer_ns;
    sum->busy_ns += s->busy_ns + (t->active_since ? now - t->active_since : 0);
    if (sum->oldest_unanswered == sum->next_sequence) {
        sum->next_sequence = inart_on_wire(&t->direction, t->end);
        sum->oldest_unanswered = inart_on_wire(&t->direction, t->base);
    }
    uint64_t used = t->end * inart_ways(&t->direction);
    sum->numbers_used = used > sum->numbers_used ? used : sum->numbers_used;
    double lowest = t->rtt_lowest / 1e9;
    sum->rtt_seconds = sum->rtt_seconds > 0 ? sum->rtt_seconds : t->round_trip / 1e9;
    sum->rtt_lowest = sum->rtt_lowest > 0 && (lowest <= 0 || sum->rtt_lowest < lowest) ? sum->rtt_lowest : lowest;
}

void inart_worker_statistics(struct inart_worker *w, struct inart_worker_stats *stats, struct inart_io_stats *io,
                             const uint32_t *number, struct inart_tree_stats *trees, uint32_t count) {
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        engine_packets(&x->engine, &x->stats, &stats->packets);
        engine_statistics(&x->engine, io);
        uint64_t now = inart_now();
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct worker_tree *t = &x->trees[j];
            uint32_t at = 0;
            while (at < count && number[at] != t->config.tree) at++;
            if (at < count) tree_statistics(t, &trees[at], now);
        }
        engine_leave(&x->engine);
    }
    pthread_mutex_lock(&w->mutex);
    stats->operations_done = w->operations_done;
    stats->operations_failed = w->operations_failed;
    stats->bytes_reduced = w->bytes_reduced;
    pthread_mutex_unlock(&w->mutex);
}

/* The worker's engine: I/O threads that move all-reduces over the trees of one configuration.
 *
 * Sequence numbers. Every operation is cut, at submission, into one part per tree that carries some of it. On its tree a
 * part takes the next E + D sequence numbers, for E exponent chunks and D data chunks (numbering.h). All workers submit the same
 * operations in the same order, so all of them number alike. Sending order within a tree: resends, then any exponent chunk that
 * the window allows (so those of the next operation travel during the last window of the present one), then data chunks whose
 * exponents are known.
 *
 * Loss. What is lost the root asks for, in another attempt, so that switches add it up again (ps_server/native/asking.h, and
 * docs/protocol.md, "Loss never feeds itself"): W timers that send single contributions would keep the root's link full, and so
 * cause the loss that sets them off. By itself a worker sends one chunk again, its oldest without an answer: as a copy, which a switch that
 * has it drops; as a RESEND where the root has said that it has the result.
 *
 * Repeating. When the controller has led a tree around what has failed, a switch may add there that has nothing of what is under
 * way. All workers are told, and send it once more, in order and at the tree's rate, without RESEND: to the switches these are
 * copies that the network has made, they are added up, and one sum a chunk goes to the root instead of W packets. Timers hold
 * for what is not answered then, as for what is sent for the first time. Where results may have been lost, the parameter server
 * sends them once more, before workers would ask for them.
 *
 * Pacing. A tree's packets leave at its rate: at most 1 ms worth of them at a time, of a slow one a few, and never more than
 * 4 super-frames. When the machine let the thread wait, it catches up at twice the rate.
 *
 * Threads. Trees are spread over the threads by their ports; a thread's lock covers its trees and its lanes, and it lets go
 * of it while it sleeps. It sleeps until the next event (tokens, timers, packets, a submission), and when tokens are what it
 * waits for it does not wake for each answer. The engine's own lock (taken last) covers what has ended. An operation ends
 * with its last part: after a failure each thread drops its parts, so nobody writes to a tensor that was given back.
 */
#define _GNU_SOURCE
#include "worker_thread.h"

/* ---- configuration ---- */

static void trees_free(struct tree *trees, uint32_t count, struct label_map *labels)
{
    for (uint32_t i = 0; trees && i < count; i++)
        free(trees[i].ring);
    free(trees);
    label_map_free(labels);
}

static double packet_mbits(uint32_t values) { return 8e-6 * INART_FRAME_BYTES((double)values); }

/* For tests. One in so many chunks of a gather is everybody's. */
uint32_t inart_worker_period(uint32_t slots, uint32_t workers) { return inart_period(slots, workers); }

/* For tests. The kind of the chunk with number `place` in a part of an all-reduce with `data` chunks of data, 0: exponents, 1: data;
 * and in *index which of them. */
int inart_worker_chunk(uint32_t data, uint32_t values, uint32_t slots, uint32_t place, uint32_t *index)
{
    struct numbering n = numbering_of(data, values, slots);
    return numbering_chunk(&n, place, index);
}

/* The number in the part of chunk `index` of a kind. */
uint32_t inart_worker_place(uint32_t data, uint32_t values, uint32_t slots, int kind, uint32_t index)
{
    struct numbering n = numbering_of(data, values, slots);
    return numbering_place(&n, kind, index);
}

/* Packets of a tree that may leave at a time (controlplane/planner/plan/pacing.py has the same; a test compares). `total_mbps`: of all
 * trees of the worker. `shared`: its link is also a parameter server's. Plans then fill more links, and have more trees: bursts of all
 * workers that met on such a link filled its queue. */
double inart_worker_bucket(double rate_mbps, double total_mbps, uint32_t slots, uint32_t values, uint32_t shared)
{
    double wake = rate_mbps / packet_mbits(values) * BURST_SECONDS, most = (double)io_segments(values) * BURST_MESSAGES;
    /* Many slow trees would wake the thread for every packet. */
    double few = total_mbps / packet_mbits(values) * (shared ? FEW_SECONDS_SHARED : FEW_SECONDS);
    few = few < FEW ? few : FEW;
    few = shared && few < FEW_SHARED ? FEW_SHARED : few;
    few = few < slots / 4.0 ? few : slots / 4.0;
    wake = wake > few ? wake : few;
    return wake < 1 ? 1 : wake > most ? most : wake;
}

/* `total_mbps`: of all trees of this worker. `shared`: see inart_worker_bucket. */
static void tree_setup(struct tree *t, const struct inart_tree_config *config, double total_mbps, bool shared,
                       const struct inart_worker_config *worker, uint64_t now)
{
    t->config = *config;
    t->config.root[NAME_BYTES - 1] = 0;
    t->config.others_labels = NULL; /* the caller's */
    t->mask = config->slots - 1;
    t->period = inart_period(config->slots, worker->workers);
    t->reorder = 1;
    t->tokens_at = t->base_since = now;
    t->packets_per_second = config->rate_mbps / packet_mbits(worker->values);
    t->tokens_wake = inart_worker_bucket(config->rate_mbps, total_mbps, config->slots, worker->values, shared);
    double slack = t->packets_per_second * SLACK_SECONDS, waits = shared ? SLACK_SHARED * t->tokens_wake : 0;
    t->tokens_most = t->tokens_wake + waits + (slack < 2 ? 2 : slack);
    t->tokens = t->burst = t->tokens_wake;
    t->window = first_window(t);
    t->window_quick = t->config.slots;
}

/* What one thread is to have. */
struct share {
    struct io_spec spec;
    struct tree *trees;
    uint32_t tree_count;
    struct label_map labels;
};

static int share_make(struct inart_worker *w, const struct inart_worker_config *config, uint32_t thread, struct share *s, char *error,
                      size_t size)
{
    s->spec = spec_of(&w->io, config->values);
    s->trees = calloc(config->trees ? config->trees : 1, sizeof *s->trees);
    bool bad = !s->trees;
    double total_mbps = 0;
    uint32_t labels = 2 * config->trees;
    for (uint32_t i = 0; i < config->trees; i++) {
        total_mbps += config->tree[i].rate_mbps;
        labels += config->tree[i].others;
    }
    bad = bad || label_map_make(&s->labels, labels);
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_tree_config *from = &config->tree[i];
        if (from->thread != thread)
            continue;
        struct tree *t = &s->trees[s->tree_count];
        tree_setup(t, from, total_mbps, w->io.uplink != NULL, config, inart_now());
        if (spec_add(&s->spec, from->port, from->here ? INART_HERE : INART_LINK, &t->lane)) {
            snprintf(error, size, "the trees of one I/O thread have more than %d ports", INART_MOST_LANES);
            return -1;
        }
        t->ring = calloc(from->slots, sizeof *t->ring);
        bad = !t->ring;
        label_map_set(&s->labels, from->return_label, (int32_t)s->tree_count);
        label_map_set(&s->labels, from->answer_label, (int32_t)s->tree_count);
        for (uint32_t j = 0; j < from->others; j++)
            label_map_set(&s->labels, from->others_labels[j], (int32_t)s->tree_count);
        s->tree_count++;
    }
    if (bad)
        snprintf(error, size, "out of memory for %u trees", config->trees);
    return bad ? -1 : engine_open(&w->threads[thread].engine, &s->spec, error, size);
}

static int configure(struct inart_worker *w, const struct inart_worker_config *config, char *error, size_t size)
{
    if (check_job(config->workers, config->values, config->job, error, size))
        return -1;
    for (uint32_t i = 0; i < config->trees; i++) {
        const struct inart_tree_config *t = &config->tree[i];
        if (check_tree(t->tree, t->slots, t->port, t->thread, w->io.threads, error, size))
            return -1;
    }
    struct share shares[MOST_THREADS];
    memset(shares, 0, sizeof shares);
    int result = 0;
    struct check *check = check_make(config->key, config->workers, config->values);
    struct label_map sources = {0};
    if (!check || sources_make(&sources, config->source, config->sources)) {
        check_free(check);
        snprintf(error, size, "out of memory");
        return -1;
    }
    for (uint32_t i = 0; i < w->io.threads && !result; i++)
        result = share_make(w, config, i, &shares[i], error, size);
    for (uint32_t i = 0; i < w->io.threads; i++)
        engine_enter(&w->threads[i].engine);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        struct share *s = &shares[i];
        if (result) { /* all stays as it was */
            trees_free(s->trees, s->tree_count, &s->labels);
            engine_discard(&x->engine);
            continue;
        }
        trees_free(x->trees, x->tree_count, &x->labels);
        x->trees = s->trees;
        x->tree_count = s->tree_count;
        x->labels = s->labels;
        engine_use(&x->engine);
    }
    if (result) {
        check_free(check);
        label_map_free(&sources);
    } else {
        w->config = *config;
        w->config.tree = NULL;
        w->config.source = NULL; /* the caller's */
        label_map_free(&w->sources);
        w->sources = sources;
        w->any_source = !config->sources;
        check_free(w->check);
        w->check = check;
        w->data = INART_DATA_VALUES(config->values);
        pthread_mutex_lock(&w->mutex);
        w->failure[0] = 0;
        atomic_store(&w->failed, false);
        pthread_mutex_unlock(&w->mutex);
    }
    for (uint32_t i = 0; i < w->io.threads; i++) {
        engine_leave(&w->threads[i].engine);
        engine_wake(&w->threads[i].engine);
    }
    return result;
}

/* ---- the interface for Python. Calls that change something come one at a time ---- */

/* Of the structures shared with Python, in the order in which they are declared. */
const size_t inart_worker_sizes[] = {
    sizeof(struct inart_tree_config), sizeof(struct inart_worker_config), sizeof(struct inart_io_config), sizeof(struct inart_io_stats),
    sizeof(struct inart_part_range), sizeof(struct inart_encoding), sizeof(struct inart_completion), sizeof(struct inart_tree_stats), sizeof(struct inart_worker_stats), 0,
};

/* Ends what is pending and the I/O threads; completions can still be fetched. */
void inart_worker_stop(struct inart_worker *w)
{
    fail_all(w, STATUS_ABORTED, "the engine was closed");
    for (uint32_t i = 0; i < w->io.threads; i++)
        engine_join(&w->threads[i].engine);
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_broadcast(&w->finished);
    pthread_mutex_unlock(&w->mutex);
}

/* After stop, when no other call is under way. */
void inart_worker_destroy(struct inart_worker *w)
{
    while (w->done) {
        struct operation *o = w->done;
        w->done = o->next;
        free(o);
    }
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_free(&x->engine);
        trees_free(x->trees, x->tree_count, &x->labels);
    }
    check_free(w->check);
    label_map_free(&w->sources);
    free(w->threads);
    free(w);
}

struct inart_worker *inart_worker_create(const struct inart_io_config *io, const struct inart_worker_config *config, char *error, size_t size)
{
    struct inart_worker *w = calloc(1, sizeof *w);
    if (w)
        w->threads = calloc(MOST_THREADS, sizeof *w->threads);
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
        struct io_thread *x = &w->threads[i];
        x->worker = w;
        /* Of each worker others, whatever the time is: they decide who of all says something. */
        x->random = (((uint32_t)inart_now() ^ (config->index * MOST_THREADS + i + 1) * 2654435761u) * 2246822519u) | 1;
        x->engine.uplink = io->uplink;
        result = engine_start(&x->engine, "inart-worker", io->core[i], work);
        if (result)
            snprintf(error, size, "cannot start the engine's thread: %s", strerror(result));
    }
    if (result || configure(w, config, error, size)) {
        inart_worker_stop(w);
        inart_worker_destroy(w);
        return NULL;
    }
    return w;
}

/* Pending operations end with `reason`; then the new configuration holds. 0 or -1 (the engine is unusable until a good one). */
int inart_worker_reconfigure(struct inart_worker *w, const struct inart_worker_config *config, const char *reason, char *error, size_t size)
{
    fail_all(w, STATUS_ABORTED, reason);
    return configure(w, config, error, size);
}

void inart_worker_abort(struct inart_worker *w, const char *reason) { fail_all(w, STATUS_ABORTED, reason); }

static struct tree *tree_of(struct inart_worker *w, uint32_t number, struct io_thread **thread)
{
    for (uint32_t i = 0; i < w->io.threads; i++)
        for (uint32_t j = 0; j < w->threads[i].tree_count; j++)
            if (w->threads[i].trees[j].config.tree == number) {
                *thread = &w->threads[i];
                return &w->threads[i].trees[j];
            }
    return NULL;
}

#define REPEAT_DELAY (50 * MS) /* the parameter server's copies of results come first */

static void repaired(struct tree *t, double rate_mbps, bool contributions, bool results, uint32_t values, uint64_t now)
{
    refill(t, now);
    if (rate_mbps > 0) {
        t->config.rate_mbps = rate_mbps;
        t->packets_per_second = rate_mbps / packet_mbits(values);
        t->config.gather_speed = 1; /* was for the ways before */
    }
    /* So were these: other ways have other delays, and another order. */
    t->rtt_lowest = t->recent = t->before_recent = 0;
    t->recent_since = 0;
    t->reorder = 1;
    if ((!contributions && !results) || !t->parts)
        return;
    uint64_t end = t->base + t->config.slots < t->end ? t->base + t->config.slots : t->end;
    t->repeat_at = results ? now + REPEAT_DELAY : now;
    t->window = t->window_quick = t->config.slots;
    t->timed = 0;
    /* Nothing of this is late before it can have been sent at the tree's rate, by this worker or by the parameter server. */
    double each = t->packets_per_second > 0 ? INART_NS / t->packets_per_second : 0, due = (double)t->repeat_at;
    for (uint64_t sequence = t->base; sequence < end; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        if (c->state != SENT)
            continue;
        c->sent_at = (uint64_t)due;
        c->resends = c->resends ? c->resends : 1; /* which copy is answered will not be known */
        if (contributions && !c->awaited)
            mark_again(t, sequence);
        due += each;
    }
}

/* The tree that has `up_label` was led another way: its rate from now on (0: as before). `contributions`: those under way may
 * be lost, and are sent once more. `results`: these, and the parameter server sends them once more. */
void inart_worker_repaired(struct inart_worker *w, uint32_t up_label, double rate_mbps, int contributions, int results)
{
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0; j < x->tree_count; j++)
            if (x->trees[j].config.up_label == up_label)
                repaired(&x->trees[j], rate_mbps, contributions, results, w->config.values, inart_now());
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
}

/* A part for a tree, numbered from what was submitted last. NULL with the reason in `error`. */
static struct part *part_make(struct inart_worker *w, struct tree *t, struct operation *o, const struct inart_part_range *range, char *error,
                              size_t size)
{
    uint64_t values = w->data, n = chunk_values(&w->threads[0], o);
    uint64_t data = (range->count + n - 1) / n * (inart_takes_turns(&o->layout) ? o->layout.workers : 1);
    if (t->end + data + numbering_words(data) / values + 2 > UINT32_MAX) {
        snprintf(error, size, "tree %u (root %s) has used up the sequence numbers of epoch %u: the job needs a new configuration",
                 t->config.tree, t->config.root, w->config.epoch);
        return NULL;
    }
    struct part *p = calloc(1, sizeof *p);
    size_t groups = (data + EXPONENT_GROUP - 1) / EXPONENT_GROUP;
    if (!p || !(p->exponents = malloc(data * sizeof *p->exponents)) || !(p->mixed = malloc(groups * sizeof *p->mixed))) {
        snprintf(error, size, "out of memory");
        if (p)
            part_free(p);
        return NULL;
    }
    memset(p->exponents, 0xff, data * sizeof *p->exponents); /* NOT_AGREED */
    memset(p->mixed, 0xff, groups * sizeof *p->mixed);
    p->operation = o;
    p->base = t->end;
    p->offset = range->offset;
    p->count = range->count;
    p->order = numbering_of((uint32_t)data, (uint32_t)values, t->config.slots);
    if (!has_exponents(o)) /* what they would bring is how the workers know that all do the same */
        p->order.exponents = (CHECK_VALUES + (uint32_t)values - 1) / (uint32_t)values;
    if (o->gathered.columns) { /* data goes with it */
        memset(p->exponents, 0, data * sizeof *p->exponents);
        memset(p->mixed, 0, groups * sizeof *p->mixed);
    }
    if (o->layout.kind != INART_ALL_REDUCE || !has_exponents(o))
        p->order.ahead = p->order.exponents;
    return p;
}

static bool has_parts(const struct io_thread *x)
{
    for (uint32_t i = 0; i < x->tree_count; i++)
        if (x->trees[i].parts)
            return true;
    return false;
}

/* Under its thread's lock. */
static void part_add(struct tree *t, struct part *p, uint64_t now)
{
    t->end += chunks_of(p);
    if (t->parts)
        t->last->next = p;
    else {
        t->parts = p;
        t->progress_at = t->base_since = now;
        /* What idle time saved up must not become a burst. */
        refill(t, now);
        if (t->tokens > t->tokens_wake)
            t->tokens = t->tokens_wake;
    }
    t->last = p;
    for (int kind = 0; kind < KINDS; kind++)
        if (!t->cursor[kind])
            t->cursor[kind] = p;
}

/* kind, source: inart_layout's; the array is one part a worker, or in an all-reduce and a broadcast one. `number`, `range`: the
 * trees, and the elements that each carries, of each part. The number of the operation; or -1 with the reason in
 * `error` and the status in *status. Only this changes `end` of a tree, and only configure() the trees: neither needs a lock. */
int64_t inart_worker_submit(struct inart_worker *w, const void *in, void *out, uint64_t elements, int dtype, const struct inart_encoding *encoding,
                            int mean, int kind, int source, uint32_t tag, uint32_t trees, const uint32_t *number,
                            const struct inart_part_range *range, int32_t *status, char *error, size_t size)
{
    *status = STATUS_PROTOCOL;
    pthread_mutex_lock(&w->mutex);
    bool failed = atomic_load(&w->failed);
    if (failed) {
        *status = w->failure_status;
        snprintf(error, size, "%s", w->failure);
    }
    pthread_mutex_unlock(&w->mutex);
    if (failed)
        return -1;
    struct operation *o = calloc(1, sizeof *o);
    struct part **parts = calloc(trees ? trees : 1, sizeof *parts);
    bool good = o && parts;
    if (good) {
        o->dtype = dtype; /* what parts depend on */
        o->fields = inart_fields_of(encoding->fields, w->config.workers, encoding->stochastic, encoding->seed, w->config.index);
        o->layout = (struct inart_layout){kind, source, w->config.index, w->config.workers, 0};
        if (inart_takes_turns(&o->layout))
            o->layout.stride = elements / w->config.workers * inart_dtype_bytes(dtype);
        o->places = o->layout;
        o->gathered = encoding->gathered;
        if (o->gathered.columns)
            o->layout = (struct inart_layout){INART_ALL_REDUCE, -1, w->config.index, w->config.workers, 0};
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < trees && good; i++) {
        struct io_thread *x;
        struct tree *t = tree_of(w, number[i], &x);
        if (!range[i].count)
            continue;
        if (t)
            parts[i] = part_make(w, t, o, &range[i], error, size);
        else
            snprintf(error, size, "there is no tree %u", number[i]);
        good = parts[i];
        count++;
    }
    if (!good) {
        for (uint32_t i = 0; parts && i < trees; i++)
            if (parts[i])
                part_free(parts[i]);
        free(o);
        free(parts);
        return -1;
    }
    uint64_t now = inart_now();
    int64_t id = o->id = w->next_operation++;
    o->in = in;
    o->out = out;
    o->residual = encoding->residual;
    o->elements = elements;
    o->divisor = mean ? (float)w->config.workers : 1.0f;
    o->tag = tag;
    o->submitted = now;
    atomic_store(&o->parts_left, count + 1);
    pthread_mutex_lock(&w->mutex);
    o->next = w->open;
    if (w->open)
        w->open->before = o;
    w->open = o;
    pthread_mutex_unlock(&w->mutex);
    bool at_once = elements * inart_dtype_bytes(dtype) <= AT_ONCE;
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        uint32_t added = 0;
        engine_enter(&x->engine);
        bool busy = has_parts(x);
        for (uint32_t j = 0; j < trees; j++) {
            struct io_thread *of;
            struct tree *t = parts[j] ? tree_of(w, number[j], &of) : NULL;
            if (!t || of != x)
                continue;
            part_add(t, parts[j], inart_now()); /* the thread may have been here since `now` */
            added++;
        }
        engine_leave(&x->engine);
        if (added && at_once && !busy)
            send_at_once(x);
        else if (added)
            engine_wake(&x->engine);
    }
    free(parts);
    operation_part_ended(w, o, true);
    return id;
}

/* CLOCK_MONOTONIC, in so many seconds. */
static struct timespec time_in(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (seconds >= 0) {
        double whole = floor(seconds);
        until.tv_sec += (time_t)whole;
        until.tv_nsec += (long)((seconds - whole) * 1e9);
        if (until.tv_nsec >= (long)INART_NS) {
            until.tv_sec++;
            until.tv_nsec -= (long)INART_NS;
        }
    }
    return until;
}

/* What came of an operation, which is forgotten. */
static void complete(struct operation *o, struct inart_completion *completion)
{
    uint64_t last = atomic_load(&o->last_answer);
    completion->operation = o->id;
    completion->status = o->status;
    completion->first_send = (double)atomic_load(&o->first_send) / 1e9;
    completion->last_answer = (double)last / 1e9;
    completion->seconds = (double)((last ? last : inart_now()) - o->submitted) / 1e9;
    memcpy(completion->message, o->message, sizeof completion->message);
    free(o);
}

/* Waits for one operation: 1: `completion` is filled, and nobody else gets it; 0: somebody else gets it; -1: it has not ended within
 * `seconds` (< 0: no limit). */
int inart_worker_wait(struct inart_worker *w, int64_t operation, double seconds, struct inart_completion *completion)
{
    struct waiter self = {.operation = operation};
    struct timespec until = time_in(seconds);
    pthread_mutex_lock(&w->mutex);
    for (struct operation *o = w->done, *last = NULL; o; last = o, o = o->next)
        if (o->id == operation) {
            *(last ? &last->next : &w->done) = o->next;
            w->done_last = w->done_last == o ? last : w->done_last;
            self.ended = o;
            break;
        }
    struct operation *open = w->open;
    while (open && open->id != operation)
        open = open->next;
    if (open) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&self.woken, &attributes);
        pthread_condattr_destroy(&attributes);
        self.next = w->waiters;
        w->waiters = &self;
        int wait = 0;
        while (!self.told && !wait)
            wait = seconds < 0 ? pthread_cond_wait(&self.woken, &w->mutex) : pthread_cond_timedwait(&self.woken, &w->mutex, &until);
        struct waiter **link = &w->waiters;
        while (*link != &self)
            link = &(*link)->next;
        *link = self.next;
        pthread_cond_destroy(&self.woken);
    }
    pthread_mutex_unlock(&w->mutex);
    if (self.ended)
        complete(self.ended, completion);
    return self.ended ? 1 : open && !self.told ? -1 : 0;
}

/* 1: `completion` is filled; 0: nothing within `seconds` (< 0: no limit); -1: the engine is closing and nothing is left. */
int inart_worker_next_completion(struct inart_worker *w, double seconds, struct inart_completion *completion)
{
    struct timespec until = time_in(seconds);
    pthread_mutex_lock(&w->mutex);
    int wait = 0;
    while (!w->done && !w->closing && !wait)
        wait = seconds < 0 ? pthread_cond_wait(&w->finished, &w->mutex) : pthread_cond_timedwait(&w->finished, &w->mutex, &until);
    struct operation *o = w->done;
    int result = o ? 1 : w->closing ? -1 : 0;
    if (o)
        w->done = o->next;
    pthread_mutex_unlock(&w->mutex);
    if (o)
        complete(o, completion);
    return result;
}

/* Of each of the trees `number`, its oldest chunk without an answer; UINT64_MAX: it has none. */
void inart_worker_open(struct inart_worker *w, const uint32_t *number, uint64_t *oldest, uint32_t count)
{
    memset(oldest, 0xff, count * sizeof *oldest);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0, at = 0; j < x->tree_count; j++, at++) {
            const struct tree *t = &x->trees[j];
            while (at < count && number[at] != t->config.tree) /* a thread has its trees in their order */
                at++;
            if (at < count && t->base < t->end)
                oldest[at] = t->base;
        }
        engine_leave(&x->engine);
    }
}

/* `trees` has room for `count` entries, of the trees `number`. */
void inart_worker_statistics(struct inart_worker *w, struct inart_worker_stats *stats, struct inart_io_stats *io, const uint32_t *number,
                             struct inart_tree_stats *trees, uint32_t count)
{
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        engine_packets(&x->engine, &x->stats, &stats->packets);
        engine_statistics(&x->engine, io);
        uint64_t now = inart_now();
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct tree *t = &x->trees[j];
            uint32_t at = 0;
            while (at < count && number[at] != t->config.tree)
                at++;
            if (at == count)
                continue;
            trees[at] = t->stats;
            trees[at].next_sequence = t->end;
            trees[at].oldest_unanswered = t->base;
            trees[at].rtt_seconds = t->round_trip / 1e9;
            trees[at].rtt_lowest = t->rtt_lowest / 1e9;
            if (t->active_since)
                trees[at].busy_ns += now - t->active_since;
        }
        engine_leave(&x->engine);
    }
    pthread_mutex_lock(&w->mutex);
    stats->operations_done = w->operations_done;
    stats->operations_failed = w->operations_failed;
    stats->bytes_reduced = w->bytes_reduced;
    pthread_mutex_unlock(&w->mutex);
}

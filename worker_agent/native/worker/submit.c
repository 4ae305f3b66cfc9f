/* Submits a worker's operations in parts, one a tree, and waits for them. */
#include "configure.h"
#include "operations.h"
#include "pacing.h"
#include "parts.h"
#include "thread.h"

/* The most bytes of an operation that the submitting thread sends by itself, where nothing is before it. */
#define AT_ONCE (64u << 10)

/* Returns the first direction of a lane, given the lane's number (inart_lane_number). */
static struct worker_tree *tree_of(struct inart_worker *w, uint32_t number, struct worker_thread **thread) {
    for (uint32_t i = 0; i < w->io.threads; i++)
        for (uint32_t j = 0; j < w->threads[i].tree_count; j++)
            if (inart_lane_number(&w->threads[i].trees[j].direction, w->threads[i].trees[j].config.tree) == number) {
                *thread = &w->threads[i];
                return &w->threads[i].trees[j];
            }
    return NULL;
}

/* Returns the lane with a number, in the direction of an operation. */
static struct worker_tree *tree_for(struct inart_worker *w, uint32_t number, const struct worker_operation *o,
                                    struct worker_thread **thread) {
    struct worker_tree *t = tree_of(w, number, thread);
    return t && t->direction.of == INART_DIRECTIONS && o->layout.kind == INART_GATHER ? t + 1 : t;
}

/* Makes a part for a tree, with numbers that follow those submitted last. Returns NULL with the reason in `error`, and
 * in *status, where that fails. */
static struct worker_part *part_make(struct inart_worker *w, struct worker_tree *t, struct worker_operation *o,
                                     const struct inart_part_range *range, int32_t *status, char *error, size_t size) {
    uint64_t values = INART_EXPONENT_WORDS(w->config.values), n = chunk_values(&w->threads[0], o);
    uint64_t data = (range->count + n - 1) / n * (inart_takes_turns(&o->layout) ? o->layout.workers : 1);
    if ((t->end + data + numbering_words(data) / values + 2) * inart_ways(&t->direction) > w->config.last_number) {
        *status = STATUS_EXHAUSTED;
        snprintf(error, size, "tree %u (root %s) has used up the sequence numbers of epoch %u: a new one begins",
                 t->config.tree, t->config.root, w->config.epoch);
        return NULL;
    }
    struct worker_part *p = calloc(1, sizeof *p);
    size_t groups = (data + EXPONENT_GROUP - 1) / EXPONENT_GROUP;
    if (!p || !(p->exponents = malloc(data * sizeof *p->exponents)) ||
        !(p->mixed = malloc(groups * sizeof *p->mixed))) {
        snprintf(error, size, "out of memory");
        if (p) worker_part_free(p);
        return NULL;
    }
    memset(p->exponents, 0xff, data * sizeof *p->exponents); /* NOT_AGREED */
    memset(p->mixed, 0xff, groups * sizeof *p->mixed);
    p->operation = o;
    p->base = t->end;
    p->offset = range->offset;
    p->count = range->count;
    p->order = numbering_of((uint32_t)data, (uint32_t)values, t->config.slots);
    if (!worker_has_exponents(o)) /* what they would bring is how the workers know that all do the same */
        p->order.exponents = (CHECK_VALUES + (uint32_t)values - 1) / (uint32_t)values;
    if (o->gathered.columns) { /* data goes with it */
        memset(p->exponents, 0, data * sizeof *p->exponents);
        memset(p->mixed, 0, groups * sizeof *p->mixed);
    }
    if (o->layout.kind != INART_ALL_REDUCE || !worker_has_exponents(o)) p->order.ahead = p->order.exponents;
    return p;
}

static bool has_parts(const struct worker_thread *x) {
    for (uint32_t i = 0; i < x->tree_count; i++)
        if (x->trees[i].parts) return true;
    return false;
}

/* Adds a part to a tree; the caller holds the lock of the tree's thread. */
static void part_add(struct worker_tree *t, struct worker_part *p, uint64_t now) {
    t->end += part_chunks(p);
    if (t->parts)
        t->last->next = p;
    else {
        t->parts = p;
        t->progress_at = t->base_since = now;
        /* Tokens that idle time saved up must not become a burst. */
        pacing_refill(t, now);
        if (t->tokens > t->tokens_wake) t->tokens = t->tokens_wake;
    }
    t->last = p;
    for (int kind = 0; kind < KINDS; kind++)
        if (!t->cursor[kind]) t->cursor[kind] = p;
}

/* Returns whether nothing can be submitted any more, with the reason in `error`. */
static bool has_failed(struct inart_worker *w, int32_t *status, char *error, size_t size) {
    pthread_mutex_lock(&w->mutex);
    bool failed = atomic_load(&w->failed);
    if (failed) {
        *status = w->failure_status;
        snprintf(error, size, "%s", w->failure);
    }
    pthread_mutex_unlock(&w->mutex);
    return failed;
}

/* Makes an operation with all values that its parts depend on; NULL: out of memory. */
static struct worker_operation *operation_make(struct inart_worker *w, uint64_t elements, int dtype,
                                               const struct inart_encoding *encoding, int kind, int source) {
    struct worker_operation *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->elements = elements;
    o->dtype = dtype;
    o->residual = encoding->residual;
    o->fields =
        inart_fields_of(encoding->fields, w->config.workers, encoding->stochastic, encoding->seed, w->config.index);
    o->layout = (struct inart_layout){kind, source, w->config.index, w->config.workers, 0};
    if (inart_takes_turns(&o->layout)) o->layout.stride = elements / w->config.workers * inart_dtype_bytes(dtype);
    o->places = o->layout;
    o->gathered = encoding->gathered;
    if (o->gathered.columns)
        o->layout = (struct inart_layout){INART_ALL_REDUCE, -1, w->config.index, w->config.workers, 0};
    return o;
}

static void parts_free(struct worker_part **parts, uint32_t trees) {
    for (uint32_t i = 0; i < trees; i++)
        if (parts[i]) worker_part_free(parts[i]);
    free(parts);
}

/* Makes the operation's parts, one for each of the trees; a tree that carries none of it has NULL. `count` is set to
 * their number. Returns NULL with the reason in `error`, and in *status, where one of them cannot be. */
static struct worker_part **parts_make(struct inart_worker *w, struct worker_operation *o, uint32_t trees,
                                       const uint32_t *number, const struct inart_part_range *range, uint32_t *count,
                                       int32_t *status, char *error, size_t size) {
    struct worker_part **parts = calloc(trees ? trees : 1, sizeof *parts);
    *count = 0;
    for (uint32_t i = 0; parts && i < trees; i++) {
        struct worker_thread *x;
        struct worker_tree *t = tree_for(w, number[i], o, &x);
        if (!range[i].count) continue;
        if (t)
            parts[i] = part_make(w, t, o, &range[i], status, error, size);
        else
            snprintf(error, size, "there is no tree %u", number[i]);
        if (!parts[i]) {
            parts_free(parts, trees);
            return NULL;
        }
        ++*count;
    }
    return parts;
}

/* Gives each thread the parts of its trees. With `at_once`, a thread that had nothing to do need not be woken for them.
 */
static void parts_add(struct inart_worker *w, const struct worker_operation *o, struct worker_part **parts,
                      uint32_t trees, const uint32_t *number, bool at_once) {
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        uint32_t added = 0;
        engine_enter(&x->engine);
        bool busy = has_parts(x);
        for (uint32_t j = 0; j < trees; j++) {
            struct worker_thread *of;
            struct worker_tree *t = parts[j] ? tree_for(w, number[j], o, &of) : NULL;
            if (!t || of != x) continue;
            part_add(t, parts[j],
                     inart_now()); /* not when the operation was submitted: the thread may have run since */
            added++;
        }
        engine_leave(&x->engine);
        if (added && at_once && !busy)
            worker_send_at_once(x);
        else if (added)
            engine_wake(&x->engine);
    }
}

int64_t inart_worker_submit(struct inart_worker *w, const void *in, void *out, uint64_t elements, int dtype,
                            const struct inart_encoding *encoding, int mean, int kind, int source, uint32_t tag,
                            uint32_t trees, const uint32_t *number, const struct inart_part_range *range,
                            int32_t *status, char *error, size_t size) {
    *status = STATUS_PROTOCOL;
    if (has_failed(w, status, error, size)) return -1;
    struct worker_operation *o = operation_make(w, elements, dtype, encoding, kind, source);
    uint32_t count;
    snprintf(error, size, "out of memory"); /* unless it is something else */
    struct worker_part **parts = o ? parts_make(w, o, trees, number, range, &count, status, error, size) : NULL;
    if (!parts) {
        free(o);
        return -1;
    }
    int64_t id = o->id = w->next_operation++;
    o->in = in;
    o->out = out;
    o->divisor = mean ? (float)w->config.workers : 1.0f;
    o->tag = tag;
    o->submitted = inart_now();
    atomic_store(&o->parts_left, count + 1);
    pthread_mutex_lock(&w->mutex);
    o->next = w->open;
    if (w->open) w->open->before = o;
    w->open = o;
    pthread_mutex_unlock(&w->mutex);
    parts_add(w, o, parts, trees, number, elements * inart_dtype_bytes(dtype) <= AT_ONCE);
    free(parts);
    worker_operation_part_ended(w, o, true);
    return id;
}

/* Returns the time of CLOCK_MONOTONIC in so many seconds. */
static struct timespec time_in(double seconds) {
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

/* Fills in the completion of an operation, which is forgotten. */
static void complete(struct worker_operation *o, struct inart_completion *completion) {
    uint64_t last = atomic_load(&o->last_answer);
    completion->operation = o->id;
    completion->status = o->status;
    completion->first_send = (double)atomic_load(&o->first_send) / 1e9;
    completion->last_answer = (double)last / 1e9;
    completion->seconds = (double)((last ? last : inart_now()) - o->submitted) / 1e9;
    memcpy(completion->message, o->message, sizeof completion->message);
    free(o);
}

int inart_worker_wait(struct inart_worker *w, int64_t operation, double seconds, struct inart_completion *completion) {
    struct worker_waiter self = {.operation = operation};
    struct timespec until = time_in(seconds);
    pthread_mutex_lock(&w->mutex);
    for (struct worker_operation *o = w->done, *last = NULL; o; last = o, o = o->next)
        if (o->id == operation) {
            *(last ? &last->next : &w->done) = o->next;
            w->done_last = w->done_last == o ? last : w->done_last;
            self.ended = o;
            break;
        }
    struct worker_operation *open = w->open;
    while (open && open->id != operation) open = open->next;
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
            wait = seconds < 0 ? pthread_cond_wait(&self.woken, &w->mutex)
                               : pthread_cond_timedwait(&self.woken, &w->mutex, &until);
        struct worker_waiter **link = &w->waiters;
        while (*link != &self) link = &(*link)->next;
        *link = self.next;
        pthread_cond_destroy(&self.woken);
    }
    pthread_mutex_unlock(&w->mutex);
    if (self.ended) complete(self.ended, completion);
    return self.ended ? 1 : open && !self.told ? -1 : 0;
}

int inart_worker_next_completion(struct inart_worker *w, double seconds, struct inart_completion *completion) {
    struct timespec until = time_in(seconds);
    pthread_mutex_lock(&w->mutex);
    int wait = 0;
    while (!w->done && !w->closing && !wait)
        wait = seconds < 0 ? pthread_cond_wait(&w->finished, &w->mutex)
                           : pthread_cond_timedwait(&w->finished, &w->mutex, &until);
    struct worker_operation *o = w->done;
    int result = o ? 1 : w->closing ? -1 : 0;
    if (o) w->done = o->next;
    pthread_mutex_unlock(&w->mutex);
    if (o) complete(o, completion);
    return result;
}

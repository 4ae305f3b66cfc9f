#include "fuzz.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "adversary.h"
#include "collectives.h"
#include "fields.h"
#include "gathered.h"
#include "values.h"

#define MOST_OPERATIONS 5
#define MOST_WORKERS 64
#define SLICE (1000000ull) /* ns between two looks at what has ended */
#define MS (1000000ull)
#define STUCK (4000 * 1000 * MS) /* ns until a job counts as stuck */
#define LAST_NUMBERS 40000ull    /* a run near the last sequence number has so many of them */

/* One operation of all workers. */
struct run {
    struct operation operation;
    enum values_kind values;
    uint8_t **in, **array;
    int64_t *id;
    int *status; /* of each worker; PENDING: it has none yet */
};

#define PENDING (-1)

struct fuzz {
    struct random random;
    struct job *job;
    struct adversary adversary;
    struct run runs[MOST_OPERATIONS];
    uint32_t count, *next; /* operations; of each worker, the next one to submit */
    uint64_t *submits_at, elements;
    bool gives_up; /* a worker has failed for a reason that is right */
    bool says_no;  /* something was wrong, and has been said */
};

/* ---- the job ---- */

static struct shape draw_shape(struct random *r) {
    static const uint32_t values[] = {8, 9, 16, 31, 32, 64, 100, 128, 256}, workers[] = {1, 2, 2, 3, 4, 5, 7, 8};
    struct shape s = {
        .trees = 1, .lanes = 1, .directions = 1, .link_mbps = 10000, .queue = 16384, .others = random_below(r, 2)};
    s.workers = random_below(r, 5) ? workers[random_below(r, 8)] : 1 + (uint32_t)random_below(r, MOST_WORKERS);
    s.values = values[random_below(r, 9)];
    s.topology = s.workers > 1 ? (enum topology)random_below(r, 3) : DIRECT;
    s.per_rack = s.workers;
    if (s.topology == RACKS) {
        uint32_t racks = 2 + (uint32_t)random_below(r, 3);
        if (racks > s.workers) racks = s.workers;
        s.per_rack = (s.workers + racks - 1) / racks;
    }
    if (random_one_in(r, 3)) s.directions = 2;
    if (random_one_in(r, 6)) s.trees = 2;
    if (random_one_in(r, 6)) s.lanes = 2;
    s.slots = s.directions * s.lanes << random_below(r, 7);
    s.mbps = random_below(r, 4) ? 1 + (double)random_below(r, 200) : 0;
    s.gather_speed = random_below(r, 2) || s.workers == 1 ? 1 : (double)s.workers / (s.workers - 1);
    s.delay_ms = (double)random_below(r, random_below(r, 2) ? 100 : 3000) / 1000;
    if (random_one_in(r, 6)) s.queue = 32;
    return s;
}

static void draw_adversary(struct fuzz *f) {
    struct random *r = &f->random;
    struct adversary *a = &f->adversary;
    *a = (struct adversary){.job = f->job, .random = {random_bits(r)}, .silent_node = UINT32_MAX};
    a->jitter = random_below(r, random_below(r, 3) ? 200000 : 5 * MS);
    if (random_one_in(r, 4)) return;
    a->loss = random_below(r, 2) ? random_unit(r) * 0.3 : random_unit(r) * 0.02;
    if (random_below(r, 2)) a->copies = random_unit(r) * 0.1;
    if (random_one_in(r, 3)) a->flips = random_unit(r) * 0.01;
    if (random_one_in(r, 3)) a->forgeries = random_unit(r) * 0.02;
}

static void calm(struct adversary *a) { a->loss = a->copies = a->flips = a->forgeries = 0; }

/* ---- operations ---- */

/* Draws a small operation, which needs no exponents; returns false where this job has none of the drawn type. */
static bool draw_small(struct random *r, const struct shape *s, struct operation *o) {
    static const int types[] = {INART_FLOAT32, INART_FLOAT16, INART_BFLOAT16, INART_FLOAT64,
                                INART_INT64,   INART_INT32,   INART_INT8,     INART_UINT8};
    uint32_t words = INART_DATA_VALUES(s->values) / s->workers;
    words -= words > 1 ? words % 2 : 0;
    o->dtype = types[random_below(r, 8)];
    size_t item = inart_dtype_bytes(o->dtype), bytes = INART_VALUE_BYTES * (size_t)words;
    if (bytes < item) return false;
    o->kind = random_below(r, 2) ? INART_ALL_REDUCE : INART_REDUCE_SCATTER;
    o->elements = 1 + random_below(r, 3 * bytes / item);
    if (o->kind == INART_REDUCE_SCATTER) o->elements -= o->elements % s->workers;
    if (!o->elements) {
        o->kind = INART_ALL_REDUCE;
        o->elements = 1;
    }
    bool real = inart_is_real(o->dtype);
    int32_t reduction = (int32_t)random_below(r, real ? INART_PRODUCT + 1 : INART_XOR + 1);
    if (!real && reduction == INART_MEAN) reduction = INART_SUM;
    o->encoding.gathered = (struct inart_gathered){s->workers, words, reduction};
    o->mean = reduction == INART_MEAN;
    o->count = o->elements;
    return true;
}

static void draw_gather(struct random *r, const struct shape *s, uint64_t elements, struct operation *o) {
    o->kind = INART_GATHER;
    o->dtype = INART_BYTES;
    if (random_below(r, 2)) o->source = (int)random_below(r, s->workers);
    o->count = o->source >= 0 ? 1 + elements : 1 + elements / s->workers;
    o->elements = o->source >= 0 ? o->count : o->count * s->workers;
}

static void draw_reduction(struct random *r, const struct shape *s, uint64_t elements, struct operation *o) {
    static const int types[] = {INART_FLOAT32, INART_FLOAT16, INART_BFLOAT16};
    o->kind = random_below(r, 4) ? INART_ALL_REDUCE : INART_REDUCE_SCATTER;
    o->dtype = types[random_below(r, 3)];
    o->mean = random_below(r, 2);
    uint32_t fields;
    do {
        fields = o->dtype == INART_FLOAT32 && random_below(r, 3) ? 1 : 1 + (uint32_t)random_below(r, INART_MOST_FIELDS);
    } while (fields > 1 && inart_fields_of(fields, s->workers, false, 0, 0).fraction_bits < 1);
    o->encoding.fields = fields;
    o->encoding.stochastic = fields > (o->dtype == INART_FLOAT32 ? 1u : 2u) && random_below(r, 2);
    o->encoding.seed = random_bits(r);
    o->count = o->kind == INART_REDUCE_SCATTER ? 1 + elements / s->workers : 1 + elements;
    o->elements = o->kind == INART_REDUCE_SCATTER ? o->count * s->workers : o->count;
}

static void run_make(struct fuzz *f, struct run *run) {
    struct random *r = &f->random;
    const struct shape *s = &f->job->shape;
    struct operation *o = &run->operation;
    uint64_t elements = random_below(r, 4) ? random_below(r, f->elements) : random_below(r, 200);
    *run = (struct run){.values = (enum values_kind)random_below(r, VALUES_KINDS)};
    *o = (struct operation){.source = -1, .tag = (uint32_t)random_bits(r) & 0x7fffffff, .encoding = {.fields = 1}};
    if (!random_one_in(r, 4) || !draw_small(r, s, o)) {
        if (random_below(r, 10) < 2)
            draw_gather(r, s, elements, o);
        else
            draw_reduction(r, s, elements, o);
    }
    /* Of a reduce-scatter, which chunks share a mark depends on the owners; the marks are an all-reduce's here. */
    if (o->kind == INART_REDUCE_SCATTER && run->values == VALUES_NONFINITE) run->values = VALUES_COMMON;
    uint64_t bytes = o->elements * inart_dtype_bytes(o->dtype);
    run->in = calloc(s->workers, sizeof *run->in);
    run->array = calloc(s->workers, sizeof *run->array);
    run->id = malloc(s->workers * sizeof *run->id);
    run->status = malloc(s->workers * sizeof *run->status);
    for (uint32_t w = 0; w < s->workers; w++) {
        run->in[w] = malloc(bytes);
        run->array[w] = malloc(bytes);
        values_fill(r, run->values, o->dtype, run->in[w], bytes);
        memcpy(run->array[w], run->in[w], bytes);
        run->id[w] = -1;
        run->status[w] = PENDING;
    }
}

static void run_free(struct run *run, uint32_t workers) {
    for (uint32_t w = 0; w < workers; w++) {
        free(run->in[w]);
        free(run->array[w]);
    }
    free(run->in);
    free(run->array);
    free(run->id);
    free(run->status);
}

/* ---- what is wrong ---- */

static void say(struct fuzz *f, const char *what, const struct operation *o, uint32_t w) {
    const struct shape *s = &f->job->shape;
    f->says_no = true;
    printf("%s: worker %u of %u, %u values, %u slots, topology %d, %u trees, %u lanes, %u directions", what, w,
           s->workers, s->values, s->slots, s->topology, s->trees, s->lanes, s->directions);
    if (o)
        printf("; kind %d, dtype %d, fields %u, elements %" PRIu64 ", mean %d, source %d, columns %u", o->kind,
               o->dtype, o->encoding.fields, o->elements, o->mean, o->source, o->encoding.gathered.columns);
    printf("\n");
}

/* Looks at the results of all workers that have one. In a reduce-scatter a worker gets its own part, and the rest of
 * its array stays as it was. */
static void check_run(struct fuzz *f, const struct run *run) {
    const struct shape *s = &f->job->shape;
    const struct operation *o = &run->operation;
    size_t item = inart_dtype_bytes(o->dtype);
    uint64_t bytes = o->elements * item, part = bytes / s->workers;
    bool any = false;
    for (uint32_t w = 0; w < s->workers; w++) any |= run->status[w] == STATUS_OK;
    if (!any) return;
    uint8_t *right = malloc(bytes);
    if (values_result(s, o, run->in, right)) say(f, "a word of the sum wraps", o, 0);
    for (uint32_t w = 0; w < s->workers && !f->says_no; w++) {
        if (run->status[w] != STATUS_OK) continue;
        uint64_t from = 0, until = bytes;
        if (o->kind == INART_REDUCE_SCATTER) {
            from = w * part;
            until = from + part;
        }
        if (!values_same(run->array[w] + from, right + from, o->dtype, (until - from) / item))
            say(f, "a result is wrong", o, w);
        else if (o->mean && run->values != VALUES_NONFINITE &&
                 !values_finite(run->array[w] + from, o->dtype, (until - from) / item))
            say(f, "a mean of finite values is not finite", o, w);
        else if (memcmp(run->array[w], run->in[w], from) ||
                 memcmp(run->array[w] + until, run->in[w] + until, bytes - until))
            say(f, "another worker's part was written", o, w);
    }
    free(right);
}

/* ---- a run ---- */

static void submit(struct fuzz *f) {
    uint64_t now = network_now(f->job->network);
    char error[MESSAGE_BYTES];
    for (uint32_t w = 0; w < f->job->shape.workers; w++) {
        if (f->next[w] == f->count || now < f->submits_at[w]) continue;
        struct run *run = &f->runs[f->next[w]++];
        run->id[w] = job_submit(f->job, w, run->array[w], &run->operation, error);
        if (run->id[w] < 0) say(f, error, &run->operation, w);
        f->submits_at[w] = now + (random_below(&f->random, 2) ? 0 : random_below(&f->random, 50 * MS));
    }
}

static void collect(struct fuzz *f) {
    struct inart_completion c;
    for (uint32_t w = 0; w < f->job->shape.workers; w++)
        while (job_collect(f->job, w, &c))
            for (uint32_t i = 0; i < f->count; i++) {
                if (f->runs[i].id[w] != c.operation) continue;
                f->runs[i].status[w] = c.status;
                /* Whoever can change packets in a switch's place can hide both words of an exponent, and its worker
                 * sees it: its agent would have the job begin again. */
                f->gives_up |= c.status == STATUS_PROTOCOL && f->adversary.forged;
                if (c.status != STATUS_OK && c.status != STATUS_ABORTED && !f->gives_up)
                    say(f, c.message, &f->runs[i].operation, w);
            }
}

/* Returns whether all workers have submitted all operations, and all of these have ended. */
static bool all_ended(const struct fuzz *f) {
    for (uint32_t w = 0; w < f->job->shape.workers; w++) {
        if (f->next[w] < f->count) return false;
        for (uint32_t i = 0; i < f->count; i++)
            if (f->runs[i].status[w] == PENDING) return false;
    }
    return true;
}

/* Has the engines run until all operations have ended, or, where `abort_at` is not 0, until then. */
static void run_operations(struct fuzz *f, uint64_t abort_at) {
    struct random *r = &f->random;
    struct network *n = f->job->network;
    uint64_t start = network_now(n), calm_at = start + random_below(r, 3000 * MS),
             reroute_at = random_one_in(r, 4) ? start + random_below(r, 200 * MS) : UINT64_MAX;
    while (!f->says_no) {
        uint64_t now = network_now(n);
        submit(f);
        collect(f);
        if (all_ended(f) || f->gives_up || (abort_at && now >= abort_at)) return;
        if (now >= calm_at) calm(&f->adversary);
        if (now >= reroute_at) {
            reroute_at = UINT64_MAX;
            job_reroute(f->job, random_below(r, 2), random_below(r, 2));
        }
        bool waits = false; /* some worker has yet to submit something */
        for (uint32_t w = 0; w < f->job->shape.workers; w++) waits |= f->next[w] < f->count;
        if (network_next(n) > now + SLICE && waits)
            network_run(n, now + SLICE);
        else if (!job_run(f->job, now + SLICE))
            say(f, "nothing happens any more", NULL, 0);
        if (now > start + STUCK) say(f, "an operation does not end", NULL, 0);
    }
}

/* Some worker may hear of an end before; then all engines get the next epoch, one after the other. */
static void renew(struct fuzz *f) {
    struct random *r = &f->random;
    struct job *j = f->job;
    uint32_t hosts = j->shape.workers + 1, first = (uint32_t)random_below(r, hosts);
    if (random_below(r, 2)) {
        job_abort(j, (uint32_t)random_below(r, j->shape.workers));
        network_run(j->network, network_now(j->network) + random_below(r, 100 * MS));
    }
    j->epoch++;
    for (uint32_t i = 0; i < hosts; i++) {
        uint32_t host = (first + i) % hosts;
        if (host == j->root_node)
            job_configure_root(j);
        else
            job_configure_worker(j, host);
        network_run(j->network, network_now(j->network) + random_below(r, 3) * random_below(r, 3 * MS));
    }
    collect(f);
}

static void one_epoch(struct fuzz *f, bool last, struct fuzz_counts *counts) {
    struct random *r = &f->random;
    uint32_t workers = f->job->shape.workers;
    uint64_t now = network_now(f->job->network);
    f->count = 1 + (uint32_t)random_below(r, MOST_OPERATIONS);
    for (uint32_t i = 0; i < f->count; i++) run_make(f, &f->runs[i]);
    for (uint32_t w = 0; w < workers; w++) {
        f->next[w] = 0;
        f->submits_at[w] = now + (random_below(r, 3) ? 0 : random_below(r, 200 * MS));
    }
    struct adversary *a = &f->adversary;
    if (random_one_in(r, 5)) {
        a->silent_from = now + random_below(r, 200 * MS);
        a->silent_until = a->silent_from + random_below(r, 500 * MS);
        a->silent_node = (uint32_t)random_below(r, workers + 1);
    }
    f->gives_up = false;
    run_operations(f, last ? 0 : now + 1 + random_below(r, 300 * MS));
    if ((!last || f->gives_up) && !f->says_no) renew(f);
    for (uint32_t i = 0; i < f->count; i++) {
        struct run *run = &f->runs[i];
        for (uint32_t w = 0; w < workers && !f->says_no; w++) {
            if (run->status[w] == STATUS_OK)
                counts->done++;
            else if (last && !f->gives_up)
                say(f, "an operation failed", &run->operation, w);
            else
                counts->failed++;
        }
        if (!f->says_no) check_run(f, run);
        run_free(run, workers);
    }
}

int fuzz_run(uint64_t seed, struct fuzz_counts *counts) {
    struct fuzz f = {.random = {seed}};
    struct shape s = draw_shape(&f.random);
    f.job = job_make(&s, seed);
    f.next = calloc(s.workers, sizeof *f.next);
    f.submits_at = calloc(s.workers, sizeof *f.submits_at);
    f.elements = s.workers > 16 ? 3000 : 20000;
    draw_adversary(&f);
    adversary_attach(&f.adversary);
    if (random_one_in(&f.random, 8)) { /* what is submitted ends just before the last number */
        job_begin_at(f.job, UINT32_MAX - LAST_NUMBERS * (s.directions * s.lanes));
    }
    uint32_t epochs = random_one_in(&f.random, 4) ? 2 : 1;
    for (uint32_t epoch = 1; epoch <= epochs && !f.says_no; epoch++) one_epoch(&f, epoch == epochs, counts);
    counts->runs++;
    if (f.says_no)
        printf("seed %" PRIu64 ": loss %.3f, copies %.3f, flips %.4f, forgeries %.4f, jitter %" PRIu64 " ns\n", seed,
               f.adversary.loss, f.adversary.copies, f.adversary.flips, f.adversary.forgeries, f.adversary.jitter);
    job_free(f.job);
    free(f.next);
    free(f.submits_at);
    return f.says_no;
}

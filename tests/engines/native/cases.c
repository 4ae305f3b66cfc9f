#include "cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adversary.h"
#include "cell.h"
#include "collectives.h"
#include "numbers.h"
#include "packet.h"
#include "worker/chunk.h"

#define MS (1000000ull)

static struct shape small(uint32_t workers, uint32_t slots) {
    return (struct shape){.topology = DIRECT,
                          .workers = workers,
                          .values = 64,
                          .slots = slots,
                          .directions = 1,
                          .trees = 1,
                          .lanes = 1,
                          .per_rack = workers,
                          .others = true,
                          .mbps = 20,
                          .gather_speed = 1,
                          .link_mbps = 10000,
                          .delay_ms = 0.1,
                          .timeout = 60,
                          .queue = 4096};
}

/* An operation on `elements` of each worker's part: float32, or bytes of a gather. */
static struct operation simple(const struct shape *s, int kind, uint64_t elements) {
    struct operation o = {.count = elements, .kind = kind, .source = -1, .tag = 7, .encoding = {.fields = 1}};
    o.dtype = kind == INART_GATHER ? INART_BYTES : INART_FLOAT32;
    o.elements = kind == INART_ALL_REDUCE ? elements : elements * s->workers;
    return o;
}

/* Returns what worker `w` contributes: the same for each element. */
static float value_of(uint32_t w) { return (float)(w % 8) * 0.125f; }

/* Has all workers do an operation on arrays of their value_of, or of 1 in each byte; returns the arrays. */
static uint8_t **begin(struct job *j, const struct operation *o) {
    uint8_t **array = calloc(j->shape.workers, sizeof *array);
    char error[MESSAGE_BYTES];
    for (uint32_t w = 0; w < j->shape.workers; w++) {
        uint64_t bytes = o->elements * inart_dtype_bytes(o->dtype);
        array[w] = malloc(bytes);
        memset(array[w], 1, bytes);
        for (uint64_t i = 0; o->dtype == INART_FLOAT32 && i < o->elements; i++)
            ((float *)(void *)array[w])[i] = value_of(w);
        if (job_submit(j, w, array[w], o, error) < 0) printf("%s\n", error);
    }
    return array;
}

static void arrays_free(struct job *j, uint8_t **array) {
    for (uint32_t w = 0; w < j->shape.workers; w++) free(array[w]);
    free(array);
}

/* Runs the job until all workers' operations have ended, `seconds` at most. Returns how many have ended well. */
static uint32_t until_done(struct job *j, double seconds) {
    uint64_t until = network_now(j->network) + (uint64_t)(seconds * 1e9);
    uint32_t done = 0, well = 0;
    struct inart_completion c;
    while (done < j->shape.workers && network_now(j->network) < until && job_run(j, network_now(j->network) + MS))
        for (uint32_t w = 0; w < j->shape.workers; w++)
            while (job_collect(j, w, &c)) {
                done++;
                well += c.status == STATUS_OK;
                if (c.status != STATUS_OK) printf("worker %u: %s\n", w, c.message);
            }
    return well;
}

/* A worker whose operations were aborted hears the root's questions for chunks that it had sent, and that these are
 * complete, while the others go on. In the next epoch all have their results. */
static int aborted(int kind) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 12 && !wrong; seed++) {
        struct shape s = small(3, 16);
        s.mbps = 5;
        struct job *j = job_make(&s, seed);
        struct adversary a = {.job = j, .random = {seed}, .loss = 0.05, .silent_node = UINT32_MAX};
        adversary_attach(&a);
        struct operation o = simple(&s, kind, kind == INART_GATHER ? 80000 : 20000);
        uint8_t **before = begin(j, &o);
        network_run(j->network, network_now(j->network) + 30 * MS + random_below(&a.random, 100 * MS));
        job_abort(j, 0);
        network_run(j->network, network_now(j->network) + 2000 * MS);
        j->epoch++;
        for (uint32_t w = 0; w < s.workers; w++) job_configure_worker(j, w);
        job_configure_root(j);
        struct inart_completion c;
        for (uint32_t w = 0; w < s.workers; w++)
            while (job_collect(j, w, &c)) wrong |= c.status != STATUS_ABORTED;
        uint8_t **after = begin(j, &o);
        wrong |= until_done(j, 100) != s.workers;
        arrays_free(j, before);
        arrays_free(j, after);
        job_free(j);
    }
    return wrong;
}

static int aborted_scatter(void) { return aborted(INART_REDUCE_SCATTER); }

static int aborted_gather(void) { return aborted(INART_GATHER); }

/* ---- a gather in which a packet arrives with another sequence number ---- */

static struct {
    uint32_t lost;                                  /* the sequence number of worker 0's packet that is lost */
    uint8_t seen[4096] __attribute__((aligned(8))); /* a packet of worker 1, as it was sent */
    bool injected;
} changed;

static bool is_contribution(const struct carried *c) {
    uint8_t flags = c->payload[INART_AT(INART_OFFSET_FLAGS)];
    return flags & INART_FLAG_SINGLE && !(flags & (INART_FLAG_ASK | INART_FLAG_RESULT));
}

/* Loses one packet of worker 0. A later complete chunk of another worker than 1 then gets worker 1's packet, whose
 * sequence number has one bit changed. */
static bool change(struct adversary *a, uint32_t node, uint32_t port, struct carried *c) {
    const struct job *j = a->job;
    uint32_t at = INART_AT(INART_OFFSET_SEQUENCE), sequence = inart_get32(c->payload + at);
    if (!is_contribution(c)) return false;
    if (node == 0 && !changed.lost && sequence > 30) {
        changed.lost = sequence;
        return true;
    }
    struct carried *seen = (struct carried *)(void *)changed.seen;
    if (node == 1 && !seen->bytes) memcpy(changed.seen, c, sizeof *c + c->bytes);
    if (node != j->top || !changed.lost || !seen->bytes || changed.injected || sequence <= changed.lost) return false;
    uint32_t own = inart_get32(seen->payload + at);
    if (__builtin_popcount(sequence ^ own) != 1 || sequence % j->shape.workers == own % j->shape.workers) return false;
    changed.injected = true;
    inart_put32(seen->payload + at, sequence);
    network_inject(j->network, node, port, seen, MS);
    return false;
}

static int changed_sequence(void) {
    struct shape s = small(3, 64);
    s.others = false; /* all workers have the result of a chunk, so nobody sends it any more */
    struct job *j = job_make(&s, 1);
    struct adversary a = {.job = j, .random = {1}, .silent_node = UINT32_MAX, .look = change};
    adversary_attach(&a);
    struct operation o = simple(&s, INART_GATHER, 252 * 200);
    uint8_t **array = begin(j, &o);
    uint64_t start = network_now(j->network);
    int wrong = until_done(j, 100) != s.workers;
    double seconds = (double)(network_now(j->network) - start) / 1e9;
    if (!changed.injected) printf("no packet was changed\n");
    if (seconds > 5) printf("it took %.1f s\n", seconds);
    wrong |= !changed.injected || seconds > 5;
    arrays_free(j, array);
    job_free(j);
    return wrong;
}

/* ---- a sum of exponents whose kind is changed on its way ---- */

/* Marks the second sum of exponents that the switch sends as one of a reduce-scatter. */
static bool mark_exponents(struct adversary *a, uint32_t node, uint32_t port, struct carried *c) {
    uint8_t *flags = c->payload + INART_AT(INART_OFFSET_FLAGS);
    (void)port;
    if (node != a->job->top || !(*flags & INART_FLAG_MAXIMUM) || *flags & INART_FLAG_RESULT || changed.injected)
        return false;
    changed.injected = inart_get32(c->payload + INART_AT(INART_OFFSET_SEQUENCE)) == 1;
    if (changed.injected) *flags |= INART_FLAG_SCATTER;
    return false;
}

static int changed_kind(void) {
    struct shape s = small(3, 64);
    s.topology = STAR;
    struct job *j = job_make(&s, 1);
    struct adversary a = {.job = j, .random = {1}, .silent_node = UINT32_MAX, .look = mark_exponents};
    adversary_attach(&a);
    struct operation o = simple(&s, INART_ALL_REDUCE, 10000);
    uint8_t **array = begin(j, &o);
    int wrong = until_done(j, 100) != s.workers;
    if (!changed.injected) printf("no packet was changed\n");
    wrong |= !changed.injected;
    arrays_free(j, array);
    job_free(j);
    return wrong;
}

/* ---- notices of other ways that come faster than timers run out ---- */

static int rerouted_often(void) {
    struct shape s = small(3, 64);
    struct job *j = job_make(&s, 1);
    struct adversary a = {.job = j, .random = {1}, .silent_node = UINT32_MAX, .loss = 1};
    adversary_attach(&a);
    struct operation o = simple(&s, INART_ALL_REDUCE, 10000);
    uint8_t **array = begin(j, &o);
    network_run(j->network, network_now(j->network) + 30 * MS);
    a.loss = 0; /* all that was sent so far is lost, and nobody but the workers' timers knows */
    uint32_t done = 0, notices = 0;
    struct inart_completion c;
    for (; done < s.workers && notices < 1000; notices++) {
        job_reroute(j, true, false);
        network_run(j->network, network_now(j->network) + 20 * MS);
        for (uint32_t w = 0; w < s.workers; w++)
            while (job_collect(j, w, &c)) done += c.status == STATUS_OK;
    }
    if (done < s.workers) printf("%u of %u workers have their result after %u notices\n", done, s.workers, notices);
    arrays_free(j, array);
    job_free(j);
    return done < s.workers;
}

/* ---- as many workers as a job may have ---- */

static int most_workers(void) {
    struct shape s = small(INART_MAX_WORKERS, 64);
    s.topology = RACKS;
    s.per_rack = 64;
    s.mbps = 100;
    struct job *j = job_make(&s, 1);
    struct adversary a = {.job = j, .random = {1}, .silent_node = UINT32_MAX, .loss = 0.0005, .jitter = 50000};
    adversary_attach(&a);
    struct operation o = simple(&s, INART_ALL_REDUCE, 5000);
    uint8_t **array = begin(j, &o);
    int wrong = until_done(j, 300) != s.workers;
    float sum = 0;
    for (uint32_t w = 0; w < s.workers; w++) sum += value_of(w);
    for (uint32_t w = 0; w < s.workers && !wrong; w++)
        for (uint64_t i = 0; i < o.elements; i++) wrong |= ((float *)(void *)array[w])[i] != sum;
    arrays_free(j, array);
    job_free(j);
    return wrong;
}

/* ---- states ---- */

static int wrong_if(bool wrong, const char *what, int state, int event) {
    if (wrong) printf("state %d, event %d: %s\n", state, event, what);
    return wrong;
}

/* Each event leads from each state of a chunk to a state with a meaning. */
static int states(void) {
    int wrong = 0;
    for (int state = CHUNK_UNSENT; state <= CHUNK_ANSWERED; state++)
        for (int event = CHUNK_SENDS; event <= CHUNK_COMPLETE; event++) {
            enum chunk_state s = (enum chunk_state)state, after = chunk_after(s, (enum chunk_event)event);
            bool waits = chunk_waiting(s) != chunk_waiting(after), begins = s == CHUNK_UNSENT;
            wrong |= wrong_if(after > CHUNK_ANSWERED, "no state", state, event);
            wrong |= wrong_if(s == CHUNK_ANSWERED && after != s, "an answered chunk changes", state, event);
            wrong |= wrong_if(waits && !begins && after != CHUNK_ANSWERED, "it waits for something else", state, event);
            wrong |= wrong_if(event == CHUNK_REPEATED && chunk_goes_again(after), "it is sent for ever", state, event);
        }
    for (int state = CELL_ADDS; state <= CELL_REPEATED; state++)
        for (int event = CELL_ASKED; event <= CELL_SENT_TO_ONE; event++) {
            enum cell_state s = (enum cell_state)state, after = cell_after(s, (enum cell_event)event);
            bool complete = cell_is_complete(s), becomes = cell_is_complete(after), full = event == CELL_FULL;
            wrong |= wrong_if(after > CELL_REPEATED, "no state", state, event);
            wrong |= wrong_if(complete && !becomes, "a complete chunk is not complete any more", state, event);
            wrong |= wrong_if(!complete && becomes != full, "it is complete without its contributions", state, event);
            wrong |= wrong_if(cell_verifies(s) && !cell_verifies(after) && !becomes, "it trusts again", state, event);
        }
    return wrong;
}

/* ---- names ---- */

static const struct {
    const char *name;
    int (*run)(void);
} cases[] = {
    {"states", states},
    {"aborted_scatter", aborted_scatter},
    {"aborted_gather", aborted_gather},
    {"changed_sequence", changed_sequence},
    {"changed_kind", changed_kind},
    {"rerouted_often", rerouted_often},
    {"most_workers", most_workers},
};

int case_run(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, name)) return cases[i].run();
    return -1;
}

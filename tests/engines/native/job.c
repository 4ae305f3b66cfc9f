#include "job.h"

#include <stdio.h>
#include <stdlib.h>

#include "collectives.h"
#include "direction.h"
#include "fields.h"
#include "numbering.h"
#include "peek.h"
#include "virtual.h"

#define FIRST_EPOCH 1700000000u
#define RECEIVE_BYTES (1u << 25)

struct virtual_sleep worker_step(void *engine), root_step(void *engine);

/* What a label leads to: RESULTS to all workers, ANSWER to one, OTHERS to all but one; UP is a worker's contribution,
 * RACK and SUM are complete sums, RACK_PART and PART incomplete ones. */
enum labels { RESULTS = 1, ANSWER, OTHERS, UP, RACK, RACK_PART, SUM, PART };

static uint32_t label(enum labels kind, uint32_t tree, uint32_t number) {
    return ((uint32_t)kind << 20 | tree << 16 | number) * 2654435761u;
}

static uint64_t first_bits(uint32_t count) { return count >= 64 ? UINT64_MAX : (1ull << count) - 1; }

static void die(const char *what, const char *error) {
    fprintf(stderr, "%s: %s\n", what, error);
    exit(2);
}

static uint32_t rack_of(const struct job *j, uint32_t w) { return w / j->shape.per_rack; }

static uint32_t rack_size(const struct job *j, uint32_t rack) {
    uint32_t left = j->shape.workers - rack * j->shape.per_rack;
    return left < j->shape.per_rack ? left : j->shape.per_rack;
}

/* ---- the network ---- */

static void wire(struct job *j, uint32_t a, uint32_t a_port, uint32_t b, uint32_t b_port) {
    const struct shape *s = &j->shape;
    network_link(j->network, a, a_port, b, b_port, s->link_mbps, s->delay_ms, s->queue);
    network_link(j->network, b, b_port, a, a_port, s->link_mbps, s->delay_ms, s->queue);
}

static void forward(struct job *j, uint32_t node, uint32_t port, uint32_t what, uint32_t out) {
    network_entry(j->network, node, port, what, NETWORK_FORWARD, out, 0, 0, 0, 0, 0, 0);
}

/* Has a switch send what comes by `port` with label `what` to the first `count` ports but one (UINT32_MAX: to all). */
static void replicate(struct job *j, uint32_t node, uint32_t port, uint32_t what, uint32_t group, uint32_t count,
                      uint32_t but) {
    uint32_t *ports = malloc(count * sizeof *ports), n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (i != but) ports[n++] = i;
    network_group(j->network, node, group, n, ports);
    network_entry(j->network, node, port, what, NETWORK_REPLICATE, group, 0, 0, 0, 0, 0, 0);
    free(ports);
}

static void aggregate(struct job *j, uint32_t tree, uint32_t node, uint32_t port, uint32_t what, uint32_t next,
                      uint32_t partial, uint32_t out, uint32_t flows) {
    network_entry(j->network, node, port, what, NETWORK_AGGREGATE, out, tree * j->shape.slots, j->shape.slots - 1, next,
                  partial, 1ull << port, first_bits(flows));
}

/* The top switch has the workers, or the racks, at its first ports, and the parameter server at the next one. */
static void install_top(struct job *j, uint32_t tree) {
    const struct shape *s = &j->shape;
    bool racks = s->topology == RACKS;
    uint32_t down = racks ? j->racks : s->workers, group = tree * (1 + s->workers);
    replicate(j, j->top, down, label(RESULTS, tree, 0), group, down, UINT32_MAX);
    for (uint32_t w = 0; w < s->workers; w++) {
        forward(j, j->top, down, label(ANSWER, tree, w), racks ? rack_of(j, w) : w);
        replicate(j, j->top, down, label(OTHERS, tree, w), group + 1 + w, down, racks ? UINT32_MAX : w);
        if (s->topology == DIRECT)
            forward(j, j->top, w, label(UP, tree, w), down);
        else if (s->topology == STAR)
            aggregate(j, tree, j->top, w, label(UP, tree, w), label(SUM, tree, 0), label(PART, tree, 0), down, down);
    }
    for (uint32_t r = 0; racks && r < j->racks; r++) {
        aggregate(j, tree, j->top, r, label(RACK, tree, r), label(SUM, tree, 0), label(PART, tree, 0), down, down);
        forward(j, j->top, r, label(RACK_PART, tree, r), down);
    }
}

static void install_rack(struct job *j, uint32_t tree, uint32_t rack) {
    const struct shape *s = &j->shape;
    uint32_t node = j->first_rack + rack, size = rack_size(j, rack), group = tree * (1 + s->workers);
    replicate(j, node, size, label(RESULTS, tree, 0), group, size, UINT32_MAX);
    for (uint32_t w = 0; w < s->workers; w++) {
        bool here = rack_of(j, w) == rack;
        uint32_t port = w % s->per_rack;
        replicate(j, node, size, label(OTHERS, tree, w), group + 1 + w, size, here ? port : UINT32_MAX);
        if (!here) continue;
        forward(j, node, size, label(ANSWER, tree, w), port);
        aggregate(j, tree, node, port, label(UP, tree, w), label(RACK, tree, rack), label(RACK_PART, tree, rack), size,
                  size);
    }
}

static void make_network(struct job *j, uint64_t seed) {
    const struct shape *s = &j->shape;
    struct network *n = j->network = network_make(seed, s->values);
    uint32_t down = s->topology == RACKS ? j->racks : s->workers, slots = s->slots * s->trees;
    for (uint32_t i = 0; i <= s->workers; i++) network_node(n, 1, 0, 0x0a000001u + i);
    j->root_node = s->workers;
    j->top = network_node(n, down + 1, slots, 0);
    j->first_rack = j->top + 1;
    wire(j, j->top, down, j->root_node, 0);
    for (uint32_t r = 0; s->topology == RACKS && r < j->racks; r++) {
        uint32_t node = network_node(n, rack_size(j, r) + 1, slots, 0);
        wire(j, j->top, r, node, rack_size(j, r));
        for (uint32_t tree = 0; tree < s->trees; tree++) install_rack(j, tree, r);
    }
    for (uint32_t w = 0; w < s->workers; w++)
        if (s->topology == RACKS)
            wire(j, j->first_rack + rack_of(j, w), w % s->per_rack, w, 0);
        else
            wire(j, j->top, w, w, 0);
    for (uint32_t tree = 0; tree < s->trees; tree++) install_top(j, tree);
    virtual_attach((struct virtual_world *)n);
}

/* ---- the engines ---- */

static struct inart_io_config io_of(uint32_t node) {
    return (struct inart_io_config){
        .interface = "virtual", .address = 0x0a000001u + node, .receive_bytes = RECEIVE_BYTES, .threads = 1};
}

/* Calls the worker's engine with the configuration of the present epoch: makes it, or gives it another. */
static void worker_engine(struct job *j, uint32_t w) {
    const struct shape *s = &j->shape;
    uint32_t *others = malloc((s->trees * s->workers + 1) * sizeof *others), count = s->others ? s->workers - 1 : 0;
    struct inart_tree_config trees[MOST_PLACES];
    for (uint32_t i = 0; i < s->trees * s->lanes; i++) {
        uint32_t tree = i / s->lanes;
        uint32_t *mine = others + tree * s->workers;
        for (uint32_t other = 0, n = 0; other < s->workers; other++)
            if (other != w) mine[n++] = label(OTHERS, tree, other);
        trees[i] = (struct inart_tree_config){.tree = tree,
                                              .up_label = label(UP, tree, w),
                                              .return_label = label(RESULTS, tree, 0),
                                              .answer_label = label(ANSWER, tree, w),
                                              .slots = s->slots,
                                              .port = INART_UDP_PORT_BASE + i,
                                              .directions = s->directions,
                                              .lanes = s->lanes,
                                              .lane = i % s->lanes,
                                              .rate_mbps = s->mbps,
                                              .gather_speed = s->gather_speed,
                                              .others = count,
                                              .others_labels = mine,
                                              .root = "ps"};
    }
    struct inart_worker_config c = {.job = 1,
                                    .epoch = j->epoch,
                                    .workers = s->workers,
                                    .values = s->values,
                                    .trees = s->trees * s->lanes,
                                    .index = w,
                                    .timeout_seconds = s->timeout,
                                    .last_number = UINT32_MAX,
                                    .tree = trees};
    memcpy(c.key, j->key, sizeof c.key);
    char error[MESSAGE_BYTES];
    network_enter(j->network, w);
    if (j->worker[w]) {
        if (inart_worker_reconfigure(j->worker[w], &c, "another epoch", error, sizeof error)) die("worker", error);
    } else {
        struct inart_io_config io = io_of(w);
        j->worker[w] = inart_worker_create(&io, &c, error, sizeof error);
        if (!j->worker[w]) die("worker", error);
        network_engine(j->network, w, j->worker[w], worker_step);
    }
    free(others);
    network_wake(j->network, w);
}

/* The flows that a tree's root hears of, and the lists that they point to. */
struct flows {
    struct inart_root_flow flow[2 * MOST_FLOWS + 2 + INART_MAX_WORKERS];
    uint32_t count, used, *worker, *part;
};

/* Adds a flow of the workers [from, to). The parts of a partial sum are the workers, or where `racks` the racks. */
static void flow_add(const struct job *j, struct flows *f, uint32_t what, bool partial, uint32_t from, uint32_t to,
                     bool racks) {
    uint32_t *worker = f->worker + f->used, *part = f->part + f->used;
    for (uint32_t w = from; w < to; w++, f->used++) {
        f->worker[f->used] = w;
        f->part[f->used] = !partial ? 0 : racks ? rack_of(j, w) : w - from;
    }
    f->flow[f->count++] = (struct inart_root_flow){what, partial, to - from, worker, part};
}

static void find_flows(const struct job *j, uint32_t tree, struct flows *f) {
    const struct shape *s = &j->shape;
    f->count = f->used = 0;
    if (s->topology == DIRECT) {
        for (uint32_t w = 0; w < s->workers; w++) flow_add(j, f, label(UP, tree, w), false, w, w + 1, false);
        return;
    }
    flow_add(j, f, label(SUM, tree, 0), false, 0, s->workers, false);
    flow_add(j, f, label(PART, tree, 0), true, 0, s->workers, s->topology == RACKS);
    for (uint32_t r = 0; s->topology == RACKS && r < j->racks; r++) {
        uint32_t from = r * s->per_rack;
        flow_add(j, f, label(RACK_PART, tree, r), true, from, from + rack_size(j, r), false);
    }
}

static void root_engine(struct job *j) {
    const struct shape *s = &j->shape;
    uint32_t most = 3 * s->workers, *lists = malloc((2 * most + 2 * s->workers) * s->trees * sizeof *lists),
             *at = lists;
    struct flows *flows = malloc(s->trees * sizeof *flows);
    struct inart_root_tree_config trees[MOST_PLACES];
    for (uint32_t tree = 0; tree < s->trees; tree++, at += 2 * most + 2 * s->workers) {
        uint32_t *answers = at + 2 * most, *others = answers + s->workers;
        flows[tree].worker = at;
        flows[tree].part = at + most;
        find_flows(j, tree, &flows[tree]);
        for (uint32_t w = 0; w < s->workers; w++) {
            answers[w] = label(ANSWER, tree, w);
            others[w] = label(OTHERS, tree, w);
        }
        for (uint32_t lane = 0; lane < s->lanes; lane++)
            trees[tree * s->lanes + lane] =
                (struct inart_root_tree_config){.tree = tree,
                                                .return_label = label(RESULTS, tree, 0),
                                                .slots = s->slots,
                                                .flows = flows[tree].count,
                                                .port = INART_UDP_PORT_BASE + tree * s->lanes + lane,
                                                .directions = s->directions,
                                                .lanes = s->lanes,
                                                .lane = lane,
                                                .rate_mbps = s->mbps,
                                                .flow = flows[tree].flow,
                                                .answer_labels = answers,
                                                .others_labels = s->others ? others : NULL};
    }
    struct inart_root_config c = {.job = 1,
                                  .epoch = j->epoch,
                                  .workers = s->workers,
                                  .values = s->values,
                                  .trees = s->trees * s->lanes,
                                  .tree = trees};
    memcpy(c.key, j->key, sizeof c.key);
    char error[MESSAGE_BYTES];
    network_enter(j->network, j->root_node);
    if (j->root) {
        if (inart_root_reconfigure(j->root, &c, error, sizeof error)) die("parameter server", error);
    } else {
        struct inart_io_config io = io_of(j->root_node);
        j->root = inart_root_create(&io, &c, error, sizeof error);
        if (!j->root) die("parameter server", error);
        network_engine(j->network, j->root_node, j->root, root_step);
    }
    free(flows);
    free(lists);
    network_wake(j->network, j->root_node);
}

struct job *job_make(const struct shape *shape, uint64_t seed) {
    struct job *j = calloc(1, sizeof *j);
    j->shape = *shape;
    j->epoch = FIRST_EPOCH;
    j->racks = shape->topology == RACKS ? (shape->workers + shape->per_rack - 1) / shape->per_rack : 0;
    for (int i = 0; i < CHECK_KEY_BYTES; i++) j->key[i] = (uint8_t)(seed >> i % 8 * 8) ^ (uint8_t)(i * 37);
    j->worker = calloc(shape->workers, sizeof *j->worker);
    make_network(j, seed);
    for (uint32_t w = 0; w < shape->workers; w++) worker_engine(j, w);
    root_engine(j);
    return j;
}

void job_free(struct job *j) {
    for (uint32_t w = 0; w < j->shape.workers; w++) {
        network_enter(j->network, w);
        inart_worker_stop(j->worker[w]);
        inart_worker_destroy(j->worker[w]);
    }
    network_enter(j->network, j->root_node);
    inart_root_destroy(j->root);
    network_free(j->network);
    free(j->worker);
    free(j);
}

/* ---- what happens to a job ---- */

/* Cuts an operation over the lanes, at whole groups of chunks: then the bits of a result do not depend on it. */
static uint32_t cut(const struct job *j, const struct operation *o, uint32_t *numbers,
                    struct inart_part_range *ranges) {
    const struct shape *s = &j->shape;
    uint32_t places = o->encoding.gathered.columns ? 1 : s->trees * s->lanes;
    uint64_t n = INART_DATA_VALUES(s->values) * (o->dtype == INART_BYTES ? INART_VALUE_BYTES : o->encoding.fields);
    uint64_t group = n * EXPONENT_GROUP, groups = (o->count + group - 1) / group;
    for (uint32_t i = 0; i < places; i++) {
        uint64_t from = groups * i / places * group, to = groups * (i + 1) / places * group;
        if (i + 1 == places) to = o->count;
        struct inart_direction d = {.lanes = s->lanes, .lane = i % s->lanes};
        numbers[i] = inart_lane_number(&d, i / s->lanes);
        ranges[i] = (struct inart_part_range){from, to - from};
    }
    return places;
}

int64_t job_submit(struct job *j, uint32_t w, void *array, const struct operation *o, char *error) {
    uint32_t numbers[MOST_PLACES];
    struct inart_part_range ranges[MOST_PLACES];
    uint32_t places = cut(j, o, numbers, ranges);
    int32_t status;
    network_enter(j->network, w);
    int64_t id = inart_worker_submit(j->worker[w], array, array, o->elements, o->dtype, &o->encoding, o->mean, o->kind,
                                     o->source, o->tag, places, numbers, ranges, &status, error, MESSAGE_BYTES);
    network_wake(j->network, w);
    return id;
}

bool job_collect(struct job *j, uint32_t w, struct inart_completion *completion) {
    return peek_has_done(j->worker[w]) && inart_worker_next_completion(j->worker[w], 0, completion) > 0;
}

void job_configure_worker(struct job *j, uint32_t w) { worker_engine(j, w); }

void job_configure_root(struct job *j) { root_engine(j); }

void job_abort(struct job *j, uint32_t w) {
    network_enter(j->network, w);
    inart_worker_abort(j->worker[w], "an agent was lost");
}

void job_reroute(struct job *j, bool results, bool reboot) {
    const struct shape *s = &j->shape;
    for (uint32_t tree = 0; tree < s->trees; tree++) {
        inart_root_rerouted(j->root, label(RESULTS, tree, 0), 0, results, -1);
        for (uint32_t w = 0; w < s->workers; w++)
            inart_worker_rerouted(j->worker[w], label(UP, tree, w), 0, 1, results, -1);
    }
    for (uint32_t node = 0; node <= s->workers; node++) network_wake(j->network, node);
    for (uint32_t node = j->top; reboot && node <= j->top + j->racks; node++) network_reboot(j->network, node);
}

void job_begin_at(struct job *j, uint64_t number) {
    for (uint32_t w = 0; w < j->shape.workers; w++) peek_worker_begin_at(j->worker[w], number);
    peek_root_begin_at(j->root, number);
}

bool job_run(struct job *j, uint64_t until) {
    uint64_t next = network_next(j->network);
    if (next == UINT64_MAX) return false;
    network_run(j->network, next > until ? next : until);
    return true;
}

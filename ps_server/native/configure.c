#include "configure.h"

/* The trees and flows that one thread is to have. */
struct share {
    struct io_spec spec;
    struct root_tree *trees;
    uint32_t tree_count;
    struct root_flow *flows;
    uint32_t flow_count;
    struct label_map labels, sources;
    struct check *check;
};

double root_packets_per_second(double mbps, uint32_t values) {
    return mbps / (8e-6 * INART_FRAME_BYTES((double)values));
}

void root_share_free(struct root_tree *trees, uint32_t count, struct root_flow *flows, uint32_t flow_count,
                     struct label_map *labels, struct label_map *sources, struct check *check) {
    check_free(check);
    label_map_free(sources);
    for (uint32_t i = 0; trees && i < count; i++) {
        free(trees[i].ring);
        free(trees[i].values);
        free(trees[i].workers);
        free(trees[i].answer_labels);
        free(trees[i].others_labels);
    }
    for (uint32_t i = 0; flows && i < flow_count; i++) free(flows[i].sets);
    free(trees);
    free(flows);
    label_map_free(labels);
}

/* Makes a flow; returns 0, or -1: out of memory, or (with the reason in `error`) sets that cannot be. */
static int flow_make(struct root_flow *flow, const struct inart_root_flow *from, uint32_t workers, char *error,
                     size_t size) {
    uint32_t words = (workers + 63) / 64;
    uint64_t everyone[MOST_WORDS] = {0};
    flow->partial = from->partial != 0;
    flow->parts = 1;
    for (uint32_t i = 0; i < from->workers; i++) {
        uint32_t worker = from->worker[i];
        if (worker >= workers || from->part[i] >= MOST_PARTS || everyone[worker / 64] >> worker % 64 & 1) {
            snprintf(error, size, "label %u: worker %u of %u in part %u: each worker once, at most %d parts",
                     from->label, worker, workers, from->part[i], MOST_PARTS);
            return -1;
        }
        everyone[worker / 64] |= 1ull << worker % 64;
        if (flow->partial && from->part[i] >= flow->parts) flow->parts = from->part[i] + 1;
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

static uint32_t *labels_copy(const uint32_t *from, uint32_t count) {
    uint32_t *to = calloc(count, sizeof *to);
    if (to) memcpy(to, from, count * sizeof *to);
    return to;
}

/* Makes one direction of a lane of a tree; returns false when out of memory. The tree's `lane` stays as it is. */
static bool tree_make(struct root_tree *t, const struct inart_root_tree_config *from, struct inart_direction direction,
                      const struct inart_root_config *config) {
    uint32_t slots = from->slots / inart_ways(&direction), words = (config->workers + 63) / 64;
    *t = (struct root_tree){.number = from->tree,
                            .return_label = from->return_label,
                            .slots = slots,
                            .mask = 2 * slots - 1,
                            .lane = t->lane,
                            .direction = direction,
                            .oldest_since = inart_now(),
                            .guard = GUARD_FIRST,
                            .planned = root_packets_per_second(from->rate_mbps, config->values),
                            .tokens_at = inart_now()};
    t->answer_labels = labels_copy(from->answer_labels, config->workers);
    t->others_labels = from->others_labels ? labels_copy(from->others_labels, config->workers) : NULL;
    t->ring = calloc(2ull * slots, sizeof *t->ring);
    t->workers = calloc(2ull * slots * words, sizeof *t->workers);
    size_t bytes = 2ull * slots * config->values * sizeof *t->values;
    t->values = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    return t->ring && t->values && t->workers && t->answer_labels && (!from->others_labels || t->others_labels);
}

/* Returns the place of the first tree of `s` that is another lane of the same one; where there is none, the place of
 * the next tree to be added. */
static uint32_t family_of(const struct share *s, uint32_t tree) {
    uint32_t first = s->tree_count;
    while (first && s->trees[first - 1].number == tree) first--;
    return first;
}

static int share_make(struct inart_root *r, const struct inart_root_config *config, uint32_t thread, struct share *s,
                      char *error, size_t size) {
    uint32_t flow_count = 0;
    for (uint32_t i = 0; i < config->trees; i++) flow_count += config->tree[i].flows;
    s->spec = engine_spec(&r->io, config->values);
    s->trees = calloc(INART_DIRECTIONS * config->trees + 1, sizeof *s->trees);
    s->flows = calloc(flow_count + 1, sizeof *s->flows);
    s->check = check_make(config->key, config->workers, config->values);
    bool bad = !s->trees || !s->flows || !s->check ||
               engine_sources_make(&s->sources, config->source, config->sources) ||
               label_map_make(&s->labels, flow_count);
    error[0] = 0;
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_root_tree_config *from = &config->tree[i];
        if (from->thread != thread) continue;
        struct root_tree *t = &s->trees[s->tree_count];
        uint32_t directions = inart_directions(from->directions), reach = from->here ? INART_BOTH : INART_LINK;
        uint32_t lanes = inart_lanes(from->lanes), first = family_of(s, from->tree);
        for (uint32_t j = 0; j < directions && !bad; j++) {
            if (engine_lane(&s->spec, from->port, reach, from->link, &t[j].lane, error, size)) return -1;
            bad = !tree_make(&t[j], from, (struct inart_direction){directions, j, lanes, from->lane % lanes}, config);
        }
        for (uint32_t j = 0; j < directions && !bad; j++) {
            if (!j && first == s->tree_count) t->family = inart_family_of_none();
            t[j].first = first;
            s->trees[first].family.at[inart_way(&t[j].direction)] = (int8_t)(s->tree_count + j - first);
        }
        for (uint32_t j = 0; j < from->flows && !bad && first == s->tree_count; j++) {
            struct root_flow *flow = &s->flows[s->flow_count];
            flow->tree = s->tree_count;
            bad = flow_make(flow, &from->flow[j], config->workers, error, size) != 0;
            label_map_set(&s->labels, from->flow[j].label, (int32_t)s->flow_count++);
        }
        s->tree_count += directions;
    }
    if (bad && !error[0]) snprintf(error, size, "out of memory for the chunks of %u trees", config->trees);
    return bad ? -1 : engine_open(&r->threads[thread].engine, &s->spec, error, size);
}

int root_configure(struct inart_root *r, const struct inart_root_config *config, char *error, size_t size) {
    if (engine_check_job(config->workers, config->values, config->job, error, size)) return -1;
    for (uint32_t i = 0; i < config->trees; i++) {
        const struct inart_root_tree_config *t = &config->tree[i];
        uint32_t slots = t->slots / (inart_directions(t->directions) * inart_lanes(t->lanes));
        if (engine_check_tree(t->tree, slots, t->port, t->thread, r->io.threads, error, size)) return -1;
    }
    struct share shares[MOST_THREADS];
    memset(shares, 0, sizeof shares);
    int result = 0;
    for (uint32_t i = 0; i < r->io.threads && !result; i++) result = share_make(r, config, i, &shares[i], error, size);
    for (uint32_t i = 0; i < r->io.threads; i++) {
        struct root_thread *x = &r->threads[i];
        struct share *s = &shares[i];
        engine_enter(&x->engine);
        if (result) { /* all stays as it was */
            root_share_free(s->trees, s->tree_count, s->flows, s->flow_count, &s->labels, &s->sources, s->check);
            engine_discard(&x->engine);
        } else {
            root_share_free(x->trees, x->tree_count, x->flows, x->flow_count, &x->labels, &x->sources, x->check);
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

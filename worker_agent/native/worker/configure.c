#include "configure.h"
#include "congestion.h"
#include "pacing.h"
#include "window.h"

/* The wait, in buckets, for a link that is shared with a parameter server by which a tree loses none of its rate,
 * either (SLACK_SECONDS). */
#define SLACK_SHARED 2

/* The trees that one thread is to have. */
struct share {
    struct io_spec spec;
    struct worker_tree *trees;
    uint32_t tree_count;
    struct label_map labels;
};

void worker_trees_free(struct worker_tree *trees, uint32_t count, struct label_map *labels) {
    for (uint32_t i = 0; trees && i < count; i++) free(trees[i].ring);
    free(trees);
    label_map_free(labels);
}

static struct inart_direction direction_of(const struct inart_tree_config *from, uint32_t direction) {
    uint32_t lanes = inart_lanes(from->lanes);
    return (struct inart_direction){inart_directions(from->directions), direction, lanes, from->lane % lanes};
}

/* Returns the first tree of `s` that is another lane of the same one, or NULL. */
static struct worker_tree *family_of(struct share *s, uint32_t tree) {
    struct worker_tree *t = s->trees + s->tree_count, *first = NULL;
    while (t > s->trees && (--t)->config.tree == tree) first = t;
    return first;
}

/* Prepares a tree. `total_mbps` is the rate of all trees of this worker; for `shared` see inart_worker_bucket. */
static void tree_setup(struct worker_tree *t, const struct inart_tree_config *from, uint32_t direction,
                       double total_mbps, bool shared, const struct inart_worker_config *worker, uint64_t now) {
    struct inart_tree_config *config = &t->config;
    *config = *from;
    t->direction = direction_of(from, direction);
    config->slots /= inart_ways(&t->direction);
    t->config.root[NAME_BYTES - 1] = 0;
    t->config.others_labels = NULL; /* the caller's */
    t->mask = config->slots - 1;
    t->period = inart_period(config->slots, worker->workers);
    t->reorder = 1;
    t->tokens_at = t->base_since = now;
    t->packets_per_second = config->rate_mbps / pacing_packet_mbits(worker->values);
    t->tokens_wake = inart_worker_bucket(config->rate_mbps, total_mbps, config->slots, worker->values, shared);
    double slack = t->packets_per_second * SLACK_SECONDS, waits = shared ? SLACK_SHARED * t->tokens_wake : 0;
    t->tokens_most = t->tokens_wake + waits + (slack < 2 ? 2 : slack);
    t->tokens = t->burst = t->tokens_wake;
    t->window = window_first(t);
    congestion_setup(t, total_mbps > 0 ? config->rate_mbps / total_mbps : 1.0 / worker->trees, worker->values);
    t->window_quick = t->config.slots;
}

static int share_make(struct inart_worker *w, const struct inart_worker_config *config, uint32_t thread,
                      struct share *s, char *error, size_t size) {
    s->spec = engine_spec(&w->io, config->values);
    s->trees = calloc(INART_DIRECTIONS * config->trees + 1, sizeof *s->trees);
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
        if (from->thread != thread) continue;
        struct worker_tree *t = &s->trees[s->tree_count];
        uint32_t directions = inart_directions(from->directions), reach = from->here ? INART_HERE : INART_LINK;
        for (uint32_t j = 0; j < directions; j++) {
            tree_setup(&t[j], from, j, total_mbps, w->io.uplink != NULL, config, inart_now());
            if (engine_lane(&s->spec, from->port, reach, from->link, &t[j].lane, error, size)) return -1;
            t[j].ring = calloc(t[j].config.slots, sizeof *t->ring);
            bad = bad || !t[j].ring;
        }
        struct worker_tree *first = family_of(s, from->tree);
        if (!first) {
            first = t;
            first->family = inart_family_of_none();
            int32_t number = (int32_t)s->tree_count;
            label_map_set(&s->labels, from->return_label, number);
            label_map_set(&s->labels, from->answer_label, number);
            for (uint32_t j = 0; j < from->others; j++) label_map_set(&s->labels, from->others_labels[j], number);
        }
        for (uint32_t j = 0; j < directions; j++)
            first->family.at[inart_way(&t[j].direction)] = (int8_t)(&t[j] - first);
        s->tree_count += directions;
    }
    if (bad) snprintf(error, size, "out of memory for %u trees", config->trees);
    return bad ? -1 : engine_open(&w->threads[thread].engine, &s->spec, error, size);
}

int worker_configure(struct inart_worker *w, const struct inart_worker_config *config, char *error, size_t size) {
    if (engine_check_job(config->workers, config->values, config->job, error, size)) return -1;
    for (uint32_t i = 0; i < config->trees; i++) {
        const struct inart_tree_config *t = &config->tree[i];
        uint32_t slots = t->slots / (inart_directions(t->directions) * inart_lanes(t->lanes));
        if (engine_check_tree(t->tree, slots, t->port, t->thread, w->io.threads, error, size)) return -1;
    }
    struct share shares[MOST_THREADS];
    memset(shares, 0, sizeof shares);
    int result = 0;
    struct check *check = check_make(config->key, config->workers, config->values);
    struct label_map sources = {0};
    if (!check || engine_sources_make(&sources, config->source, config->sources)) {
        check_free(check);
        snprintf(error, size, "out of memory");
        return -1;
    }
    for (uint32_t i = 0; i < w->io.threads && !result; i++) result = share_make(w, config, i, &shares[i], error, size);
    for (uint32_t i = 0; i < w->io.threads; i++) engine_enter(&w->threads[i].engine);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct worker_thread *x = &w->threads[i];
        struct share *s = &shares[i];
        if (result) { /* all stays as it was */
            worker_trees_free(s->trees, s->tree_count, &s->labels);
            engine_discard(&x->engine);
            continue;
        }
        worker_trees_free(x->trees, x->tree_count, &x->labels);
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

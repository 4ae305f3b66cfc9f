/* Flow-level, event-driven bandwidth sharing: the inner loop of controlplane.planner.simulate.
 *
 * A flow has a size and a set of (resource, coefficient): at rate r it takes r * coefficient of each of them. Rates are
 * computed anew for the connected component (flows and resources) in which something changed, and stay constant until
 * the next change there. Groups of flows finish together: the caller hears of groups only, and only of those that it
 * watches. Flows may be promised for when a group is done: they start at that instant, without the caller.
 *
 * Nothing here is shared by simulators: each may be used by a thread of its own, at the same time.
 */
#define _GNU_SOURCE /* qsort_r */
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int resource, flow, next, previous;
    double coefficient;
} Incidence;

typedef struct {
    double remaining, rate, updated, finish;
    long long arrival;
    int priority, first, count, group, heap, mark, frozen;
    char state;
} Flow;

enum { FINISHED, PROMISED, LINKED };

typedef struct {
    int waits;           /* flows and holds that it waits for */
    int promised, count; /* flows that start when it is done; count 0: none */
    char watched;
} Group;

typedef struct {
    double capacity, residual, weight, carried;
    int head, tail, several, served, mark, pending;
    char dirty;
} Resource;

typedef struct {
    double now;
    int fcfs, mark, active;
    Resource *resources;
    int n_resources;
    Flow *flows;
    int n_flows, cap_flows;
    Incidence *incidences;
    int n_incidences, cap_incidences;
    long long arrivals;
    Group *groups;
    int n_groups, cap_groups;
    int *heap;
    int n_heap, cap_heap;
    int *dirty, n_dirty;
    int *done, n_done, cap_done;
    int *component_flows, cap_component_flows;
    int *component_resources;
    int failed;
} Sim;

static int grow(void **array, int *capacity, int needed, size_t size) {
    if (needed <= *capacity) return 1;
    int wanted = *capacity ? *capacity : 64;
    while (wanted < needed) {
        if (wanted > (1 << 29)) return 0;
        wanted *= 2;
    }
    void *bigger = realloc(*array, (size_t)wanted * size);
    if (!bigger) return 0;
    *array = bigger;
    *capacity = wanted;
    return 1;
}

/* --- calendar: a binary heap of flow ids by finish time, ties by id --- */

static int earlier(const Sim *s, int a, int b) {
    const Flow *x = &s->flows[a], *y = &s->flows[b];
    return x->finish < y->finish || (x->finish == y->finish && a < b);
}

static void place(Sim *s, int position, int flow) {
    s->heap[position] = flow;
    s->flows[flow].heap = position;
}

static void sift(Sim *s, int position) {
    int flow = s->heap[position];
    while (position > 0 && earlier(s, flow, s->heap[(position - 1) / 2])) {
        place(s, position, s->heap[(position - 1) / 2]);
        position = (position - 1) / 2;
    }
    for (;;) {
        int child = 2 * position + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && earlier(s, s->heap[child + 1], s->heap[child])) child++;
        if (!earlier(s, s->heap[child], flow)) break;
        place(s, position, s->heap[child]);
        position = child;
    }
    place(s, position, flow);
}

static void heap_remove(Sim *s, int flow) {
    int position = s->flows[flow].heap;
    if (position < 0) return;
    s->flows[flow].heap = -1;
    int last = s->heap[--s->n_heap];
    if (last != flow) {
        place(s, position, last);
        sift(s, position);
    }
}

static void heap_put(Sim *s, int flow) {
    if (s->flows[flow].heap < 0) {
        if (!grow((void **)&s->heap, &s->cap_heap, s->n_heap + 1, sizeof(int))) {
            s->failed = 1;
            return;
        }
        place(s, s->n_heap++, flow);
    }
    sift(s, s->flows[flow].heap);
}

/* --- flows on resources, in the order of (priority, arrival) --- */

static void touch(Sim *s, int resource) {
    if (!s->resources[resource].dirty) {
        s->resources[resource].dirty = 1;
        s->dirty[s->n_dirty++] = resource;
    }
}

static void link_flow(Sim *s, int flow) {
    Flow *f = &s->flows[flow];
    for (int i = f->first; i < f->first + f->count; i++) {
        Incidence *x = &s->incidences[i];
        Resource *r = &s->resources[x->resource];
        int after = r->tail;
        while (after >= 0) {
            int other = s->incidences[after].flow;
            const Flow *o = &s->flows[other];
            if (o->priority < f->priority || (o->priority == f->priority && o->arrival < f->arrival)) break;
            after = s->incidences[after].previous;
        }
        x->previous = after;
        x->next = after >= 0 ? s->incidences[after].next : r->head;
        if (x->previous >= 0)
            s->incidences[x->previous].next = i;
        else
            r->head = i;
        if (x->next >= 0)
            s->incidences[x->next].previous = i;
        else
            r->tail = i;
        r->several += f->count > 1;
        touch(s, x->resource);
    }
}

static void unlink_flow(Sim *s, int flow) {
    Flow *f = &s->flows[flow];
    for (int i = f->first; i < f->first + f->count; i++) {
        Incidence *x = &s->incidences[i];
        Resource *r = &s->resources[x->resource];
        if (x->previous >= 0)
            s->incidences[x->previous].next = x->next;
        else
            r->head = x->next;
        if (x->next >= 0)
            s->incidences[x->next].previous = x->previous;
        else
            r->tail = x->previous;
        r->several -= f->count > 1;
        if (r->served == flow) r->served = -1;
        touch(s, x->resource);
    }
}

static void advance(Sim *s, Flow *f) {
    double time = s->now - f->updated;
    if (time > 0 && f->rate > 0) {
        double amount = fmin(f->remaining, f->rate * time);
        f->remaining -= amount;
        for (int i = f->first; i < f->first + f->count; i++)
            s->resources[s->incidences[i].resource].carried += amount * s->incidences[i].coefficient;
    }
    f->updated = s->now;
}

static void set_rate(Sim *s, int flow, double rate) {
    Flow *f = &s->flows[flow];
    if (f->rate == rate && (f->heap >= 0 || rate == 0)) return;
    advance(s, f);
    f->rate = rate;
    if (rate > 0) {
        f->finish = s->now + f->remaining / rate;
        heap_put(s, flow);
    } else
        heap_remove(s, flow);
}

/* A promised flow is ready; with nothing to send it is over at once, and 1 comes back. */
static int arrive(Sim *s, int flow) {
    Flow *f = &s->flows[flow];
    f->arrival = s->arrivals++;
    f->updated = s->now;
    if (f->count == 0 || f->remaining <= 0) {
        f->state = FINISHED;
        f->remaining = 0;
        s->active--;
        return 1;
    }
    f->state = LINKED;
    link_flow(s, flow);
    return 0;
}

static void release(Sim *s, int group) {
    Group *g = &s->groups[group];
    if (--g->waits) return;
    if (g->watched) {
        if (!grow((void **)&s->done, &s->cap_done, s->n_done + 1, sizeof(int))) {
            s->failed = 1;
            return;
        }
        s->done[s->n_done++] = group;
    }
    int first = g->promised, end = first + g->count;
    g->count = 0;
    for (int flow = first; flow < end; flow++)
        if (s->flows[flow].state == PROMISED && arrive(s, flow)) release(s, s->flows[flow].group);
}

static void finish_flow(Sim *s, int flow) {
    Flow *f = &s->flows[flow];
    heap_remove(s, flow);
    if (f->state == LINKED) unlink_flow(s, flow);
    f->state = FINISHED;
    f->rate = 0;
    s->active--;
    release(s, f->group);
}

/* --- sharing --- */

/* For qsort_r: several threads may each sort the flows of a simulator of their own. */
static int by_order(const void *a, const void *b, void *simulator) {
    const Sim *s = simulator;
    int x = *(const int *)a, y = *(const int *)b;
    const Flow *f = &s->flows[x], *g = &s->flows[y];
    if (f->priority != g->priority) return f->priority > g->priority ? 1 : -1;
    return (f->arrival > g->arrival) - (f->arrival < g->arrival);
}

static void take(Sim *s, const Flow *f, double rate) {
    for (int i = f->first; i < f->first + f->count; i++) {
        Resource *r = &s->resources[s->incidences[i].resource];
        if (isinf(r->residual)) continue;
        r->residual -= rate * s->incidences[i].coefficient;
        if (r->residual < 1e-12 * r->capacity) r->residual = 0; /* a rest of rounding is no bandwidth */
    }
}

/* Only flows that use nothing else: the first (FCFS) or the first class (fair) gets all of it. */
static void share_one(Sim *s, int resource) {
    Resource *r = &s->resources[resource];
    if (s->fcfs) {
        int head = r->head >= 0 ? s->incidences[r->head].flow : -1;
        if (r->served >= 0 && r->served != head) set_rate(s, r->served, 0);
        r->served = head;
        if (head >= 0) set_rate(s, head, r->capacity / s->incidences[r->head].coefficient);
        return;
    }
    double weight = 0;
    int first = r->head >= 0 ? s->flows[s->incidences[r->head].flow].priority : 0;
    for (int i = r->head; i >= 0 && s->flows[s->incidences[i].flow].priority == first; i = s->incidences[i].next)
        weight += s->incidences[i].coefficient;
    for (int i = r->head; i >= 0; i = s->incidences[i].next) {
        int flow = s->incidences[i].flow;
        set_rate(s, flow, s->flows[flow].priority == first ? r->capacity / weight : 0);
    }
}

/* Max-min among flows [begin, end) of the component on what is left. */
static void fill(Sim *s, int begin, int end, int n_resources) {
    for (int k = 0; k < n_resources; k++) {
        s->resources[s->component_resources[k]].weight = 0;
        s->resources[s->component_resources[k]].pending = 0;
    }
    for (int k = begin; k < end; k++) {
        Flow *f = &s->flows[s->component_flows[k]];
        f->frozen = 0;
        for (int i = f->first; i < f->first + f->count; i++) {
            s->resources[s->incidences[i].resource].weight += s->incidences[i].coefficient;
            s->resources[s->incidences[i].resource].pending++;
        }
    }
    int priority = s->flows[s->component_flows[begin]].priority;
    for (int left = end - begin; left > 0;) {
        double least = INFINITY;
        int full = -1;
        for (int k = 0; k < n_resources; k++) {
            Resource *r = &s->resources[s->component_resources[k]];
            if (r->pending == 0) continue;
            double share = r->residual / r->weight;
            if (full < 0 || share < least) {
                least = share;
                full = s->component_resources[k];
            }
        }
        for (int i = s->resources[full].head; i >= 0; i = s->incidences[i].next) {
            int flow = s->incidences[i].flow;
            Flow *f = &s->flows[flow];
            if (f->frozen || f->priority != priority) continue;
            f->frozen = 1;
            left--;
            set_rate(s, flow, least);
            take(s, f, least);
            for (int j = f->first; j < f->first + f->count; j++) {
                Resource *r = &s->resources[s->incidences[j].resource];
                r->pending--;
                r->weight -= s->incidences[j].coefficient;
            }
        }
    }
}

static void share_component(Sim *s, int start) {
    int mark = ++s->mark, n_resources = 1, n_flows = 0;
    s->component_resources[0] = start;
    s->resources[start].mark = mark;
    for (int k = 0; k < n_resources; k++) {
        Resource *r = &s->resources[s->component_resources[k]];
        r->residual = r->capacity;
        r->dirty = 0;
        r->served = -1;
        for (int i = r->head; i >= 0; i = s->incidences[i].next) {
            int flow = s->incidences[i].flow;
            Flow *f = &s->flows[flow];
            if (f->mark == mark) continue;
            f->mark = mark;
            f->frozen = 1;
            if (!grow((void **)&s->component_flows, &s->cap_component_flows, n_flows + 1, sizeof(int))) {
                s->failed = 1;
                return;
            }
            s->component_flows[n_flows++] = flow;
            for (int j = f->first; j < f->first + f->count; j++) {
                int other = s->incidences[j].resource;
                if (s->resources[other].mark != mark) {
                    s->resources[other].mark = mark;
                    s->component_resources[n_resources++] = other;
                }
            }
        }
    }
    qsort_r(s->component_flows, (size_t)n_flows, sizeof(int), by_order, s);
    if (s->fcfs) {
        for (int k = 0; k < n_flows; k++) {
            int flow = s->component_flows[k];
            Flow *f = &s->flows[flow];
            double rate = INFINITY;
            for (int i = f->first; i < f->first + f->count; i++)
                rate = fmin(rate, s->resources[s->incidences[i].resource].residual / s->incidences[i].coefficient);
            set_rate(s, flow, rate);
            take(s, f, rate);
            if (f->count == 1 && rate > 0) s->resources[s->incidences[f->first].resource].served = flow;
        }
        return;
    }
    for (int begin = 0; begin < n_flows;) {
        int end = begin + 1;
        while (end < n_flows &&
               s->flows[s->component_flows[end]].priority == s->flows[s->component_flows[begin]].priority)
            end++;
        fill(s, begin, end, n_resources);
        begin = end;
    }
}

static void settle(Sim *s) {
    for (int k = 0; k < s->n_dirty; k++) {
        int resource = s->dirty[k];
        if (!s->resources[resource].dirty) continue; /* already in the component of an earlier one */
        if (s->resources[resource].several == 0) {
            s->resources[resource].dirty = 0;
            share_one(s, resource);
        } else
            share_component(s, resource);
    }
    s->n_dirty = 0;
}

/* --- interface; every int result is -1 when memory is out --- */

Sim *fs_new(int n_resources, const double *capacities, int fcfs) {
    Sim *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    size_t n = (size_t)n_resources + 1;
    s->fcfs = fcfs;
    s->n_resources = n_resources;
    s->resources = calloc(n, sizeof(Resource));
    s->dirty = calloc(n, sizeof(int));
    s->component_resources = calloc(n, sizeof(int));
    if (!s->resources || !s->dirty || !s->component_resources) {
        free(s->resources);
        free(s->dirty);
        free(s->component_resources);
        free(s);
        return NULL;
    }
    for (int i = 0; i < n_resources; i++)
        s->resources[i] = (Resource){.capacity = capacities[i], .head = -1, .tail = -1, .served = -1};
    return s;
}

void fs_free(Sim *s) {
    free(s->resources);
    free(s->flows);
    free(s->incidences);
    free(s->groups);
    free(s->heap);
    free(s->dirty);
    free(s->done);
    free(s->component_flows);
    free(s->component_resources);
    free(s);
}

double fs_now(const Sim *s) { return s->now; }

int fs_active(const Sim *s) { return s->active; }

void fs_set_capacity(Sim *s, int resource, double capacity) {
    s->resources[resource].capacity = capacity;
    touch(s, resource);
}

double fs_carried(Sim *s, int resource) {
    settle(s);
    for (int i = s->resources[resource].head; i >= 0; i = s->incidences[i].next)
        advance(s, &s->flows[s->incidences[i].flow]);
    return s->resources[resource].carried;
}

int fs_groups(Sim *s, int count, int watched) {
    if (!grow((void **)&s->groups, &s->cap_groups, s->n_groups + count, sizeof(Group))) return -1;
    for (int k = 0; k < count; k++) s->groups[s->n_groups++] = (Group){.watched = (char)watched};
    return s->n_groups - count;
}

void fs_watch(Sim *s, int group, int watched) { s->groups[group].watched = (char)watched; }

int fs_hold(Sim *s, int group) {
    s->groups[group].waits++;
    return 0;
}

int fs_release(Sim *s, int group) {
    release(s, group);
    return s->failed ? -1 : 0;
}

/* Adds `count` flows; flow k uses resources[offsets[k] .. offsets[k + 1]), or resource k when offsets is NULL. It
 * starts now where after is NULL, else when group after[k] is done (those of one group must follow each other, and a
 * group has one such row at a time).
 * Returns the first one's id; -1: no memory, -2: unknown resource, -3: unknown group, -4: bad size, -5: bad
 * coefficient, -6: bad order of `after` (nothing is added then). */
int fs_add(Sim *s, int count, const int *groups, const double *sizes, const int *offsets, const int *resources,
           const double *coefficients, const int *priorities, const int *after) {
    int total = offsets ? offsets[count] : count;
    for (int i = 0; i < total; i++) {
        if (resources[i] < 0 || resources[i] >= s->n_resources) return -2;
        if (coefficients && !(coefficients[i] > 0)) return -5;
    }
    for (int k = 0; k < count; k++) {
        if (groups[k] < 0 || groups[k] >= s->n_groups || (after && (after[k] < 0 || after[k] >= s->n_groups)))
            return -3;
        if (!(sizes[k] >= 0) || isinf(sizes[k])) return -4;
    }
    if (!grow((void **)&s->flows, &s->cap_flows, s->n_flows + count, sizeof(Flow)) ||
        !grow((void **)&s->incidences, &s->cap_incidences, s->n_incidences + total, sizeof(Incidence)))
        return -1;
    int first = s->n_flows;
    if (after) {
        int k = 0;
        for (; k < count; k++) {
            Group *g = &s->groups[after[k]];
            if (g->count && g->promised + g->count != first + k) break;
            if (!g->count) g->promised = first + k;
            g->count++;
        }
        if (k < count) {
            while (k-- > 0) s->groups[after[k]].count--;
            return -6;
        }
    }
    for (int k = 0; k < count; k++) {
        int flow = s->n_flows++;
        int begin = offsets ? offsets[k] : k, n = offsets ? offsets[k + 1] - begin : 1;
        s->flows[flow] = (Flow){.remaining = sizes[k],
                                .updated = s->now,
                                .priority = priorities ? priorities[k] : 0,
                                .first = s->n_incidences,
                                .count = n,
                                .group = groups[k],
                                .heap = -1,
                                .state = PROMISED};
        for (int i = begin; i < begin + n; i++)
            s->incidences[s->n_incidences++] = (Incidence){.resource = resources[i],
                                                           .flow = flow,
                                                           .next = -1,
                                                           .previous = -1,
                                                           .coefficient = coefficients ? coefficients[i] : 1.0};
        s->groups[groups[k]].waits++;
        s->active++;
        if (!after && arrive(s, flow)) release(s, groups[k]);
    }
    return s->failed ? -1 : first;
}

double fs_remaining(Sim *s, int flow) {
    settle(s);
    advance(s, &s->flows[flow]);
    return s->flows[flow].state ? s->flows[flow].remaining : 0;
}

double fs_rate(Sim *s, int flow) {
    settle(s);
    return s->flows[flow].rate;
}

/* Changes what an unfinished flow still has to send; 0 finishes it. */
static void set_remaining(Sim *s, int flow, double remaining) {
    Flow *f = &s->flows[flow];
    if (!f->state) return;
    advance(s, f);
    f->remaining = remaining;
    if (remaining <= 0)
        finish_flow(s, flow);
    else if (f->rate > 0) {
        f->finish = s->now + remaining / f->rate;
        heap_put(s, flow);
    }
}

void fs_set_remaining_many(Sim *s, int count, const int *flows, const double *remaining) {
    for (int k = 0; k < count; k++) set_remaining(s, flows[k], remaining[k]);
}

/* What each flow has yet to send; -1 for finished ones. */
void fs_remaining_many(Sim *s, int count, const int *flows, double *remaining) {
    settle(s);
    for (int k = 0; k < count; k++) {
        Flow *f = &s->flows[flows[k]];
        advance(s, f);
        remaining[k] = f->state ? f->remaining : -1;
    }
}

/* The flow counts for another group from now on. */
void fs_set_group(Sim *s, int flow, int group) {
    Flow *f = &s->flows[flow];
    if (!f->state) return;
    s->groups[f->group].waits--;
    s->groups[group].waits++;
    f->group = group;
}

void fs_set_group_many(Sim *s, int count, const int *flows, const int *groups) {
    for (int k = 0; k < count; k++) fs_set_group(s, flows[k], groups[k]);
}

/* Gives an unfinished flow other resources (all with coefficient 1); it keeps its place in the order. None: it
 * finishes. */
int fs_set_path(Sim *s, int flow, int count, const int *resources) {
    Flow *f = &s->flows[flow];
    if (!f->state) return 0;
    set_rate(s, flow, 0); /* advances it; settle() gives it its rate on the new resources */
    if (f->state == LINKED) unlink_flow(s, flow);
    if (!grow((void **)&s->incidences, &s->cap_incidences, s->n_incidences + count, sizeof(Incidence))) return -1;
    f->first = s->n_incidences;
    f->count = count;
    for (int i = 0; i < count; i++)
        s->incidences[s->n_incidences++] =
            (Incidence){.resource = resources[i], .flow = flow, .next = -1, .previous = -1, .coefficient = 1.0};
    if (count == 0)
        finish_flow(s, flow);
    else if (f->state == LINKED)
        link_flow(s, flow);
    return s->failed ? -1 : 0;
}

/* Runs until a group is done or `until`. Returns how many groups are done, at fs_now(); fs_done() has them. */
int fs_step(Sim *s, double until) {
    while (s->n_done == 0) {
        settle(s);
        if (s->failed) return -1;
        if (s->n_heap == 0 || s->flows[s->heap[0]].finish > until) {
            if (!isinf(until)) s->now = fmax(s->now, until);
            return 0;
        }
        s->now = fmax(s->now, s->flows[s->heap[0]].finish);
        double limit = s->now + 1e-12 * fmax(1.0, s->now);
        while (s->n_heap > 0 && s->flows[s->heap[0]].finish <= limit) {
            int flow = s->heap[0];
            Flow *f = &s->flows[flow];
            advance(s, f);
            for (int i = f->first; i < f->first + f->count; i++) /* what rounding has left over */
                s->resources[s->incidences[i].resource].carried += f->remaining * s->incidences[i].coefficient;
            f->remaining = 0;
            finish_flow(s, flow);
        }
    }
    return s->failed ? -1 : s->n_done;
}

void fs_take_done(Sim *s, int *groups) {
    memcpy(groups, s->done, (size_t)s->n_done * sizeof(int));
    s->n_done = 0;
}

/* A network in virtual time: links with rates and queues, switches as docs/protocol.md has them, and hosts on which the
 * agents' own engines run (virtual.h). Events come in order of time, and of two at the same time in the order in which
 * they were made: the same calls give the same run.
 *
 * A link takes packets one after the other; what finds more than `limit` ns worth of them before it is dropped, and
 * what finds more than `mark` ns worth is marked (ECN). Faults:
 * all links lose a share of their packets; hosts stand still; hosts are late by up to so much each time they are called
 * (a busy machine). Tests do worse to packets by a function of their own (network_disturb).
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "network.h"

#define NEVER UINT64_MAX
#define NOBODY UINT32_MAX
#define HERE_PORT 1     /* of a host: what comes from the other engine on it; 0 is its link */
#define HERE_NS 20000   /* that it takes from one engine of a host to the other */
#define PORTS 16        /* of a job */
#define INBOX 16384     /* packets that wait in a host for its engine at most */
#define HEADER_BYTES 42 /* before the payload on the wire */
#define VERSION 3
#define RESEND 1
#define RESULT 2
#define MAXIMUM 4

enum verdict { ABSORBED, COMPLETED, FLUSHED, STALE, DUPLICATE, FORWARDED, REPLICATED, UNKNOWN, VERDICTS };

struct link {
    uint32_t to, to_port; /* node, and its port */
    double ns_a_byte;
    uint64_t delay, limit, mark, free_at;             /* mark: NEVER: nothing is marked */
    uint64_t packets, dropped, lost, marked, longest; /* longest: what a packet has waited, since network_narrow */
};

struct entry {
    uint32_t port, label;
    uint8_t action;
    uint32_t out; /* port, or group */
    uint32_t slot_base, slot_mask, next_label, partial_label;
    uint64_t flow, everyone;
};

struct slot {
    uint32_t epoch, sequence;
    uint64_t bitmap;
    bool closed;
};

struct group {
    uint32_t count, *ports;
};

struct queue {
    struct carried **packets;
    uint32_t first, count, room;
};

struct node {
    struct link *links; /* by port */
    uint32_t ports;
    /* a switch */
    struct entry *entries; /* open addressing by port and label */
    uint32_t entry_room, entry_count;
    struct group *groups; /* by number */
    uint32_t group_count;
    struct slot *slots;
    uint32_t slot_count, *values;
    uint64_t verdicts[VERDICTS];
    /* a host */
    void *engine;
    struct virtual_sleep (*step)(void *);
    uint32_t address, waiting, beside; /* beside: the node of the other engine on this host */
    bool borrowed;                     /* its link is that one's */
    bool listens[PORTS];
    struct queue inbox[PORTS];
    uint64_t wake_at, woken, spacing, stopped_until, rounds, overrun;
    void **of; /* what the host's back end gets: the network, and the host's number */
};

struct event {
    uint64_t time, number;
    uint32_t node, port;
    struct carried *packet; /* NULL: a host's round */
};

struct network {
    struct virtual_world world; /* first */
    struct node *nodes;
    uint32_t node_count, node_room, words;
    struct event *events;
    uint64_t event_count, event_room, event_number, random, processed;
    double loss;
    uint64_t lateness;      /* ns at most */
    struct carried **taken; /* by the host whose round it is */
    uint32_t taken_count, taken_room;
    network_disturbance *disturb;
    void *disturbed;
};

static uint64_t random_next(struct network *n) {
    uint64_t z = n->random += 0x9e3779b97f4a7c15ull; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void *grown(void *memory, uint64_t count, uint64_t size) {
    void *more = realloc(memory, count * size);
    if (!more) abort();
    return more;
}

/* ---- events: a binary heap ---- */

static bool earlier(const struct event *a, const struct event *b) {
    return a->time != b->time ? a->time < b->time : a->number < b->number;
}

static void event_add(struct network *n, uint64_t time, uint32_t node, uint32_t port, struct carried *packet) {
    if (n->event_count == n->event_room)
        n->events = grown(n->events, n->event_room = 2 * n->event_room + 64, sizeof *n->events);
    struct event e = {time, n->event_number++, node, port, packet};
    uint64_t at = n->event_count++;
    for (; at && earlier(&e, &n->events[(at - 1) / 2]); at = (at - 1) / 2) n->events[at] = n->events[(at - 1) / 2];
    n->events[at] = e;
}

static struct event event_take(struct network *n) {
    struct event first = n->events[0], last = n->events[--n->event_count];
    uint64_t at = 0, child;
    while ((child = 2 * at + 1) < n->event_count) {
        if (child + 1 < n->event_count && earlier(&n->events[child + 1], &n->events[child])) child++;
        if (!earlier(&n->events[child], &last)) break;
        n->events[at] = n->events[child];
        at = child;
    }
    n->events[at] = last;
    return first;
}

/* ---- packets and links ---- */

static void release(struct carried *c) {
    if (!--c->holders) free(c);
}

/* The packet, for this holder alone; where others hold it, too, a copy. */
static struct carried *own(struct carried *c) {
    if (c->holders == 1) return c;
    struct carried *copy = grown(NULL, 1, sizeof *c + c->bytes);
    memcpy(copy, c, sizeof *c + c->bytes);
    copy->holders = 1;
    c->holders--;
    return copy;
}

/* The packet, marked. */
static struct carried *mark(struct link *l, struct carried *c) {
    l->marked++;
    c = own(c);
    c->congested = 1;
    return c;
}

static void transmit(struct network *n, struct node *from, uint32_t port, struct carried *c) {
    struct link *l = port < from->ports ? &from->links[port] : NULL;
    uint64_t now = n->world.now, start = l && l->free_at > now ? l->free_at : now;
    bool lost = l && n->loss > 0 && (double)(random_next(n) >> 11) * 0x1p-53 < n->loss;
    if (!l || start - now > l->limit || lost) {
        if (l && lost)
            l->lost++;
        else if (l)
            l->dropped++;
        release(c);
        return;
    }
    if (start - now > l->longest) l->longest = start - now;
    if (start - now > l->mark) c = mark(l, c);
    l->packets++;
    l->free_at = start + (uint64_t)(l->ns_a_byte * (HEADER_BYTES + c->bytes));
    uint64_t late = 0;
    if (n->disturb) {
        c = own(c);
        late = n->disturb(n->disturbed, (uint32_t)(from - n->nodes), port, c);
        if (late == NEVER) {
            release(c);
            return;
        }
    }
    event_add(n, l->free_at + l->delay + late, l->to, l->to_port, c);
}

/* ---- hosts ---- */

static void schedule(struct network *n, uint32_t node, uint64_t at) {
    struct node *host = &n->nodes[node];
    if (at < n->world.now) at = n->world.now;
    if (n->lateness) at += random_next(n) % n->lateness;
    if (at < host->stopped_until) at = host->stopped_until;
    if (at >= host->wake_at) return;
    host->wake_at = at;
    event_add(n, at, node, 0, NULL);
}

static void hear(struct network *n, uint32_t node) {
    struct node *host = &n->nodes[node];
    if (host->waiting && host->spacing != NEVER) schedule(n, node, host->woken + host->spacing);
}

static void arrive_at_engine(struct network *n, uint32_t node, struct carried *c) {
    struct node *host = &n->nodes[node];
    struct queue *q = &host->inbox[c->port % PORTS];
    if (q->count == INBOX || !host->listens[c->port % PORTS]) {
        host->overrun += host->listens[c->port % PORTS];
        release(c);
        return;
    }
    if (q->count == q->room) {
        uint32_t room = q->room ? 2 * q->room : 16;
        struct carried **more = grown(NULL, room, sizeof *more);
        for (uint32_t i = 0; i < q->count; i++) more[i] = q->packets[(q->first + i) % q->room];
        free(q->packets);
        *q = (struct queue){more, 0, q->count, room};
    }
    q->packets[(q->first + q->count++) % q->room] = c;
    host->waiting++;
    hear(n, node);
}

/* What comes over the link is for all engines of the host that listen to its port. */
static void arrive_at_host(struct network *n, uint32_t node, uint32_t port, struct carried *c) {
    uint32_t beside = n->nodes[node].beside;
    if (port != HERE_PORT && beside != NOBODY) {
        c->holders++;
        arrive_at_engine(n, beside, c);
    }
    arrive_at_engine(n, node, c);
}

static struct carried *host_take(void *of, uint16_t port) {
    struct network *n = ((void **)of)[0];
    struct node *host = &n->nodes[(uintptr_t)((void **)of)[1]];
    struct queue *q = &host->inbox[port % PORTS];
    host->listens[port % PORTS] = true;
    if (!q->count) return NULL;
    struct carried *c = q->packets[q->first];
    q->first = (q->first + 1) % q->room;
    q->count--;
    host->waiting--;
    if (n->taken_count == n->taken_room)
        n->taken = grown(n->taken, n->taken_room = 2 * n->taken_room + 64, sizeof *n->taken);
    n->taken[n->taken_count++] = c;
    return c;
}

static struct carried *packet_of(const struct node *host, uint16_t port, const uint8_t *payload, uint32_t bytes) {
    struct carried *c = grown(NULL, 1, sizeof *c + bytes);
    *c = (struct carried){.holders = 1, .bytes = bytes, .source = host->address, .port = port};
    memcpy(c->payload, payload, bytes);
    return c;
}

static void host_send(void *of, uint16_t port, const uint8_t *payload, uint32_t bytes, int link, int here) {
    struct network *n = ((void **)of)[0];
    struct node *host = &n->nodes[(uintptr_t)((void **)of)[1]];
    if (here && host->beside != NOBODY)
        event_add(n, n->world.now + HERE_NS, host->beside, HERE_PORT, packet_of(host, port, payload, bytes));
    if (link) transmit(n, host, 0, packet_of(host, port, payload, bytes));
}

static void host_round(struct network *n, uint32_t node) {
    struct node *host = &n->nodes[node];
    uint64_t now = n->world.now;
    host->wake_at = NEVER;
    if (now < host->stopped_until) {
        schedule(n, node, host->stopped_until);
        return;
    }
    struct virtual_sleep sleep = host->step(host->engine);
    for (; n->taken_count; n->taken_count--) release(n->taken[n->taken_count - 1]);
    host->rounds++;
    host->woken = now;
    host->spacing = sleep.spacing;
    if (sleep.until != NEVER) schedule(n, node, sleep.until > now ? sleep.until : now + 1000);
    hear(n, node);
}

/* ---- switches ---- */

static uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static void put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static struct entry *entry_of(struct node *s, uint32_t port, uint32_t label) {
    uint32_t at = (label * 2654435761u ^ port * 40503u) & (s->entry_room - 1);
    while (s->entries[at].action && (s->entries[at].port != port || s->entries[at].label != label))
        at = (at + 1) & (s->entry_room - 1);
    return &s->entries[at];
}

static void merge(const struct network *n, uint32_t *sum, const uint8_t *values, bool fresh, bool maximum) {
    for (uint32_t i = 0; i < n->words; i++) {
        uint32_t v = get32(values + 4 * i);
        sum[i] = fresh ? v : maximum ? (uint32_t)((int32_t)v > (int32_t)sum[i] ? v : sum[i]) : sum[i] + v;
    }
}

/* The slot algorithm: the verdict; whether the packet leaves, changed. */
static enum verdict aggregate(const struct network *n, struct node *s, const struct entry *e, uint8_t *p,
                              bool *leaves) {
    uint32_t epoch = get32(p + 8), sequence = get32(p + 12),
             index = (e->slot_base + (sequence & e->slot_mask)) % s->slot_count;
    struct slot *slot = &s->slots[index];
    uint32_t *sum = s->values + (uint64_t)index * n->words;
    bool resend = p[1] & RESEND;
    *leaves = true;
    if (epoch != slot->epoch || sequence > slot->sequence) *slot = (struct slot){.epoch = epoch, .sequence = sequence};
    uint64_t bitmap = e->flow;
    enum verdict verdict = STALE;
    if (sequence == slot->sequence && !slot->closed) {
        if (!(slot->bitmap & e->flow)) {
            merge(n, sum, p + 24, !slot->bitmap, p[1] & MAXIMUM);
            slot->bitmap |= e->flow;
        } else if (!resend) {
            *leaves = false;
            return DUPLICATE;
        }
        verdict = slot->bitmap == e->everyone ? COMPLETED : resend ? FLUSHED : ABSORBED;
        if (verdict == ABSORBED) {
            *leaves = false;
            return verdict;
        }
        slot->closed = true;
        bitmap = slot->bitmap;
        for (uint32_t i = 0; i < n->words; i++) put32(p + 24 + 4 * i, sum[i]);
    }
    put32(p + 4, verdict == COMPLETED ? e->next_label : e->partial_label);
    put32(p + 16, (uint32_t)(bitmap >> 32));
    put32(p + 20, (uint32_t)bitmap);
    return verdict;
}

static void arrive_at_switch(struct network *n, struct node *s, uint32_t port, struct carried *c) {
    if (c->bytes != 24 + 4 * n->words || c->payload[0] != VERSION) { /* malformed */
        release(c);
        return;
    }
    const struct entry *e = entry_of(s, port, get32(c->payload + 4));
    if (e->action == NETWORK_REPLICATE) {
        const struct group *g = &s->groups[e->out];
        s->verdicts[REPLICATED]++;
        c->holders += g->count;
        for (uint32_t i = 0; i < g->count; i++) transmit(n, s, g->ports[i], c);
        release(c);
        return;
    }
    if (e->action != NETWORK_AGGREGATE || c->payload[1] & RESULT) {
        s->verdicts[e->action == NETWORK_FORWARD ? FORWARDED : UNKNOWN]++;
        if (e->action == NETWORK_FORWARD)
            transmit(n, s, e->out, c);
        else
            release(c);
        return;
    }
    bool leaves; /* what is aggregated is nobody else's: only results are copied */
    s->verdicts[aggregate(n, s, e, c->payload, &leaves)]++;
    if (leaves)
        transmit(n, s, e->out, c);
    else
        release(c);
}

/* ---- the interface for Python ---- */

struct network *network_make(uint64_t seed, uint32_t words) {
    struct network *n = grown(NULL, 1, sizeof *n);
    *n = (struct network){
        .world = {.now = 1000000000ull, .send = host_send, .take = host_take}, .random = seed, .words = words};
    return n;
}

/* Its number. slots: of a switch; 0: a host, of this address. */
uint32_t network_node(struct network *n, uint32_t ports, uint32_t slots, uint32_t address) {
    if (n->node_count == n->node_room)
        n->nodes = grown(n->nodes, n->node_room = 2 * n->node_room + 16, sizeof *n->nodes);
    struct node *node = &n->nodes[n->node_count];
    *node = (struct node){
        .ports = ports, .slot_count = slots, .address = address, .beside = NOBODY, .wake_at = NEVER, .spacing = NEVER};
    node->links = calloc(ports, sizeof *node->links);
    node->slots = calloc(slots + 1, sizeof *node->slots);
    node->values = malloc(((uint64_t)slots * n->words + 1) * sizeof *node->values); /* touched as they are used */
    node->entry_room = 64;
    node->entries = calloc(node->entry_room, sizeof *node->entries);
    return n->node_count++;
}

/* One way. queue: packets of the network's size that may wait. */
void network_link(struct network *n, uint32_t from, uint32_t port, uint32_t to, uint32_t to_port, double mbps,
                  double delay_ms, uint32_t queue) {
    double ns = 8e3 / mbps;
    n->nodes[from].links[port] = (struct link){
        .to = to,
        .to_port = to_port,
        .ns_a_byte = ns,
        .delay = (uint64_t)(delay_ms * 1e6),
        .limit = (uint64_t)(ns * queue * (HEADER_BYTES + 24 + 4.0 * n->words)),
        .mark = NEVER,
    };
}

/* From now on the link at a node's port carries `mbps`, and marks what finds `packets` of the network's size waiting
 * (0: nothing). */
void network_narrow(struct network *n, uint32_t node, uint32_t port, double mbps, uint32_t packets) {
    struct link *l = &n->nodes[node].links[port];
    double packet = 8e3 / mbps * (HEADER_BYTES + 24 + 4.0 * n->words), queue = (double)l->limit / l->ns_a_byte;
    l->ns_a_byte = 8e3 / mbps;
    l->limit = (uint64_t)(queue * l->ns_a_byte);
    l->mark = packets ? (uint64_t)(packets * packet) : NEVER;
    l->longest = 0;
}

/* Two engines run on one host: `node` has the link and all that comes over it, `beside` what comes over it, too, and
 * sends over it. */
void network_beside(struct network *n, uint32_t node, uint32_t beside) {
    free(n->nodes[beside].links);
    n->nodes[beside].links = n->nodes[node].links;
    n->nodes[beside].borrowed = true;
    n->nodes[beside].beside = node;
    n->nodes[node].beside = beside;
}

void network_entry(struct network *n, uint32_t node, uint32_t port, uint32_t label, uint8_t action, uint32_t out,
                   uint32_t slot_base, uint32_t slot_mask, uint32_t next_label, uint32_t partial_label, uint64_t flow,
                   uint64_t everyone) {
    struct node *s = &n->nodes[node];
    if (2 * s->entry_count >= s->entry_room) {
        struct entry *old = s->entries;
        uint32_t room = s->entry_room;
        s->entries = calloc(s->entry_room = 2 * room, sizeof *s->entries);
        for (uint32_t i = 0; i < room; i++)
            if (old[i].action) *entry_of(s, old[i].port, old[i].label) = old[i];
        free(old);
    }
    s->entry_count++;
    *entry_of(s, port, label) =
        (struct entry){port, label, action, out, slot_base, slot_mask, next_label, partial_label, flow, everyone};
}

void network_group(struct network *n, uint32_t node, uint32_t number, uint32_t count, const uint32_t *ports) {
    struct node *s = &n->nodes[node];
    if (number >= s->group_count) {
        s->groups = grown(s->groups, number + 1, sizeof *s->groups);
        memset(s->groups + s->group_count, 0, (number + 1 - s->group_count) * sizeof *s->groups);
        s->group_count = number + 1;
    }
    s->groups[number] = (struct group){count, grown(NULL, count, sizeof *ports)};
    memcpy(s->groups[number].ports, ports, count * sizeof *ports);
}

/* The next functions of an engine that are called are those of this host's. */
void network_enter(struct network *n, uint32_t node) {
    struct node *host = &n->nodes[node];
    if (!host->of) {
        host->of = grown(NULL, 2, sizeof *host->of);
        host->of[0] = n;
        host->of[1] = (void *)(uintptr_t)node;
    }
    n->world.host = host->of;
}

void network_engine(struct network *n, uint32_t node, void *engine, struct virtual_sleep (*step)(void *)) {
    n->nodes[node].engine = engine;
    n->nodes[node].step = step;
}

/* Its engine has been given something to do. */
void network_wake(struct network *n, uint32_t node) { schedule(n, node, n->world.now); }

/* From now on: links lose so much, hosts are late by up to so many ns. */
void network_faults(struct network *n, double loss, uint64_t lateness) {
    n->loss = loss;
    n->lateness = lateness;
}

/* From now on `disturb` sees each packet that leaves over a link. */
void network_disturb(struct network *n, network_disturbance *disturb, void *context) {
    n->disturb = disturb;
    n->disturbed = context;
}

/* A copy of a packet arrives at the other end of a node's link in so many ns, whatever the link carries. */
void network_inject(struct network *n, uint32_t node, uint32_t port, const struct carried *c, uint64_t in) {
    const struct link *l = &n->nodes[node].links[port];
    struct carried *copy = grown(NULL, 1, sizeof *c + c->bytes);
    memcpy(copy, c, sizeof *c + c->bytes);
    copy->holders = 1;
    event_add(n, n->world.now + in, l->to, l->to_port, copy);
}

/* A switch starts again: it has nothing in its slots. */
void network_reboot(struct network *n, uint32_t node) {
    memset(n->nodes[node].slots, 0, n->nodes[node].slot_count * sizeof *n->nodes[node].slots);
}

/* The host stands still until then. */
void network_stop(struct network *n, uint32_t node, uint64_t until) { n->nodes[node].stopped_until = until; }

uint64_t network_now(const struct network *n) { return n->world.now; }

/* When something happens next; NEVER: nothing will. */
uint64_t network_next(const struct network *n) { return n->event_count ? n->events[0].time : NEVER; }

/* Until then; how many events that were. */
uint64_t network_run(struct network *n, uint64_t until) {
    uint64_t count = 0;
    for (; n->event_count && n->events[0].time <= until; count++) {
        struct event e = event_take(n);
        struct node *node = &n->nodes[e.node];
        n->world.now = e.time;
        if (e.packet && node->slot_count)
            arrive_at_switch(n, node, e.port, e.packet);
        else if (e.packet)
            arrive_at_host(n, e.node, e.port, e.packet);
        else if (e.time == node->wake_at)
            host_round(n, e.node);
    }
    n->world.now = until;
    return count;
}

void network_verdicts(const struct network *n, uint32_t node, uint64_t *verdicts) {
    memcpy(verdicts, n->nodes[node].verdicts, sizeof n->nodes[node].verdicts);
}

/* Of the link at a node's port: packets, dropped for want of room, lost, marked; the longest wait, ns. */
void network_carried(const struct network *n, uint32_t node, uint32_t port, uint64_t *counts) {
    const struct link *l = &n->nodes[node].links[port];
    counts[0] = l->packets;
    counts[1] = l->dropped;
    counts[2] = l->lost;
    counts[3] = l->marked;
    counts[4] = l->longest;
}

uint64_t network_rounds(const struct network *n, uint32_t node) { return n->nodes[node].rounds; }

/* Its engines are gone. */
void network_free(struct network *n) {
    while (n->event_count) {
        struct event e = event_take(n);
        if (e.packet) release(e.packet);
    }
    for (uint32_t i = 0; i < n->node_count; i++) {
        struct node *node = &n->nodes[i];
        for (uint32_t j = 0; j < PORTS; j++) {
            for (; node->inbox[j].count; node->inbox[j].count--, node->inbox[j].first++)
                release(node->inbox[j].packets[node->inbox[j].first % node->inbox[j].room]);
            free(node->inbox[j].packets);
        }
        for (uint32_t j = 0; j < node->group_count; j++) free(node->groups[j].ports);
        if (!node->borrowed) free(node->links);
        free(node->slots);
        free(node->values);
        free(node->entries);
        free(node->groups);
        free(node->of);
    }
    free(n->nodes);
    free(n->events);
    free(n->taken);
    free(n);
}

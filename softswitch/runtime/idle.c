/* Idle timeouts of table entries.
 *
 * Entries with a timeout are in a heap, sorted by the time at which they will have been idle for long enough if nothing
 * hits them. A hit only records the time; an entry whose time has come and that was hit in the meantime goes back into
 * the heap, so a timeout costs a logarithm per entry and period, whatever the packet rate. Expired entries are posted
 * to the host, several to an event, and expire again after another period without a hit. */
#include <stdlib.h>

#include "runtime.h"

#define NOWHERE UINT32_MAX
#define SHORTEST_NS 10000000u   /* shorter timeouts are raised to this */
#define BURST 1024              /* expired entries per turn, so that packets do not wait long */
#define EVENT_BYTES (64u << 10) /* bytes of entries in an event */
#define EVENTS 256              /* events that may wait for the host; further ones are dropped */

struct ss_idle_heap {
    uint32_t n, size;
    struct ss_idle **at;
};

static struct ss_idle *idle_of(const struct ss_table *t, struct ss_entry *e) {
    return (struct ss_idle *)((uint8_t *)e + t->idle_at);
}

static void put(struct ss_idle_heap *heap, uint32_t at, struct ss_idle *idle) {
    heap->at[at] = idle;
    idle->at = at;
}

static void sift(struct ss_idle_heap *heap, uint32_t at) {
    struct ss_idle *idle = heap->at[at];
    for (; at > 0 && idle->due_ns < heap->at[(at - 1) / 2]->due_ns; at = (at - 1) / 2)
        put(heap, at, heap->at[(at - 1) / 2]);
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->n) break;
        if (child + 1 < heap->n && heap->at[child + 1]->due_ns < heap->at[child]->due_ns) child++;
        if (heap->at[child]->due_ns >= idle->due_ns) break;
        put(heap, at, heap->at[child]);
        at = child;
    }
    put(heap, at, idle);
}

static uint64_t period(const struct ss_idle *idle) { return idle->ttl_ns < SHORTEST_NS ? SHORTEST_NS : idle->ttl_ns; }

void ss_idle_init(const struct ss_table *t, struct ss_entry *e) {
    if (t->idle_at) *idle_of(t, e) = (struct ss_idle){.entry = e, .table = t, .at = NOWHERE};
}

void ss_idle_stop(struct ss_state *state, const struct ss_table *t, struct ss_entry *e) {
    struct ss_idle *idle = t->idle_at ? idle_of(t, e) : NULL;
    if (!idle || idle->at == NOWHERE) return;
    struct ss_idle_heap *heap = state->idle;
    uint32_t at = idle->at;
    struct ss_idle *last = heap->at[--heap->n];
    idle->at = NOWHERE;
    if (last == idle) return;
    put(heap, at, last);
    sift(heap, at);
}

/* Sets an entry's timeout (0: none) and starts its period. Returns false without memory. */
bool ss_idle_set(struct ss_device *device, const struct ss_table *t, struct ss_entry *e, uint64_t ttl_ns) {
    struct ss_state *state = &device->state;
    struct ss_idle *idle = idle_of(t, e);
    uint64_t now = ss_now_ns();
    e->hit_us = (now - device->fabric->start_ns) / 1000;
    ss_idle_stop(state, t, e);
    idle->ttl_ns = ttl_ns;
    if (!ttl_ns) return true;
    struct ss_idle_heap *heap = state->idle;
    if (!heap && !(heap = state->idle = calloc(1, sizeof *heap))) return false;
    if (heap->n == heap->size) {
        uint32_t size = heap->size ? 2 * heap->size : 64;
        struct ss_idle **larger = realloc(heap->at, size * sizeof *larger);
        if (!larger) return false;
        heap->at = larger;
        heap->size = size;
    }
    idle->since_ns = now;
    idle->due_ns = period(idle) > UINT64_MAX - now ? UINT64_MAX : now + period(idle);
    put(heap, heap->n++, idle);
    sift(heap, heap->n - 1);
    ss_idle_arm(device);
    return true;
}

uint64_t ss_idle_ttl(const struct ss_table *t, const struct ss_entry *e) {
    return t->idle_at ? idle_of(t, (struct ss_entry *)e)->ttl_ns : 0;
}

void ss_idle_free(struct ss_state *state) {
    if (state->idle) free(state->idle->at);
    free(state->idle);
    state->idle = NULL;
}

/* Makes the device's thread wake up when its next entry is due. */
void ss_idle_arm(struct ss_device *device) {
    struct ss_thread *thread = device->thread;
    const struct ss_idle_heap *heap = device->state.idle;
    if (!heap || !heap->n || heap->at[0]->due_ns >= thread->idle_due) return;
    thread->idle_due = heap->at[0]->due_ns;
    if (thread->idle_due < atomic_load(&thread->next_due)) {
        atomic_store(&thread->next_due, thread->idle_due);
        ss_wake(thread);
    }
}

struct batch {
    const struct ss_table *table;
    uint32_t bytes;
    uint8_t *data;
};

static void post(struct ss_device *device, struct batch *batch) {
    if (batch->bytes && ss_events_waiting(device->fabric, SS_EVENT_IDLE) < EVENTS)
        ss_post(device, SS_EVENT_IDLE, (uint32_t)(batch->table - device->state.tables), batch->data, batch->bytes);
    batch->bytes = 0;
}

static void expire(struct ss_device *device, struct batch *batch, const struct ss_idle *idle) {
    size_t size = ss_record_bytes(idle->table);
    if (batch->table != idle->table || batch->bytes + size > EVENT_BYTES) post(device, batch);
    batch->table = idle->table;
    if (size > EVENT_BYTES) return; /* no key is that wide */
    ss_record_write(device, idle->table, idle->entry, batch->data + batch->bytes);
    batch->bytes += (uint32_t)size;
}

static void fire(struct ss_device *device, uint64_t now) {
    struct ss_idle_heap *heap = device->state.idle;
    if (!heap || !heap->n || heap->at[0]->due_ns > now) return;
    struct batch batch = {NULL, 0, malloc(EVENT_BYTES)};
    for (int i = 0; batch.data && i < BURST && heap->at[0]->due_ns <= now; i++) {
        struct ss_idle *idle = heap->at[0];
        uint64_t hit = device->fabric->start_ns + idle->entry->hit_us * 1000;
        uint64_t from = hit > idle->since_ns ? hit : idle->since_ns;
        if (now - from >= period(idle)) {
            expire(device, &batch, idle);
            idle->since_ns = from = now;
        }
        idle->due_ns = from + period(idle);
        sift(heap, 0);
    }
    if (batch.data) post(device, &batch);
    free(batch.data);
}

void ss_idle_fire(struct ss_thread *thread) {
    thread->idle_due = UINT64_MAX;
    for (struct ss_device *d = thread->fabric->devices; d; d = d->next) {
        if (d->thread != thread || !d->state.idle) continue;
        fire(d, thread->now_ns);
        const struct ss_idle_heap *heap = d->state.idle;
        if (heap->n && heap->at[0]->due_ns < thread->idle_due) thread->idle_due = heap->at[0]->due_ns;
    }
}

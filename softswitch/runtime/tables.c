/* Tables, counters, registers, multicast groups and clone sessions: the state that the control plane changes.
 *
 * A table is a list of tuples (one per distinct mask), each a hash table. Entries with the same masked key (they differ
 * in priority or in their ranges) are chained. Look-ups try one tuple after the other, in falling order of the best
 * priority in it, and go along chains in falling precedence. A table with many tuples or long chains has bitmaps
 * instead (bitmaps.c), and then tuples and chains are in no order. Writes find a tuple by its mask in a hash table, and
 * an entry by its full identity in another one once a chain is long. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "runtime.h"

#define LONG 8u /* length of a chain from which on entries are found by their identity */

static void entry_free(struct ss_entry *entry) { free(entry); }

static struct ss_entry *entry_new(const struct ss_table *t, const uint64_t *key, const uint8_t *range) {
    size_t params = (t->params_bytes + 15) & ~(size_t)15;
    size_t key_bytes = t->key_words * sizeof(uint64_t);
    struct ss_entry *e;
    size_t size = (sizeof *e + params + key_bytes + t->range_bytes + 7) & ~(size_t)7;
    if (t->meter_at) size = t->meter_at + sizeof(struct ss_meter);
    if (t->idle_at) size = t->idle_at + sizeof(struct ss_idle);
    size = (size + 63) & ~(size_t)63;
    e = aligned_alloc(64, size);
    if (!e) return NULL;
    memset(e, 0, size);
    e->key = (uint64_t *)(e->params + params);
    memcpy(e->key, key, key_bytes);
    if (t->range_bytes) {
        uint8_t *copy = (uint8_t *)e->key + key_bytes;
        memcpy(copy, range, t->range_bytes);
        e->range = copy;
    }
    ss_idle_init(t, e);
    return e;
}

bool ss_table_init(struct ss_table *table, const struct ss_table_info *info) {
    memset(table, 0, sizeof *table);
    table->key_words = info->key_words;
    table->size = info->size;
    table->params_bytes = info->params_bytes;
    table->n_ranges = info->n_ranges;
    table->ranges = info->ranges;
    for (uint32_t i = 0; i < info->n_ranges; i++) table->range_bytes += 2u * info->ranges[i].bytes;
    size_t end = sizeof(struct ss_entry) + ((info->params_bytes + 15) & ~(size_t)15) +
                 info->key_words * sizeof(uint64_t) + table->range_bytes;
    end = (end + 7) & ~(size_t)7;
    if (info->has_meter) {
        table->meter_at = (uint32_t)end;
        end += sizeof(struct ss_meter);
    }
    if (info->has_idle) table->idle_at = (uint32_t)end;
    uint64_t *zero = calloc(info->key_words + 1, sizeof *zero);
    uint8_t *ranges = calloc(table->range_bytes + 1, 1);
    table->any_mask = calloc(info->key_words + 1, sizeof *table->any_mask);
    table->default_entry = zero && ranges && table->any_mask ? entry_new(table, zero, ranges) : NULL;
    free(zero);
    free(ranges);
    return table->default_entry != NULL;
}

static void tuple_free(struct ss_tuple *tuple) {
    ss_map_free(&tuple->keys);
    free(tuple->mask);
    free(tuple);
}

void ss_table_clear(struct ss_table *table) {
    ss_bitmaps_free(table);
    for (uint32_t i = 0; i < table->n_tuples; i++) {
        struct ss_tuple *tuple = table->tuples[i];
        for (uint32_t s = 0; s <= tuple->keys.mask; s++)
            for (struct ss_entry *e = tuple->keys.slots[s].item, *next; e; e = next) {
                next = e->next;
                entry_free(e);
            }
        tuple_free(tuple);
    }
    free(table->tuples);
    free(table->any_mask);
    ss_map_free(&table->masks);
    ss_map_free(&table->identities);
    free(table->default_entry);
    memset(table, 0, sizeof *table);
}

/* ---- tuples ---- */

static struct ss_slot *tuple_slot(const struct ss_table *t, const uint64_t *mask) {
    const struct ss_map *map = &t->masks;
    if (!map->slots) return NULL;
    uint32_t hash = ss_hash_key(mask, t->key_words);
    for (uint32_t i = hash & map->mask; map->slots[i].item; i = (i + 1) & map->mask) {
        const struct ss_tuple *tuple = map->slots[i].item;
        if (map->slots[i].hash == hash && ss_same_key(tuple->mask, mask, t->key_words)) return &map->slots[i];
    }
    return NULL;
}

static struct ss_tuple *tuple_find(const struct ss_table *t, const uint64_t *mask) {
    const struct ss_slot *slot = tuple_slot(t, mask);
    return slot ? slot->item : NULL;
}

static struct ss_tuple *tuple_new(struct ss_table *t, const uint64_t *mask) {
    struct ss_tuple *tuple = calloc(1, sizeof *tuple);
    bool room = tuple && ss_map_reserve(&t->masks) && ss_map_reserve(&tuple->keys);
    if (room && (t->n_tuples & (t->n_tuples - 1)) == 0) { /* the array is full: its capacity is a power of two */
        struct ss_tuple **tuples = realloc(t->tuples, (t->n_tuples ? 2 * t->n_tuples : 1) * sizeof *tuples);
        if (tuples)
            t->tuples = tuples;
        else
            room = false;
    }
    if (room) tuple->mask = malloc((t->key_words + 1) * sizeof *mask);
    if (!room || !tuple->mask) {
        if (tuple) tuple_free(tuple);
        return NULL;
    }
    memcpy(tuple->mask, mask, t->key_words * sizeof *mask);
    for (uint32_t w = 0; w < t->key_words; w++) t->any_mask[w] |= mask[w];
    tuple->best = INT32_MIN;
    tuple->at = t->n_tuples;
    t->tuples[t->n_tuples++] = tuple;
    ss_map_add(&t->masks, ss_hash_key(mask, t->key_words), tuple);
    return tuple;
}

static void tuple_put(struct ss_table *t, uint32_t at, struct ss_tuple *tuple) {
    t->tuples[at] = tuple;
    tuple->at = at;
}

/* Moves a tuple whose best priority has risen to its place. */
static void tuple_raise(struct ss_table *t, struct ss_tuple *tuple) {
    uint32_t at = tuple->at;
    for (; at > 0 && t->tuples[at - 1]->best < tuple->best; at--) tuple_put(t, at, t->tuples[at - 1]);
    tuple_put(t, at, tuple);
}

static void tuple_remove(struct ss_table *t, struct ss_tuple *tuple) {
    uint32_t at = tuple->at;
    ss_map_remove(&t->masks, tuple_slot(t, tuple->mask));
    t->n_tuples--;
    if (t->bitmaps && at < t->n_tuples)
        tuple_put(t, at, t->tuples[t->n_tuples]);
    else
        for (; at < t->n_tuples; at++) tuple_put(t, at, t->tuples[at + 1]);
    tuple_free(tuple);
}

/* ---- chains ---- */

static struct ss_slot *key_slot(const struct ss_tuple *tuple, const uint64_t *key, uint32_t hash, unsigned words) {
    const struct ss_map *map = &tuple->keys;
    for (uint32_t i = hash & map->mask; map->slots[i].item; i = (i + 1) & map->mask) {
        const struct ss_entry *e = map->slots[i].item;
        if (map->slots[i].hash == hash && ss_same_key(e->key, key, words)) return &map->slots[i];
    }
    return NULL;
}

static bool before(const struct ss_entry *a, const struct ss_entry *b) {
    return a->priority > b->priority || (a->priority == b->priority && a->handle < b->handle);
}

/* Adds an entry to the chain of its slot. */
static void chain_add(const struct ss_table *t, struct ss_slot *slot, struct ss_entry *e) {
    struct ss_entry *after = NULL, *next = slot->item;
    if (!t->bitmaps)
        for (; next && before(next, e); next = next->next) after = next;
    e->prev = after;
    e->next = next;
    if (next) next->prev = e;
    if (after)
        after->next = e;
    else
        slot->item = e;
    slot->chain++;
}

static void chain_remove(struct ss_tuple *tuple, struct ss_slot *slot, struct ss_entry *e) {
    if (e->next) e->next->prev = e->prev;
    if (e->prev)
        e->prev->next = e->next;
    else if (e->next)
        slot->item = e->next;
    if (--slot->chain == 0) ss_map_remove(&tuple->keys, slot);
}

static struct ss_entry *merge(struct ss_entry *a, struct ss_entry *b) {
    struct ss_entry *first = NULL, **link = &first;
    while (a && b) {
        struct ss_entry **from = before(a, b) ? &a : &b;
        *link = *from;
        link = &(*link)->next;
        *from = *link;
    }
    *link = a ? a : b;
    return first;
}

/* Sorts a chain of `n` entries; the caller sets `prev`. */
static struct ss_entry *chain_sort(struct ss_entry *first, uint32_t n) {
    if (n < 2) return first;
    struct ss_entry *last = first;
    for (uint32_t i = 1; i < n / 2; i++) last = last->next;
    struct ss_entry *rest = last->next;
    last->next = NULL;
    return merge(chain_sort(first, n / 2), chain_sort(rest, n - n / 2));
}

static int by_best(const void *a, const void *b) {
    const struct ss_tuple *x = *(struct ss_tuple *const *)a, *y = *(struct ss_tuple *const *)b;
    return (x->best < y->best) - (x->best > y->best);
}

/* Sorts tuples and chains, because the table has no bitmaps any more. */
void ss_table_sort(struct ss_table *t) {
    if (t->n_tuples) qsort(t->tuples, t->n_tuples, sizeof *t->tuples, by_best);
    for (uint32_t i = 0; i < t->n_tuples; i++) {
        struct ss_map *keys = &t->tuples[i]->keys;
        t->tuples[i]->at = i;
        for (uint32_t s = 0; s <= keys->mask; s++) {
            if (!keys->slots[s].item) continue;
            keys->slots[s].item = chain_sort(keys->slots[s].item, keys->slots[s].chain);
            struct ss_entry *prev = NULL;
            for (struct ss_entry *e = keys->slots[s].item; e; prev = e, e = e->next) e->prev = prev;
        }
    }
}

/* ---- identities ---- */

static bool same_ranges(const struct ss_table *t, const struct ss_entry *e, const uint8_t *ranges) {
    return t->range_bytes == 0 || memcmp(e->range, ranges, t->range_bytes) == 0;
}

/* Hashes an entry's identity: tuple, key (as its hash), ranges, priority. */
static uint32_t identity_hash(const struct ss_table *t, const struct ss_tuple *tuple, uint32_t key,
                              const uint8_t *ranges, int32_t priority) {
    uint64_t h = (uint64_t)(uintptr_t)tuple ^ (uint64_t)key << 32 ^ (uint32_t)priority;
    for (uint32_t i = 0; i < t->range_bytes; i++) h = (h ^ ranges[i]) * 0x100000001b3u;
    return ss_hash_key(&h, 1);
}

static struct ss_slot *identity_slot(const struct ss_table *t, const struct ss_tuple *tuple, const uint64_t *key,
                                     uint32_t hash, const uint8_t *ranges, int32_t priority) {
    const struct ss_map *map = &t->identities;
    uint32_t identity = identity_hash(t, tuple, hash, ranges, priority);
    for (uint32_t i = identity & map->mask; map->slots[i].item; i = (i + 1) & map->mask) {
        const struct ss_entry *e = map->slots[i].item;
        if (map->slots[i].hash == identity && e->tuple == tuple && e->priority == priority &&
            same_ranges(t, e, ranges) && ss_same_key(e->key, key, t->key_words))
            return &map->slots[i];
    }
    return NULL;
}

/* Adds the entry to the identities. Without memory there are none, which only costs time. */
static void identity_add(struct ss_table *t, struct ss_entry *e) {
    if (ss_map_reserve(&t->identities))
        ss_map_add(&t->identities, identity_hash(t, e->tuple, e->hash, e->range, e->priority), e);
    else
        ss_map_free(&t->identities);
}

static void identities_build(struct ss_table *t) {
    for (uint32_t i = 0; i < t->n_tuples; i++) {
        const struct ss_map *keys = &t->tuples[i]->keys;
        for (uint32_t s = 0; s <= keys->mask; s++)
            for (struct ss_entry *e = keys->slots[s].item; e; e = e->next) {
                identity_add(t, e);
                if (!t->identities.slots) return;
            }
    }
}

static struct ss_entry *find(const struct ss_table *t, const uint64_t *key, const uint64_t *mask, const uint8_t *ranges,
                             int32_t priority) {
    const struct ss_tuple *tuple = tuple_find(t, mask);
    if (!tuple) return NULL;
    uint32_t hash = ss_hash_key(key, t->key_words);
    const struct ss_slot *slot;
    if (t->identities.slots) {
        slot = identity_slot(t, tuple, key, hash, ranges, priority);
        return slot ? slot->item : NULL;
    }
    slot = key_slot(tuple, key, hash, t->key_words);
    struct ss_entry *e = slot ? slot->item : NULL;
    while (e && !(e->priority == priority && same_ranges(t, e, ranges))) e = e->next;
    return e;
}

struct ss_table *ss_table_of(struct ss_device *device, uint32_t table) {
    return device->program && table < device->program->n_tables ? &device->state.tables[table] : NULL;
}

/* Adds an entry without action. Returns 0 or a negative errno: -EEXIST, -ENOSPC: full, -ENOMEM. */
int ss_table_add(struct ss_table *t, const uint64_t *key, const uint64_t *mask, const uint8_t *ranges, int32_t priority,
                 uint64_t handle, struct ss_entry **out) {
    if (find(t, key, mask, ranges, priority)) return -EEXIST;
    if (t->entries >= t->size) return -ENOSPC;
    struct ss_tuple *tuple = tuple_find(t, mask);
    if (!tuple && !(tuple = tuple_new(t, mask))) return -ENOMEM;
    struct ss_entry *e = ss_map_reserve(&tuple->keys) ? entry_new(t, key, ranges) : NULL;
    if (!e) {
        if (!tuple->entries) tuple_remove(t, tuple);
        return -ENOMEM;
    }
    e->tuple = tuple;
    e->priority = priority;
    e->hash = ss_hash_key(key, t->key_words);
    e->handle = handle;
    struct ss_slot *slot = key_slot(tuple, key, e->hash, t->key_words);
    if (!slot) slot = ss_map_add(&tuple->keys, e->hash, NULL);
    chain_add(t, slot, e);
    if (slot->chain > t->longest) t->longest = slot->chain;
    tuple->entries++;
    t->entries++;
    if (t->identities.slots)
        identity_add(t, e);
    else if (slot->chain > LONG)
        identities_build(t);
    if (priority > tuple->best) {
        tuple->best = priority;
        if (!t->bitmaps) tuple_raise(t, tuple);
    }
    ss_bitmaps_add(t, e);
    *out = e;
    return 0;
}

/* The following functions return 0 or a negative errno: -ENODEV: no program, -EEXIST, -ENOENT, -ENOSPC: full, -ENOMEM.
 */

/* The next three are called with the device's lock held. */
int ss_entry_insert(struct ss_device *device, struct ss_table *t, const struct ss_entry_key *k, uint32_t action,
                    const uint8_t *params, uint32_t params_len, uint32_t is_const) {
    struct ss_entry *e;
    int result = ss_table_add(t, k->key, k->mask, k->ranges, k->priority, device->next_handle + 1, &e);
    if (result) return result;
    device->next_handle++;
    e->action = action;
    e->is_const = is_const;
    e->hit_us = (ss_now_ns() - device->fabric->start_ns) / 1000;
    memcpy(e->params, params, params_len);
    return 0;
}

int ss_entry_modify(struct ss_table *t, const struct ss_entry_key *k, uint32_t action, const uint8_t *params,
                    uint32_t params_len) {
    struct ss_entry *e = find(t, k->key, k->mask, k->ranges, k->priority);
    if (!e) return -ENOENT;
    e->action = action;
    memset(e->params, 0, t->params_bytes);
    memcpy(e->params, params, params_len);
    return 0;
}

int ss_entry_delete(struct ss_device *device, struct ss_table *t, const struct ss_entry_key *k) {
    struct ss_entry *e = find(t, k->key, k->mask, k->ranges, k->priority);
    if (!e) return -ENOENT;
    struct ss_tuple *tuple = e->tuple;
    if (t->identities.slots)
        ss_map_remove(&t->identities, identity_slot(t, tuple, k->key, e->hash, k->ranges, k->priority));
    chain_remove(tuple, key_slot(tuple, k->key, e->hash, t->key_words), e);
    ss_idle_stop(&device->state, t, e);
    ss_bitmaps_remove(t, e);
    entry_free(e);
    t->entries--;
    /* `best` may be too high for a while, which costs time but never gives a wrong match */
    if (--tuple->entries == 0) tuple_remove(t, tuple);
    if (!t->entries) ss_map_free(&t->identities);
    return 0;
}

SS_API int ss_table_insert(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                           uint32_t params_len, uint32_t is_const, uint64_t *handle) {
    struct ss_entry_key k = {key, mask, ranges, priority};
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    int result = t ? ss_entry_insert(device, t, &k, action, params, params_len, is_const) : -ENODEV;
    if (result == 0) *handle = device->next_handle;
    ss_thread_unlock(device->thread);
    return result;
}

SS_API int ss_table_modify(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                           uint32_t params_len) {
    struct ss_entry_key k = {key, mask, ranges, priority};
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    int result = t ? ss_entry_modify(t, &k, action, params, params_len) : -ENODEV;
    ss_thread_unlock(device->thread);
    return result;
}

SS_API int ss_table_delete(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority) {
    struct ss_entry_key k = {key, mask, ranges, priority};
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    int result = t ? ss_entry_delete(device, t, &k) : -ENODEV;
    ss_thread_unlock(device->thread);
    return result;
}

/* A serialised entry: this structure, then params, key, mask, ranges. */
struct entry_record {
    uint64_t handle, packets, bytes, ttl_ns, since_hit_us;
    int32_t priority;
    uint32_t action, is_const, reserved;
};

uint8_t *ss_record_write(struct ss_device *device, const struct ss_table *t, const struct ss_entry *e, uint8_t *out) {
    uint64_t now = (ss_now_ns() - device->fabric->start_ns) / 1000;
    struct entry_record r = {e->handle,
                             e->counter.packets,
                             e->counter.bytes,
                             ss_idle_ttl(t, e),
                             now > e->hit_us ? now - e->hit_us : 0,
                             e->priority,
                             e->action,
                             e->is_const,
                             0};
    size_t key_bytes = t->key_words * sizeof(uint64_t);
    memcpy(out, &r, sizeof r);
    out += sizeof r;
    memcpy(out, e->params, t->params_bytes);
    out += t->params_bytes;
    memcpy(out, e->key, key_bytes);
    out += key_bytes;
    if (e->tuple)
        memcpy(out, e->tuple->mask, key_bytes);
    else
        memset(out, 0, key_bytes);
    out += key_bytes;
    if (t->range_bytes) memcpy(out, e->range, t->range_bytes);
    return out + t->range_bytes;
}

size_t ss_record_bytes(const struct ss_table *t) {
    return sizeof(struct entry_record) + t->params_bytes + 2 * t->key_words * sizeof(uint64_t) + t->range_bytes;
}

/* Reads one entry, or the default entry if key is NULL. `out` has room for a record. */
SS_API int ss_table_get(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                        const uint8_t *ranges, int32_t priority, uint8_t *out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    struct ss_entry *e = !t ? NULL : key ? find(t, key, mask, ranges, priority) : t->default_entry;
    if (e) ss_record_write(device, t, e, out);
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

/* Reads all entries, in no particular order; the caller frees *out with ss_free. */
SS_API int64_t ss_table_dump(struct ss_device *device, uint32_t table, uint8_t **out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    int64_t n = -ENODEV;
    if (t) {
        uint8_t *at = *out = malloc(t->entries * ss_record_bytes(t) + 1);
        n = at ? (int64_t)t->entries : -ENOMEM;
        for (uint32_t i = 0; at && i < t->n_tuples; i++)
            for (uint32_t s = 0; s <= t->tuples[i]->keys.mask; s++)
                for (struct ss_entry *e = t->tuples[i]->keys.slots[s].item; e; e = e->next)
                    at = ss_record_write(device, t, e, at);
    }
    ss_thread_unlock(device->thread);
    return n;
}

SS_API void ss_free(void *memory) { free(memory); }

SS_API int ss_table_set_default(struct ss_device *device, uint32_t table, uint32_t action, const uint8_t *params,
                                uint32_t params_len) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    if (t) {
        t->default_entry->action = action;
        memset(t->default_entry->params, 0, t->params_bytes);
        memcpy(t->default_entry->params, params, params_len);
    }
    ss_thread_unlock(device->thread);
    return t ? 0 : -ENODEV;
}

SS_API int ss_table_count(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                          const uint8_t *ranges, int32_t priority, uint64_t packets, uint64_t bytes) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    struct ss_entry *e = !t ? NULL : key ? find(t, key, mask, ranges, priority) : t->default_entry;
    if (e) e->counter = (struct ss_counter){packets, bytes};
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

/* Sets an entry's idle timeout (0: none) and starts its period. */
SS_API int ss_table_idle(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                         const uint8_t *ranges, int32_t priority, uint64_t ttl_ns) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    struct ss_entry *e = t && t->idle_at ? find(t, key, mask, ranges, priority) : NULL;
    int result = !t ? -ENODEV : !e ? -ENOENT : ss_idle_set(device, t, e, ttl_ns) ? 0 : -ENOMEM;
    ss_thread_unlock(device->thread);
    return result;
}

/* Accesses an entry's direct meter, like ss_meter_access. */
SS_API int ss_table_meter(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                          const uint8_t *ranges, int32_t priority, const struct ss_meter *old,
                          const struct ss_meter_config *config, uint32_t clear, struct ss_meter *out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = ss_table_of(device, table);
    struct ss_entry *e = t && t->meter_at ? find(t, key, mask, ranges, priority) : NULL;
    if (e) {
        struct ss_meter *meter = ss_entry_meter(t, e);
        if (old) *meter = *old;
        if (config) ss_meter_configure(device, meter, config);
        if (clear) memset(meter->colours, 0, sizeof meter->colours);
        if (out) *out = *meter;
    }
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

SS_API int ss_counter_read(struct ss_device *device, uint32_t counter, uint64_t first, uint64_t n,
                           struct ss_counter *out) {
    int result = -ENODEV;
    ss_thread_lock(device->thread);
    if (device->program && counter < device->program->n_counters) {
        uint64_t size = device->program->counters[counter];
        result = first <= size && n <= size - first ? 0 : -ENOENT;
        if (result == 0) memcpy(out, device->state.counters[counter] + first, n * sizeof *out);
    }
    ss_thread_unlock(device->thread);
    return result;
}

SS_API int ss_counter_write(struct ss_device *device, uint32_t counter, uint64_t index, uint64_t packets,
                            uint64_t bytes) {
    int result = -ENODEV;
    ss_thread_lock(device->thread);
    if (device->program && counter < device->program->n_counters) {
        result = index < device->program->counters[counter] ? 0 : -ENOENT;
        if (result == 0) device->state.counters[counter][index] = (struct ss_counter){packets, bytes};
    }
    ss_thread_unlock(device->thread);
    return result;
}

/* Copies `n` elements of `bytes` bytes, `stride` bytes apart, from byte `at` of a register group. */
SS_API int ss_register_copy(struct ss_device *device, uint32_t group, uint64_t at, uint64_t stride, uint32_t bytes,
                            uint64_t n, uint8_t *data, uint32_t write) {
    int result = -ENODEV;
    ss_thread_lock(device->thread);
    if (device->program && group < device->program->n_registers) {
        uint64_t size = device->program->registers[group];
        result = n == 0 || at + (n - 1) * stride + bytes <= size ? 0 : -ENOENT;
        uint8_t *base = device->state.registers[group] + at;
        for (uint64_t i = 0; result == 0 && i < n; i++, data += bytes)
            memcpy(write ? base + i * stride : data, write ? data : base + i * stride, bytes);
    }
    ss_thread_unlock(device->thread);
    return result;
}

/* ---- multicast groups, clone sessions ---- */

struct ss_group *ss_group_get(const struct ss_group_map *map, uint32_t id) {
    if (id >> 16 || !map->pages[id >> 8]) return NULL;
    return map->pages[id >> 8][id & 0xff];
}

bool ss_group_set(struct ss_group_map *map, uint32_t id, struct ss_group *group) {
    struct ss_group ***page = &map->pages[id >> 8 & 0xff];
    if (!*page && !(*page = calloc(256, sizeof **page))) return false;
    free((*page)[id & 0xff]);
    (*page)[id & 0xff] = group;
    return true;
}

void ss_groups_clear(struct ss_group_map *map) {
    for (unsigned i = 0; i < 256; i++) {
        for (unsigned j = 0; map->pages[i] && j < 256; j++) free(map->pages[i][j]);
        free(map->pages[i]);
        map->pages[i] = NULL;
    }
}

/* Inserts or replaces a group; n < 0 deletes it. `sessions` selects clone sessions instead of multicast groups. */
SS_API int ss_group_write(struct ss_device *device, uint32_t sessions, uint32_t id, const struct ss_replica *replicas,
                          int32_t n, uint32_t truncate) {
    struct ss_group *group = NULL;
    if (n >= 0) {
        group = malloc(sizeof *group + (size_t)n * sizeof *replicas);
        if (!group) return -ENOMEM;
        group->n = (uint32_t)n;
        group->truncate = truncate;
        memcpy(group->replicas, replicas, (size_t)n * sizeof *replicas);
    }
    ss_thread_lock(device->thread);
    struct ss_group_map *map = sessions ? &device->sessions : &device->groups;
    int result = n < 0 && !ss_group_get(map, id) ? -ENOENT : ss_group_set(map, id, group) ? 0 : -ENOMEM;
    ss_thread_unlock(device->thread);
    if (result) free(group);
    return result;
}

/* Tables, counters, registers, multicast groups and clone sessions: what the control plane changes.
 *
 * A table is a list of tuples (one per distinct mask), each a hash table with linear probing. Entries with the same
 * masked key (they differ in priority or in their ranges) are chained in falling precedence. A table with many tuples
 * or long chains has bitmaps too (bitmaps.c).
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "runtime.h"

#define FIRST_SLOTS 8u

static void entry_free(struct ss_entry *entry) {
    free(entry);
}

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
    table->default_entry = zero && ranges ? entry_new(table, zero, ranges) : NULL;
    free(zero);
    free(ranges);
    return table->default_entry != NULL;
}

static void tuple_free(struct ss_tuple *tuple) {
    free(tuple->slots);
    free(tuple->mask);
    free(tuple);
}

void ss_table_clear(struct ss_table *table) {
    ss_bitmaps_free(table);
    for (uint32_t i = 0; i < table->n_tuples; i++) {
        struct ss_tuple *tuple = table->tuples[i];
        for (uint32_t s = 0; s <= tuple->slot_mask; s++)
            for (struct ss_entry *e = tuple->slots[s].entry, *next; e; e = next) {
                next = e->next;
                entry_free(e);
            }
        tuple_free(tuple);
    }
    free(table->tuples);
    free(table->default_entry);
    memset(table, 0, sizeof *table);
}

static struct ss_tuple *tuple_find(const struct ss_table *t, const uint64_t *mask, uint32_t *at) {
    for (uint32_t i = 0; i < t->n_tuples; i++)
        if (ss_same_key(t->tuples[i]->mask, mask, t->key_words)) {
            if (at) *at = i;
            return t->tuples[i];
        }
    return NULL;
}

static struct ss_tuple *tuple_new(struct ss_table *t, const uint64_t *mask) {
    struct ss_tuple *tuple = calloc(1, sizeof *tuple);
    struct ss_tuple **tuples = realloc(t->tuples, (t->n_tuples + 1) * sizeof *tuples);
    if (tuples) t->tuples = tuples;
    if (!tuple || !tuples) {
        free(tuple);
        return NULL;
    }
    tuple->mask = malloc((t->key_words + 1) * sizeof *mask);
    tuple->slots = calloc(FIRST_SLOTS, sizeof *tuple->slots);
    if (!tuple->mask || !tuple->slots) {
        tuple_free(tuple);
        return NULL;
    }
    memcpy(tuple->mask, mask, t->key_words * sizeof *mask);
    tuple->slot_mask = FIRST_SLOTS - 1;
    tuple->best = INT32_MIN;
    t->tuples[t->n_tuples++] = tuple;
    return tuple;
}

/* Move the tuple at `at` to where its best priority belongs. */
static void tuple_place(struct ss_table *t, uint32_t at) {
    struct ss_tuple *tuple = t->tuples[at];
    for (; at > 0 && t->tuples[at - 1]->best < tuple->best; at--) t->tuples[at] = t->tuples[at - 1];
    for (; at + 1 < t->n_tuples && t->tuples[at + 1]->best > tuple->best; at++) t->tuples[at] = t->tuples[at + 1];
    t->tuples[at] = tuple;
}

static bool tuple_grow(struct ss_tuple *tuple) {
    uint32_t n = (tuple->slot_mask + 1) * 2;
    struct ss_slot *slots = calloc(n, sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = 0; i <= tuple->slot_mask; i++) {
        if (!tuple->slots[i].entry) continue;
        uint32_t s = tuple->slots[i].hash & (n - 1);
        while (slots[s].entry) s = (s + 1) & (n - 1);
        slots[s] = tuple->slots[i];
    }
    free(tuple->slots);
    tuple->slots = slots;
    tuple->slot_mask = n - 1;
    return true;
}

static struct ss_slot *slot_find(struct ss_tuple *tuple, const uint64_t *key, uint32_t hash, unsigned words) {
    uint32_t i = hash & tuple->slot_mask;
    for (; tuple->slots[i].entry; i = (i + 1) & tuple->slot_mask)
        if (tuple->slots[i].hash == hash && ss_same_key(tuple->slots[i].entry->key, key, words)) break;
    return &tuple->slots[i];
}

static void slot_remove(struct ss_tuple *tuple, struct ss_slot *slot) {
    uint32_t hole = (uint32_t)(slot - tuple->slots);
    for (uint32_t i = (hole + 1) & tuple->slot_mask; tuple->slots[i].entry; i = (i + 1) & tuple->slot_mask) {
        uint32_t home = tuple->slots[i].hash & tuple->slot_mask;
        if (((i - home) & tuple->slot_mask) >= ((i - hole) & tuple->slot_mask)) {
            tuple->slots[hole] = tuple->slots[i];
            hole = i;
        }
    }
    tuple->slots[hole] = (struct ss_slot){0, NULL};
    tuple->used--;
}

static bool same_ranges(const struct ss_table *t, const struct ss_entry *e, const uint8_t *ranges) {
    return t->range_bytes == 0 || memcmp(e->range, ranges, t->range_bytes) == 0;
}

static struct ss_entry *find(struct ss_table *t, const uint64_t *key, const uint64_t *mask, const uint8_t *ranges,
                             int32_t priority) {
    struct ss_tuple *tuple = tuple_find(t, mask, NULL);
    if (!tuple) return NULL;
    struct ss_entry *e = slot_find(tuple, key, ss_hash_key(key, t->key_words), t->key_words)->entry;
    while (e && !(e->priority == priority && same_ranges(t, e, ranges))) e = e->next;
    return e;
}

static struct ss_table *table_of(struct ss_device *device, uint32_t table) {
    return device->program && table < device->program->n_tables ? &device->state.tables[table] : NULL;
}

/* Adds an entry without action. 0 or a negative errno: -EEXIST, -ENOSPC full, -ENOMEM. */
int ss_table_add(struct ss_table *t, const uint64_t *key, const uint64_t *mask, const uint8_t *ranges,
                 int32_t priority, uint64_t handle, struct ss_entry **out) {
    if (find(t, key, mask, ranges, priority)) return -EEXIST;
    if (t->entries >= t->size) return -ENOSPC;
    struct ss_tuple *tuple = tuple_find(t, mask, NULL);
    if (!tuple && !(tuple = tuple_new(t, mask))) return -ENOMEM;
    if ((tuple->used + 1) * 2 > tuple->slot_mask + 1 && !tuple_grow(tuple)) return -ENOMEM;
    struct ss_entry *e = entry_new(t, key, ranges);
    if (!e) return -ENOMEM;
    e->tuple = tuple;
    e->priority = priority;
    e->hash = ss_hash_key(key, t->key_words);
    e->handle = handle;
    struct ss_slot *slot = slot_find(tuple, key, e->hash, t->key_words);
    if (!slot->entry) tuple->used++;
    struct ss_entry *first = slot->entry, **link = &first;
    uint32_t before = 0;
    for (; *link && (*link)->priority >= priority; before++) link = &(*link)->next;
    e->next = *link;
    *link = e;
    if (before >= t->longest) t->longest = before + 1;
    *slot = (struct ss_slot){e->hash, first};
    tuple->entries++;
    t->entries++;
    if (priority > tuple->best) {
        tuple->best = priority;
        uint32_t at;
        tuple_find(t, mask, &at);
        tuple_place(t, at);
    }
    ss_bitmaps_add(t, e);
    *out = e;
    return 0;
}

/* All of the following return 0 or a negative errno: -ENODEV no program, -EEXIST, -ENOENT, -ENOSPC full, -ENOMEM. */

SS_API int ss_table_insert(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                           uint32_t params_len, uint32_t is_const, uint64_t *handle) {
    struct ss_entry *e;
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    int result = t ? ss_table_add(t, key, mask, ranges, priority, device->next_handle + 1, &e) : -ENODEV;
    if (result == 0) {
        *handle = ++device->next_handle;
        e->action = action;
        e->is_const = is_const;
        e->hit_us = (ss_now_ns() - device->fabric->start_ns) / 1000;
        memcpy(e->params, params, params_len);
    }
    ss_thread_unlock(device->thread);
    return result;
}

SS_API int ss_table_modify(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                           uint32_t params_len) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    struct ss_entry *e = t ? find(t, key, mask, ranges, priority) : NULL;
    if (e) {
        e->action = action;
        memset(e->params, 0, t->params_bytes);
        memcpy(e->params, params, params_len);
    }
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

SS_API int ss_table_delete(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                           const uint8_t *ranges, int32_t priority) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    struct ss_entry *e = t ? find(t, key, mask, ranges, priority) : NULL;
    if (e) {
        struct ss_tuple *tuple = e->tuple;
        struct ss_slot *slot = slot_find(tuple, key, e->hash, t->key_words);
        struct ss_entry *first = slot->entry, **link = &first;
        while (*link != e) link = &(*link)->next;
        *link = e->next;
        if (first) slot->entry = first;
        else slot_remove(tuple, slot);
        ss_idle_stop(&device->state, t, e);
        ss_bitmaps_remove(t, e);
        entry_free(e);
        t->entries--;
        if (--tuple->entries == 0) { /* `best` may stay too high meanwhile: that costs time, never a wrong match */
            uint32_t at;
            tuple_find(t, mask, &at);
            t->n_tuples--;
            memmove(&t->tuples[at], &t->tuples[at + 1], (t->n_tuples - at) * sizeof *t->tuples);
            tuple_free(tuple);
        }
    }
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

/* A serialised entry: this, then params, key, mask, ranges. */
struct entry_record {
    uint64_t handle, packets, bytes, ttl_ns, since_hit_us;
    int32_t priority;
    uint32_t action, is_const, reserved;
};

uint8_t *ss_record_write(struct ss_device *device, const struct ss_table *t, const struct ss_entry *e, uint8_t *out) {
    uint64_t now = (ss_now_ns() - device->fabric->start_ns) / 1000;
    struct entry_record r = {e->handle,   e->counter.packets, e->counter.bytes, ss_idle_ttl(t, e),
                             now > e->hit_us ? now - e->hit_us : 0, e->priority, e->action, e->is_const, 0};
    size_t key_bytes = t->key_words * sizeof(uint64_t);
    memcpy(out, &r, sizeof r);
    out += sizeof r;
    memcpy(out, e->params, t->params_bytes);
    out += t->params_bytes;
    memcpy(out, e->key, key_bytes);
    out += key_bytes;
    if (e->tuple) memcpy(out, e->tuple->mask, key_bytes);
    else memset(out, 0, key_bytes);
    out += key_bytes;
    if (t->range_bytes) memcpy(out, e->range, t->range_bytes);
    return out + t->range_bytes;
}

size_t ss_record_bytes(const struct ss_table *t) {
    return sizeof(struct entry_record) + t->params_bytes + 2 * t->key_words * sizeof(uint64_t) + t->range_bytes;
}

/* One entry, or the default entry when key is NULL. `out` has room for a record. */
SS_API int ss_table_get(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                        const uint8_t *ranges, int32_t priority, uint8_t *out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    struct ss_entry *e = !t ? NULL : key ? find(t, key, mask, ranges, priority) : t->default_entry;
    if (e) ss_record_write(device, t, e, out);
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

/* All entries, in no particular order; the caller frees *out with ss_free. */
SS_API int64_t ss_table_dump(struct ss_device *device, uint32_t table, uint8_t **out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    int64_t n = -ENODEV;
    if (t) {
        uint8_t *at = *out = malloc(t->entries * ss_record_bytes(t) + 1);
        n = at ? (int64_t)t->entries : -ENOMEM;
        for (uint32_t i = 0; at && i < t->n_tuples; i++)
            for (uint32_t s = 0; s <= t->tuples[i]->slot_mask; s++)
                for (struct ss_entry *e = t->tuples[i]->slots[s].entry; e; e = e->next) at = ss_record_write(device, t, e, at);
    }
    ss_thread_unlock(device->thread);
    return n;
}

SS_API void ss_free(void *memory) {
    free(memory);
}

SS_API int ss_table_set_default(struct ss_device *device, uint32_t table, uint32_t action, const uint8_t *params,
                                uint32_t params_len) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
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
    struct ss_table *t = table_of(device, table);
    struct ss_entry *e = !t ? NULL : key ? find(t, key, mask, ranges, priority) : t->default_entry;
    if (e) e->counter = (struct ss_counter){packets, bytes};
    ss_thread_unlock(device->thread);
    return e ? 0 : t ? -ENOENT : -ENODEV;
}

/* Sets an entry's idle timeout (0: none) and starts its period. */
SS_API int ss_table_idle(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                         const uint8_t *ranges, int32_t priority, uint64_t ttl_ns) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
    struct ss_entry *e = t && t->idle_at ? find(t, key, mask, ranges, priority) : NULL;
    int result = !t ? -ENODEV : !e ? -ENOENT : ss_idle_set(device, t, e, ttl_ns) ? 0 : -ENOMEM;
    ss_thread_unlock(device->thread);
    return result;
}

/* An entry's direct meter, as ss_meter_access. */
SS_API int ss_table_meter(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                          const uint8_t *ranges, int32_t priority, const struct ss_meter *old,
                          const struct ss_meter_config *config, uint32_t clear, struct ss_meter *out) {
    ss_thread_lock(device->thread);
    struct ss_table *t = table_of(device, table);
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

/* `n` elements of `bytes` bytes, `stride` bytes apart, from byte `at` of a register group. */
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

/* --------------------------------------------------------------------------------- multicast groups, clone sessions */

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

/* Insert or replace; n < 0 deletes. `sessions` picks clone sessions instead of multicast groups. */
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

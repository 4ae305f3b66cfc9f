/* Bitmaps over the entries of a table that has many masks, or many ranges with one mask.
 *
 * Each entry has a number. For each byte of the key and each of its 256 values, a row of bits says which entries that
 * value is good for; the entries that match a key are the intersection of one row per byte (Lakshman and Stiliadis,
 * SIGCOMM 1998), found through heads that say which words of a row are not 0 (Baboescu and Varghese, SIGCOMM 2001). For
 * a range the rows hold a superset, up to the first byte in which its ends differ, so ranges are checked at the end.
 *
 * The tuples (tables.c) do not change; bitmaps are built when there are many tuples, and can be omitted without harm.
 */
#include <stdlib.h>

#include "runtime.h"

/* number of tuples, or of entries in one chain, from which on bitmaps are considered */
#define MANY 16u
/* entries whose bitmaps cost as much as one probe (measured); at twice as many, bitmaps are freed */
#define ENTRIES_PER_PROBE 64u /* bitmaps pay up to this (measured); beyond twice as many they are freed */
#define LEAST_CAPACITY 512u
#define MOST_BYTES ((size_t)512 << 20) /* address space: pages in which no bit is set are not touched */

static uint32_t probes(const struct ss_table *t) { return t->n_tuples > t->longest ? t->n_tuples : t->longest; }

void ss_bitmaps_free(struct ss_table *t) {
    struct ss_bitmaps *b = t->bitmaps;
    if (!b) return;
    free(b->at);
    free(b->rows);
    free(b->heads);
    free(b->entries);
    free(b->unused);
    free(b);
    t->bitmaps = NULL;
}

/* Sets *low and *high to the values of byte `at` that may match. Returns false if the byte does not belong to a range.
 */
static bool range_byte(const struct ss_table *t, const struct ss_entry *e, unsigned at, unsigned *low, unsigned *high) {
    const uint8_t *bound = e->range;
    for (uint32_t r = 0; r < t->n_ranges; r++) {
        unsigned first = t->ranges[r].offset, n = t->ranges[r].bytes;
        if (at >= first && at < first + n) {
            bool same = memcmp(bound, bound + n, at - first) == 0;
            *low = same ? bound[at - first] : 0;
            *high = same ? bound[n + at - first] : 255;
            return true;
        }
        bound += 2 * n;
    }
    return false;
}

static void set_column(const struct ss_table *t, struct ss_entry *e) {
    struct ss_bitmaps *b = t->bitmaps;
    uint32_t word = e->bit / 64;
    uint64_t bit = UINT64_C(1) << e->bit % 64;
    const uint8_t *key = (const uint8_t *)e->key, *mask = (const uint8_t *)e->tuple->mask;
    for (uint32_t i = 0; i < b->n_bytes; i++) {
        unsigned at = b->at[i], low, high;
        bool range = range_byte(t, e, at, &low, &high);
        for (unsigned v = 0; v < 256; v++) {
            size_t row = (size_t)i << 8 | v;
            bool match = range ? v >= low && v <= high : (v & mask[at]) == key[at];
            if (match) {
                b->rows[row * b->words + word] |= bit;
                b->heads[row * b->n_heads + word / 64] |= UINT64_C(1) << word % 64;
            } else if (b->rows[row * b->words + word] & bit) {
                b->rows[row * b->words + word] &= ~bit;
            }
        }
    }
    b->entries[e->bit] = e;
}

/* Returns whether a mask or a range may depend on that byte of the key. */
static bool matters(const struct ss_table *t, unsigned at) {
    for (uint32_t r = 0; r < t->n_ranges; r++)
        if (at >= t->ranges[r].offset && at < (unsigned)t->ranges[r].offset + t->ranges[r].bytes) return true;
    return ((const uint8_t *)t->any_mask)[at] || at == 0; /* there must be at least one row */
}

/* Builds the bitmaps anew, with room for twice as many entries. Without memory there are none. */
static void build(struct ss_table *t) {
    ss_bitmaps_free(t);
    uint32_t capacity = LEAST_CAPACITY, key_bytes = t->key_words * 8;
    while (capacity < 2 * t->entries) capacity *= 2;
    struct ss_bitmaps *b = t->bitmaps = calloc(1, sizeof *b);
    if (!b) return;
    b->capacity = capacity;
    b->words = capacity / 64;
    b->n_heads = (b->words + 63) / 64;
    b->at = malloc((key_bytes + 1) * sizeof *b->at);
    for (uint32_t i = 0; b->at && i < key_bytes; i++)
        if (matters(t, i)) b->at[b->n_bytes++] = (uint16_t)i;
    size_t rows = (size_t)b->n_bytes << 8;
    bool fits = rows * b->words * 8 <= MOST_BYTES;
    b->rows = fits ? calloc(rows * b->words, 8) : NULL;
    b->heads = fits ? calloc(rows * b->n_heads, 8) : NULL;
    b->entries = calloc(capacity, sizeof *b->entries);
    b->unused = malloc(capacity * sizeof *b->unused);
    if (!b->at || !b->rows || !b->heads || !b->entries || !b->unused) {
        ss_bitmaps_free(t);
        t->bitmaps_from = 2 * t->entries;
        return;
    }
    for (uint32_t i = capacity; i-- > 0;) b->unused[b->n_unused++] = i;
    for (uint32_t i = 0; i < t->n_tuples; i++)
        for (uint32_t s = 0; s <= t->tuples[i]->keys.mask; s++)
            for (struct ss_entry *e = t->tuples[i]->keys.slots[s].item; e; e = e->next) {
                e->bit = b->unused[--b->n_unused];
                set_column(t, e);
            }
}

/* Returns whether the bytes in the entry's mask have rows. */
static bool has_rows(const struct ss_table *t, const struct ss_entry *e) {
    const struct ss_bitmaps *b = t->bitmaps;
    uint32_t i = 0;
    for (uint32_t at = 0; at < t->key_words * 8; at++) {
        if (i < b->n_bytes && b->at[i] == at)
            i++;
        else if (((const uint8_t *)e->tuple->mask)[at])
            return false;
    }
    return true;
}

void ss_bitmaps_add(struct ss_table *t, struct ss_entry *e) {
    uint64_t limit = (uint64_t)probes(t) * ENTRIES_PER_PROBE;
    bool had = t->bitmaps != NULL;
    if (!had) {
        if (probes(t) > MANY && t->entries <= limit && t->entries >= t->bitmaps_from) build(t);
    } else if (t->entries > 2 * limit) {
        ss_bitmaps_free(t);
    } else if (t->bitmaps->n_unused && has_rows(t, e)) {
        e->bit = t->bitmaps->unused[--t->bitmaps->n_unused];
        set_column(t, e);
    } else {
        build(t);
    }
    if (had && !t->bitmaps) ss_table_sort(t);
}

void ss_bitmaps_remove(struct ss_table *t, const struct ss_entry *e) {
    struct ss_bitmaps *b = t->bitmaps;
    if (!b) return;
    b->entries[e->bit] = NULL; /* its bits are set anew when the number is used again */
    b->unused[b->n_unused++] = e->bit;
    if (b->n_unused == b->capacity) {
        ss_bitmaps_free(t);
        t->longest = t->bitmaps_from = 0;
    }
}

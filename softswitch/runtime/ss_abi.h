/* The interface between generated programs and the runtime: packet state, tables, counters, registers, and the program
 * descriptor.
 *
 * A generated program is a shared object that exports one symbol, `ss_program`. It calls no runtime function by name;
 * the few that it needs come through `struct ss_services`. Tables are looked up inline (tuple space search: one hash
 * table per distinct mask, tried in falling order of the best priority it holds; an exact table has one tuple, an LPM
 * table one per prefix length in use).
 *
 * Threading: a thread that reads or writes a `struct ss_state` holds the lock of the thread that owns the device, or
 * runs a packet of a program that may be shared (ss_program.shareable): see runtime.h. */
#ifndef SS_ABI_H
#define SS_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ss_meter.h"

#define SS_ABI_VERSION 7u
#define SS_DROP_PORT 511u
#define SS_MAX_PORTS 512u

/* instance_type as bmv2's simple_switch sets it */
enum {
    SS_NORMAL = 0,
    SS_INGRESS_CLONE = 1,
    SS_EGRESS_CLONE = 2,
    SS_RECIRCULATED = 4,
    SS_REPLICATED = 5,
    SS_RESUBMITTED = 6,
};

/* Counts of packets that nobody has added to the counters yet. */
#define SS_COUNTS 4096u
#define SS_MOST_COUNTS 64u /* most that one packet of a program that may be shared counts */
struct ss_counts {
    uint32_t n;
    struct {
        struct ss_counter *counter;
        uint32_t bytes;
    } items[SS_COUNTS];
};

/* First member of every generated packet state. `target` is the switch's own part; `standard` is v1model's
 * standard_metadata, which clone, resubmit and recirculate reset. */
struct ss_target {
    uint32_t length;         /* packet_length in egress: setValid and setInvalid change it */
    uint32_t ingress_length; /* the length that counters count */
    uint32_t truncate_to;    /* UINT32_MAX: not truncated */
    uint16_t clone_session;  /* session | SS_CLONE_REQUESTED, or 0 */
    uint16_t clone_fields;
    uint16_t resubmit_fields; /* field list id, or 0 */
    uint16_t recirculate_fields;
    uint8_t exited;
    uint8_t shared;           /* whether others may run packets of the device now: registers need a lock */
    void *held;               /* the lock that the packet has, of its registers' index, or NULL */
    struct ss_counts *counts; /* where the packet notes what it counts; NULL: it counts at once */
};
#define SS_CLONE_REQUESTED 0x8000u

struct ss_standard {
    uint64_t ingress_global_timestamp;
    uint64_t egress_global_timestamp;
    uint64_t enq_timestamp_48; /* P4-14's enq_timestamp has 48 bits, v1model's has 32 */
    uint32_t instance_type;
    uint32_t packet_length;
    uint32_t enq_timestamp;
    uint32_t enq_qdepth;
    uint32_t deq_timedelta;
    uint32_t deq_qdepth;
    uint32_t qid; /* the queue of a frame in egress: its priority when ingress ended */
    uint32_t parser_error;
    uint16_t ingress_port;
    uint16_t egress_spec;
    uint16_t egress_port;
    uint16_t mcast_grp;
    uint16_t egress_rid;
    uint8_t checksum_error;
    uint8_t priority;
};

struct ss_packet {
    struct ss_target target;
    struct ss_standard standard;
    /* the program's metadata, validity bits and headers follow */
};

struct ss_entry {
    struct ss_entry *next, *prev; /* same masked key; in falling precedence if the table has no bitmaps */
    struct ss_tuple *tuple;
    uint64_t handle; /* grows with every insertion: the older entry wins a tie */
    uint32_t hash;
    int32_t priority;
    uint32_t action;
    uint32_t is_const;
    uint32_t bit; /* the entry's number in the table's bitmaps */
    struct ss_counter counter;
    uint64_t *key;        /* masked, key_words long */
    const uint8_t *range; /* for each range key: low, high (each as wide as the key); or NULL */
    uint64_t hit_us;      /* in a table with idle timeouts: time when it was inserted, changed or hit */
    uint8_t params[] __attribute__((aligned(16)));
};

/* A hash table with linear probing and a power of two of slots; half of them stay free. */
struct ss_slot {
    uint32_t hash;
    uint32_t chain; /* number of entries with a tuple's key */
    void *item;     /* NULL: free */
};
struct ss_map {
    struct ss_slot *slots;
    uint32_t mask; /* number of slots - 1 */
    uint32_t used;
};

/* All entries with one mask. */
struct ss_tuple {
    uint64_t *mask;
    struct ss_map keys; /* the first entry of each masked key */
    uint32_t entries;
    int32_t best; /* no entry of this tuple has a higher priority */
    /* not used by generated code */
    uint32_t at; /* index in the table's tuples */
};

/* Bitmaps, see bitmaps.c. Row (byte of the key, its value) has `words` words, and a bit for each entry. */
struct ss_bitmaps {
    uint32_t words, n_heads, n_bytes;
    uint16_t *at;              /* the bytes of the key that have rows */
    uint64_t *rows, *heads;    /* bit i of a row's head: whether its word i may be other than 0 */
    struct ss_entry **entries; /* by number; NULL: free */
    /* not used by generated code */
    uint32_t capacity, n_unused, *unused; /* numbers not in use */
};

struct ss_range_key {
    uint16_t offset, bytes; /* in the key */
};

struct ss_table {
    struct ss_tuple **tuples; /* in falling order of `best` if there are no bitmaps */
    uint32_t n_tuples;
    uint32_t key_words;
    uint32_t n_ranges;
    const struct ss_range_key *ranges;
    struct ss_entry *default_entry;
    struct ss_bitmaps *bitmaps; /* NULL: none */
    uint32_t meter_at;          /* byte offset of an entry's direct meter, 0: the table has none */
    /* not used by generated code */
    uint32_t idle_at; /* byte offset of an entry's struct ss_idle, 0: no idle timeouts */
    uint32_t entries, size, params_bytes;
    uint32_t range_bytes;
    uint32_t longest;         /* longest chain of entries with one masked key so far */
    uint32_t bitmaps_from;    /* with fewer entries than this, there was no memory for bitmaps */
    uint64_t *any_mask;       /* all masks so far, or-ed */
    struct ss_map masks;      /* tuples by their mask */
    struct ss_map identities; /* entries by their full identity; without slots while chains are short */
};

static inline struct ss_meter *ss_entry_meter(const struct ss_table *t, struct ss_entry *e) {
    return (struct ss_meter *)((uint8_t *)e + t->meter_at);
}

/* A member of an action profile: an action of the profile (by number) and its parameters. */
struct ss_member {
    uint32_t action;
    uint8_t params[] __attribute__((aligned(16)));
};

/* The target of an entry in a table with an action profile: one member, or a group, of which a hash chooses one. A
 * member is in it as often as its weight says, and not at all while the port that it depends on is down. */
struct ss_choice {
    uint32_t n;
    struct ss_member *members[];
};

/* An action profile. Entries have the number of a choice as their only parameter. */
struct ss_profile {
    struct ss_choice **choices;
    /* not used by generated code */
    struct ss_member **members;
    uint32_t n_choices, n_members, params_bytes;
};

static inline uint32_t ss_hash_key(const uint64_t *key, unsigned words) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ words;
    for (unsigned i = 0; i < words; i++) {
        h = (h ^ key[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    h *= 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h >> 32);
}

static inline bool ss_same_key(const uint64_t *a, const uint64_t *b, unsigned words) {
    uint64_t diff = 0;
    for (unsigned i = 0; i < words; i++) diff |= a[i] ^ b[i];
    return diff == 0;
}

static inline struct ss_entry *ss_tuple_find(const struct ss_tuple *t, const uint64_t *key, unsigned words) {
    uint32_t hash = ss_hash_key(key, words);
    const struct ss_map *keys = &t->keys;
    for (uint32_t i = hash & keys->mask; keys->slots[i].item; i = (i + 1) & keys->mask) {
        struct ss_entry *e = keys->slots[i].item;
        if (keys->slots[i].hash == hash && ss_same_key(e->key, key, words)) return e;
    }
    return NULL;
}

static inline bool ss_in_ranges(const struct ss_table *t, const struct ss_entry *e, const uint64_t *key) {
    const uint8_t *bound = e->range;
    for (uint32_t i = 0; i < t->n_ranges; i++) {
        const uint8_t *value = (const uint8_t *)key + t->ranges[i].offset;
        unsigned n = t->ranges[i].bytes;
        if (memcmp(value, bound, n) < 0 || memcmp(value, bound + n, n) > 0) return false;
        bound += 2 * n;
    }
    return true;
}

/* Looks a key up in an exact table. `words` must be the table's key_words; it is a parameter so that the compiler sees
 * a constant. */
static inline struct ss_entry *ss_lookup_exact(const struct ss_table *t, const uint64_t *key, unsigned words) {
    return t->n_tuples ? ss_tuple_find(t->tuples[0], key, words) : NULL;
}

static __attribute__((noinline, unused)) struct ss_entry *ss_lookup_bitmaps(const struct ss_table *t,
                                                                            const uint64_t *key) {
    const struct ss_bitmaps *b = t->bitmaps;
    const uint8_t *bytes = (const uint8_t *)key;
    struct ss_entry *best = NULL;
    for (uint32_t h = 0; h < b->n_heads; h++) {
        uint64_t head = ~UINT64_C(0);
        for (uint32_t i = 0; i < b->n_bytes; i++) head &= b->heads[((size_t)i << 8 | bytes[b->at[i]]) * b->n_heads + h];
        for (; head; head &= head - 1) {
            uint32_t word = 64 * h + (uint32_t)__builtin_ctzll(head);
            uint64_t hits = ~UINT64_C(0);
            for (uint32_t i = 0; i < b->n_bytes && hits; i++)
                hits &= b->rows[((size_t)i << 8 | bytes[b->at[i]]) * b->words + word];
            for (; hits; hits &= hits - 1) {
                struct ss_entry *e = b->entries[64 * word + (uint32_t)__builtin_ctzll(hits)];
                if (!e || (best && (e->priority < best->priority ||
                                    (e->priority == best->priority && e->handle > best->handle))))
                    continue;
                if (t->n_ranges == 0 || ss_in_ranges(t, e, key)) best = e;
            }
        }
    }
    return best;
}

static inline struct ss_entry *ss_lookup_masked(const struct ss_table *t, const uint64_t *key, unsigned words) {
    if (t->bitmaps) return ss_lookup_bitmaps(t, key);
    struct ss_entry *best = NULL;
    uint64_t masked[words];
    for (uint32_t i = 0; i < t->n_tuples; i++) {
        const struct ss_tuple *tuple = t->tuples[i];
        if (best && best->priority > tuple->best) break;
        for (unsigned w = 0; w < words; w++) masked[w] = key[w] & tuple->mask[w];
        for (struct ss_entry *e = ss_tuple_find(tuple, masked, words); e; e = e->next) {
            if (best && (e->priority < best->priority || (e->priority == best->priority && e->handle > best->handle)))
                break;
            if (t->n_ranges == 0 || ss_in_ranges(t, e, key)) {
                best = e;
                break;
            }
        }
    }
    return best;
}

/* The services of the switch that a program may call. `values` are sign-extended 128-bit numbers; `data` are fields,
 * each in whole bytes, in network order. Only the traced variant of a program calls `trace`. */
struct ss_services {
    uint64_t (*random)(void *device);
    void (*log)(void *device, uint32_t message, const unsigned __int128 *values, uint32_t n);
    void (*digest)(void *device, uint32_t digest, const uint8_t *data, uint32_t len);
    void (*trace)(void *device, uint32_t point, const uint8_t *data, uint32_t len);
    /* Wait for the lock of the registers' elements at `index`, which the packet then has until its ingress ends. */
    void (*hold)(void *device, struct ss_packet *p, uint64_t index);
};

/* The state of one device under one program. */
struct ss_state {
    struct ss_table *tables;
    struct ss_counter **counters;
    uint8_t **registers; /* one block per register group */
    struct ss_meter **meters;
    struct ss_profile *profiles;
    struct ss_table *value_sets; /* a parser value set is a table without actions */
    struct ss_crc *crcs;         /* the program's checks with parameters of the host's (ss_crc.h) */
    struct ss_idle_heap *idle;   /* entries with an idle timeout, not used by generated code */
    const struct ss_services *services;
    void *device;
    uint64_t now_us; /* microseconds since the fabric was made */
};

/* Takes the lock of a packet's register index. A program that may be shared calls this before it uses a register; all
 * registers of a packet have one index. */
static inline void ss_hold(struct ss_state *s, struct ss_packet *p, uint64_t index) {
    if (p->target.shared && !p->target.held) s->services->hold(s->device, p, index);
}

static inline void ss_count(struct ss_packet *p, struct ss_counter *counter) {
    struct ss_counts *counts = p->target.counts;
    if (counts) {
        counts->items[counts->n].counter = counter;
        counts->items[counts->n++].bytes = p->target.ingress_length;
        return;
    }
    counter->packets++;
    counter->bytes += p->target.ingress_length;
}

struct ss_table_info {
    uint32_t key_words, size, params_bytes, n_ranges;
    const struct ss_range_key *ranges;
    uint32_t default_action;
    const uint8_t *default_params;
    bool has_meter, has_idle;
};

struct ss_program {
    uint32_t abi;
    uint32_t packet_bytes; /* size of the program's packet state, which begins with struct ss_packet */
    uint32_t metadata_end; /* [offsetof(standard), metadata_end) is reset for clones */
    /* whether egress does nothing, and checksums do not read anything in which replicas differ */
    uint32_t copies_alike;
    /* whether packets may run at once: see compiler/sharing.py */
    uint32_t shareable;
    uint32_t n_tables, n_counters, n_registers, n_digests;
    const struct ss_table_info *tables;
    const uint64_t *counters;  /* number of elements of each array */
    const uint64_t *registers; /* bytes of each register group */
    uint32_t n_meters, n_profiles, n_value_sets;
    const uint64_t *meters;     /* number of elements of each array */
    const uint32_t *profiles;   /* bytes of the parameters of each profile's members */
    const uint32_t *value_sets; /* 64-bit words of each value set's key */
    uint32_t n_crcs;
    const uint32_t *crcs; /* bits of each crc16_custom and crc32_custom calculation */
    /* Both return the number of bytes parsed. Errors are stored in standard.parser_error. */
    uint32_t (*parse)(struct ss_state *, struct ss_packet *, const uint8_t *data, uint32_t len);
    void (*ingress)(struct ss_state *, struct ss_packet *);
    void (*egress)(struct ss_state *, struct ss_packet *);
    /* Update checksums; the payload is the bytes after the parsed ones. */
    void (*checksums)(struct ss_state *, struct ss_packet *, const uint8_t *payload, uint32_t len);
    uint32_t (*headers_bytes)(const struct ss_packet *);
    void (*emit)(const struct ss_packet *, uint8_t *out);
    /* Copy the fields of a field list; an unknown id copies nothing. */
    void (*copy_fields)(uint32_t list, struct ss_packet *to, const struct ss_packet *from);
};

#endif

/* The common updates of a P4Runtime WriteRequest, read from its wire format: INSERT, MODIFY and DELETE of table entries
 * whose fields are exact, LPM, ternary or optional and that have an action of their own.
 *
 * Other updates, encodings that no serialiser produces, and wrong or refused updates are left to the caller, which
 * knows the rest of P4Runtime and the texts of its errors (softswitch/p4runtime). So this code may refuse any update,
 * and must change the tables exactly as the caller would. */
#include "runtime.h"

/* The caller's description of the tables, as one array of uint32_t: this header, then the tables by rising id, their
 * fields and actions, and the actions' parameters. `first` is an index among all fields, actions or parameters. */
struct schema {
    uint32_t n_tables, n_fields, n_actions;
};
struct table_schema {
    uint32_t id, number, key_bytes, with_priority, first_field, n_fields, first_action, n_actions;
};
struct field_schema {
    uint32_t id, kind, width, at, bytes; /* kind: its field in FieldMatch; at, bytes: its place in the key */
};
struct action_schema {
    uint32_t id, number, first_param, n_params, bytes;
};
struct param_schema {
    /* at, bytes: its place among the action's parameters; little: whether it is little-endian */
    uint32_t id, width, at, bytes, little;
};
enum { EXACT = 2, TERNARY = 3, LPM = 4, OPTIONAL = 7 };
enum { INSERT = 1, MODIFY = 2, DELETE = 3 };

#define MAX_KEY_WORDS 32u /* the same limits as in softswitch/p4runtime/wire.py */
#define MAX_PARAMS_BYTES 512u
#define MAX_MEMBERS 64u /* fields of a table, parameters of an action */

/* ---- wire format ---- */

struct span {
    const uint8_t *at, *end;
};

#define TAG(field, type) ((field) << 3 | (type))
enum { VARINT = 0, BYTES = 2 };

/* Reads a number below 2^32. Returns false if it is no such number, or has more bytes than needed. */
static bool read_number(struct span *in, uint32_t *out) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 35 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte & 0x80) continue;
        if (value > UINT32_MAX || (byte == 0 && shift > 0)) return false;
        *out = (uint32_t)value;
        return true;
    }
    return false;
}

static bool read_bytes(struct span *in, struct span *out) {
    uint32_t n;
    if (!read_number(in, &n) || n > (size_t)(in->end - in->at)) return false;
    *out = (struct span){in->at, in->at + n};
    in->at += n;
    return true;
}

/* Returns whether a field that may occur once occurs for the first time. */
static bool first(uint32_t *seen, uint8_t tag) {
    uint32_t bit = UINT32_C(1) << (tag >> 3);
    bool is_first = !(*seen & bit);
    *seen |= bit;
    return is_first;
}

/* Stores a byte string as a number of `width` bits in `bytes` bytes, network order. Returns false if it does not fit.
 */
static bool put_number(uint8_t *out, uint32_t bytes, uint32_t width, struct span value) {
    if (value.at == value.end) return false;
    while (value.at < value.end && *value.at == 0) value.at++;
    size_t n = (size_t)(value.end - value.at);
    if (n > (width + 7) / 8) return false;
    if (n == (width + 7) / 8 && width % 8 && *value.at >> width % 8) return false;
    memset(out, 0, bytes - n);
    memcpy(out + bytes - n, value.at, n);
    return true;
}

/* Sets the highest `ones` of `width` bits. */
static void put_prefix(uint8_t *out, uint32_t bytes, uint32_t width, uint32_t ones) {
    memset(out, 0, bytes);
    for (uint32_t bit = width - ones; bit < width; bit++) out[bytes - 1 - bit / 8] |= (uint8_t)(1u << bit % 8);
}

/* ---- entries ---- */

struct reader {
    const struct table_schema *tables;
    const struct field_schema *fields;
    const struct action_schema *actions;
    const struct param_schema *params;
    uint32_t n_tables;
};

struct update {
    const struct table_schema *table;
    const struct action_schema *action; /* NULL: not given */
    uint32_t kind;
    int32_t priority;
    uint64_t key[MAX_KEY_WORDS], mask[MAX_KEY_WORDS];
    uint8_t params[MAX_PARAMS_BYTES];
};

static bool read_match(const struct reader *r, struct update *u, struct span in, uint64_t *given) {
    uint32_t id = 0, seen = 0, prefix = 0;
    uint8_t kind = 0;
    struct span match = {0}, value = {0}, mask = {0};
    while (in.at < in.end) {
        uint8_t tag = *in.at++;
        if (!first(&seen, tag)) return false;
        if (tag == TAG(1, VARINT)) {
            if (!read_number(&in, &id)) return false;
        } else if (kind == 0 && (tag == TAG(EXACT, BYTES) || tag == TAG(TERNARY, BYTES) || tag == TAG(LPM, BYTES) ||
                                 tag == TAG(OPTIONAL, BYTES))) {
            kind = tag >> 3;
            if (!read_bytes(&in, &match)) return false;
        } else
            return false;
    }
    const struct field_schema *f = r->fields + u->table->first_field;
    uint32_t number = 0;
    while (number < u->table->n_fields && f[number].id != id) number++;
    if (number == u->table->n_fields || *given >> number & 1) return false;
    *given |= UINT64_C(1) << number;
    f += number;
    if (f->kind != kind) return false;
    for (seen = 0; match.at < match.end;) {
        uint8_t tag = *match.at++;
        if (!first(&seen, tag)) return false;
        if (tag == TAG(1, BYTES)) {
            if (!read_bytes(&match, &value)) return false;
        } else if (tag == TAG(2, BYTES) && kind == TERNARY) {
            if (!read_bytes(&match, &mask)) return false;
        } else if (tag == TAG(2, VARINT) && kind == LPM) {
            if (!read_number(&match, &prefix)) return false;
        } else
            return false;
    }
    uint8_t *key = (uint8_t *)u->key + f->at, *bits = (uint8_t *)u->mask + f->at;
    if (!put_number(key, f->bytes, f->width, value)) return false;
    if (kind == TERNARY) {
        if (!put_number(bits, f->bytes, f->width, mask)) return false;
    } else {
        if (kind == LPM && !(prefix > 0 && prefix <= f->width)) return false;
        put_prefix(bits, f->bytes, f->width, kind == LPM ? prefix : f->width);
        if (kind == LPM && !u->table->with_priority) u->priority = (int32_t)prefix;
    }
    uint8_t any = 0, outside = 0;
    for (uint32_t i = 0; i < f->bytes; i++) {
        any |= bits[i];
        outside |= key[i] & (uint8_t)~bits[i];
    }
    return any && !outside;
}

static bool read_param(const struct reader *r, struct update *u, struct span in, uint64_t *given) {
    uint32_t id = 0, seen = 0;
    struct span value = {0};
    while (in.at < in.end) {
        uint8_t tag = *in.at++;
        if (!first(&seen, tag)) return false;
        if (tag == TAG(2, VARINT) ? !read_number(&in, &id) : tag == TAG(3, BYTES) ? !read_bytes(&in, &value) : true)
            return false;
    }
    const struct param_schema *p = r->params + u->action->first_param;
    uint32_t number = 0;
    while (number < u->action->n_params && p[number].id != id) number++;
    if (number == u->action->n_params || *given >> number & 1) return false;
    *given |= UINT64_C(1) << number;
    p += number;
    uint8_t *out = u->params + p->at;
    if (!put_number(out, p->bytes, p->width, value)) return false;
    if (p->little)
        for (uint32_t i = 0; i < p->bytes / 2; i++) {
            uint8_t low = out[i];
            out[i] = out[p->bytes - 1 - i];
            out[p->bytes - 1 - i] = low;
        }
    return true;
}

static bool all_given(uint64_t given, uint32_t n) { return given == (n ? ~UINT64_C(0) >> (64 - n) : 0); }

/* Reads an Action. Its id comes first, as serialisers write fields in the order of their numbers. */
static bool read_action(const struct reader *r, struct update *u, struct span in) {
    uint32_t id;
    if (in.at == in.end || *in.at++ != TAG(1, VARINT) || !read_number(&in, &id)) return false;
    const struct action_schema *a = r->actions + u->table->first_action, *end = a + u->table->n_actions;
    while (a < end && a->id != id) a++;
    if (a == end) return false;
    u->action = a;
    memset(u->params, 0, a->bytes);
    uint64_t given = 0;
    while (in.at < in.end) {
        struct span param;
        if (*in.at++ != TAG(4, BYTES) || !read_bytes(&in, &param) || !read_param(r, u, param, &given)) return false;
    }
    return all_given(given, a->n_params);
}

static const struct table_schema *find_table(const struct reader *r, uint32_t id) {
    uint32_t low = 0, high = r->n_tables;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (r->tables[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->n_tables && r->tables[low].id == id ? &r->tables[low] : NULL;
}

/* Reads a TableEntry. Its table's id comes first. */
static bool read_entry(const struct reader *r, struct update *u, struct span in) {
    uint32_t id, priority = 0, seen = 0;
    if (in.at == in.end || *in.at++ != TAG(1, VARINT) || !read_number(&in, &id)) return false;
    if (!(u->table = find_table(r, id))) return false;
    memset(u->key, 0, u->table->key_bytes);
    memset(u->mask, 0, u->table->key_bytes);
    uint64_t given = 0;
    while (in.at < in.end) {
        uint8_t tag = *in.at++;
        struct span part;
        if (tag == TAG(2, BYTES)) {
            if (!read_bytes(&in, &part) || !read_match(r, u, part, &given)) return false;
            continue;
        }
        if (!first(&seen, tag)) return false;
        if (tag == TAG(3, BYTES)) {
            struct span action;
            if (!read_bytes(&in, &part)) return false;
            if (u->kind == DELETE) continue; /* a deletion does not need it */
            if (part.at == part.end || *part.at++ != TAG(1, BYTES) || !read_bytes(&part, &action) ||
                part.at != part.end || !read_action(r, u, action))
                return false;
        } else if (tag != TAG(4, VARINT) || !read_number(&in, &priority))
            return false;
    }
    const struct field_schema *f = r->fields + u->table->first_field;
    for (uint32_t i = 0; i < u->table->n_fields; i++)
        if (f[i].kind == EXACT && !(given >> i & 1)) return false;
    if (!u->table->with_priority) return priority == 0;
    u->priority = (int32_t)priority;
    return u->priority > 0;
}

static bool read_update(const struct reader *r, struct update *u, struct span in) {
    struct span entity, entry;
    u->action = NULL;
    u->priority = 0;
    if (in.at == in.end || *in.at++ != TAG(1, VARINT) || !read_number(&in, &u->kind)) return false;
    if (in.at == in.end || *in.at++ != TAG(2, BYTES) || !read_bytes(&in, &entity) || in.at != in.end) return false;
    if (entity.at == entity.end || *entity.at++ != TAG(2, BYTES) || !read_bytes(&entity, &entry)) return false;
    return entity.at == entity.end && read_entry(r, u, entry);
}

static int apply(struct ss_device *device, const struct update *u, uint32_t only_inserts) {
    struct ss_table *t = ss_table_of(device, u->table->number);
    struct ss_entry_key key = {u->key, u->mask, NULL, u->priority};
    if (!t) return -1;
    if (u->kind == INSERT && u->action)
        return ss_entry_insert(device, t, &key, u->action->number, u->params, u->action->bytes, 0);
    if (only_inserts) return -1;
    if (u->kind == MODIFY && u->action) return ss_entry_modify(t, &key, u->action->number, u->params, u->action->bytes);
    return u->kind == DELETE ? ss_entry_delete(device, t, &key) : -1;
}

/* Applies the updates of a WriteRequest from byte *at on, until one is left to the caller, and returns how many it
 * applied; *at is then behind the one that is left, or at the end. `only_inserts`: leave all others to the caller. */
SS_API uint64_t ss_write(struct ss_device *device, const uint32_t *schema, const uint8_t *data, uint64_t len,
                         uint64_t *at, uint32_t only_inserts) {
    const struct schema *s = (const struct schema *)schema;
    struct reader r = {.n_tables = s->n_tables};
    r.tables = (const struct table_schema *)(s + 1);
    r.fields = (const struct field_schema *)(r.tables + s->n_tables);
    r.actions = (const struct action_schema *)(r.fields + s->n_fields);
    r.params = (const struct param_schema *)(r.actions + s->n_actions);
    struct span in = {data + *at, data + len};
    uint64_t done = 0;
    while (in.at < in.end) {
        uint8_t tag = *in.at++;
        struct span part;
        if (tag == TAG(4, BYTES)) {
            struct update u;
            if (!read_bytes(&in, &part)) break;
            if (read_update(&r, &u, part)) {
                ss_thread_lock(device->thread);
                int result = apply(device, &u, only_inserts);
                ss_thread_unlock(device->thread);
                if (result == 0) {
                    done++;
                    continue;
                }
            }
            *at = (uint64_t)(in.at - data);
            return done;
        }
        if (tag == TAG(3, BYTES) || tag == TAG(6, BYTES)) { /* election id and role: the caller has checked them */
            if (!read_bytes(&in, &part)) break;
        } else if (tag == TAG(1, VARINT) || tag == TAG(2, VARINT) || tag == TAG(5, VARINT)) {
            while (in.at < in.end && *in.at & 0x80) in.at++;
            if (in.at < in.end) in.at++;
        } else
            break;
    }
    *at = len;
    return done;
}

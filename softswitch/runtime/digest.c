/* Digests: messages from the data plane to the host, one event each.
 *
 * A message that is already under way (in the host's list, or sent and not acknowledged) is not repeated: the filter
 * remembers it until the host forgets it. Doing that here keeps a flow of equal packets from costing the host anything.
 */
#include <errno.h>
#include <stdlib.h>

#include "runtime.h"

#define FILTER_LIMIT 65536u /* messages of one kind under way; more are dropped and counted */
#define FIRST_BUCKETS 64u

struct ss_message {
    struct ss_message *next;
    uint32_t hash, len;
    uint8_t data[];
};

static uint32_t hash_of(const uint8_t *data, uint32_t len) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < len; i++) h = (h ^ data[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

static struct ss_message **find(const struct ss_digest *d, uint32_t hash, const uint8_t *data, uint32_t len) {
    struct ss_message **link = &d->bucket[hash & (d->buckets - 1)];
    while (*link && ((*link)->hash != hash || (*link)->len != len || memcmp((*link)->data, data, len) != 0))
        link = &(*link)->next;
    return link;
}

static bool grow(struct ss_digest *d) {
    uint32_t n = d->buckets ? 2 * d->buckets : FIRST_BUCKETS;
    struct ss_message **bucket = calloc(n, sizeof *bucket);
    if (!bucket) return false;
    for (uint32_t i = 0; i < d->buckets; i++)
        for (struct ss_message *m = d->bucket[i], *next; m; m = next) {
            next = m->next;
            m->next = bucket[m->hash & (n - 1)];
            bucket[m->hash & (n - 1)] = m;
        }
    free(d->bucket);
    d->bucket = bucket;
    d->buckets = n;
    return true;
}

static void clear(struct ss_digest *d) {
    for (uint32_t i = 0; i < d->buckets; i++)
        for (struct ss_message *m = d->bucket[i], *next; m; m = next) {
            next = m->next;
            free(m);
        }
    free(d->bucket);
    d->bucket = NULL;
    d->buckets = d->n = 0;
}

/* Returns whether the message is new; it is remembered from now on. */
static bool remember(struct ss_device *device, struct ss_digest *d, const uint8_t *data, uint32_t len) {
    if (d->n >= d->buckets && !grow(d)) {
        ss_drop(device, NULL, SS_DROP_NO_MEMORY);
        return false;
    }
    uint32_t hash = hash_of(data, len);
    struct ss_message **link = find(d, hash, data, len);
    if (*link) return false;
    struct ss_message *m = d->n < FILTER_LIMIT ? malloc(sizeof *m + len) : NULL;
    if (!m) {
        ss_drop(device, NULL, SS_DROP_DIGEST_LIMIT);
        return false;
    }
    m->next = NULL;
    m->hash = hash;
    m->len = len;
    if (len) memcpy(m->data, data, len);
    *link = m;
    d->n++;
    return true;
}

void ss_digest_service(void *argument, uint32_t number, const uint8_t *data, uint32_t len) {
    struct ss_device *device = argument;
    struct ss_digest *d = &device->digests[number];
    if (!d->enabled || (d->filter && !remember(device, d, data, len))) return;
    ss_post(device, SS_EVENT_DIGEST, number, data, len);
}

void ss_digests_free(struct ss_digest *digests, uint32_t n) {
    for (uint32_t i = 0; digests && i < n; i++) clear(&digests[i]);
    free(digests);
}

/* Sends messages of this kind to the host, or stops that; with `filter` each only once until it is forgotten. */
SS_API int ss_digest_enable(struct ss_device *device, uint32_t number, uint32_t enabled, uint32_t filter) {
    ss_thread_lock(device->thread);
    int result = device->program && number < device->program->n_digests ? 0 : -ENODEV;
    if (result == 0) {
        struct ss_digest *d = &device->digests[number];
        d->enabled = enabled != 0;
        d->filter = filter != 0;
        if (!d->enabled || !d->filter) clear(d);
    }
    ss_thread_unlock(device->thread);
    return result;
}

/* Allows `n` messages of `len` bytes each, one after the other, to come again. */
SS_API int ss_digest_forget(struct ss_device *device, uint32_t number, const uint8_t *data, uint32_t len, uint32_t n) {
    ss_thread_lock(device->thread);
    int result = device->program && number < device->program->n_digests ? 0 : -ENODEV;
    for (uint32_t i = 0; result == 0 && i < n; i++, data += len) {
        struct ss_digest *d = &device->digests[number];
        if (!d->buckets) break;
        struct ss_message **link = find(d, hash_of(data, len), data, len), *m = *link;
        if (!m) continue;
        *link = m->next;
        free(m);
        d->n--;
    }
    ss_thread_unlock(device->thread);
    return result;
}

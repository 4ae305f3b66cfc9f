/* Frame buffers: a pool per data-plane thread for ordinary frames, the heap for the rest. Replicas share bytes. */
#include <stdlib.h>

#include "runtime.h"

#define POOL_LIMIT 4096u

static struct ss_buf *reset(struct ss_buf *buf, uint32_t len) {
    buf->data = buf->store + SS_HEADROOM;
    buf->len = len;
    buf->origin = NULL;
    buf->class = 0;
    atomic_store_explicit(&buf->holders, 1, memory_order_relaxed);
    atomic_store_explicit(&buf->checksum, SS_CHECKSUM_UNKNOWN, memory_order_relaxed);
    return buf;
}

struct ss_buf *ss_buf_new(uint32_t len) {
    struct ss_thread *thread = ss_current;
    struct ss_buf *buf;
    if (len <= SS_SMALL && thread && (buf = ss_pop(&thread->pool))) return reset(buf, len);
    uint32_t capacity = SS_HEADROOM + (len <= SS_SMALL ? SS_SMALL : len) + SS_SLACK;
    size_t size = (sizeof *buf + capacity + 63) & ~(size_t)63;
    buf = aligned_alloc(64, size);
    if (!buf) return NULL;
    buf->next = NULL;
    buf->capacity = capacity;
    buf->pooled = len <= SS_SMALL;
    return reset(buf, len);
}

struct ss_buf *ss_buf_copy(const uint8_t *data, uint32_t len) {
    struct ss_buf *buf = ss_buf_new(len);
    if (buf) memcpy(buf->data, data, len);
    return buf;
}

struct ss_buf *ss_buf_share(struct ss_buf *buf) {
    struct ss_buf *again = ss_buf_new(0);
    if (!again) return NULL;
    again->origin = buf->origin ? buf->origin : buf;
    atomic_fetch_add_explicit(&again->origin->holders, 1, memory_order_relaxed);
    again->data = buf->data;
    again->len = buf->len;
    again->port = buf->port;
    again->class = buf->class;
    return again;
}

static void recycle(struct ss_buf *buf) {
    struct ss_thread *thread = ss_current;
    if (buf->pooled && thread && thread->pool.n < POOL_LIMIT) {
        buf->next = thread->pool.head; /* last in, first out, because it is still in the cache */
        thread->pool.head = buf;
        if (!thread->pool.tail) thread->pool.tail = buf;
        thread->pool.n++;
        return;
    }
    free(buf);
}

void ss_buf_free(struct ss_buf *buf) {
    struct ss_buf *origin = buf->origin;
    if (origin) {
        buf->origin = NULL;
        recycle(buf);
        buf = origin;
    }
    /* The only holder does not need an atomic decrement. */
    if (atomic_load_explicit(&buf->holders, memory_order_acquire) > 1 &&
        atomic_fetch_sub_explicit(&buf->holders, 1, memory_order_acq_rel) > 1)
        return;
    recycle(buf);
}

void ss_list_free(struct ss_list *list) {
    struct ss_buf *buf;
    while ((buf = ss_pop(list))) ss_buf_free(buf);
}

#include "operations.h"

/* Hands an operation that has ended to the thread that waits for it, or puts it into the list of those that are done.
 * The caller holds the engine's lock. */
static void operation_ended(struct inart_worker *w, struct worker_operation *o) {
    if (o->before)
        o->before->next = o->next;
    else
        w->open = o->next;
    if (o->next) o->next->before = o->before;
    o->next = NULL;
    bool taken = false;
    for (struct worker_waiter *waiter = w->waiters; waiter; waiter = waiter->next)
        if (waiter->operation == o->id) {
            waiter->ended = taken ? NULL : o;
            waiter->told = taken = true;
            pthread_cond_signal(&waiter->woken);
        }
    if (taken) return;
    if (w->done)
        w->done_last->next = o;
    else
        w->done = o;
    w->done_last = o;
    pthread_cond_broadcast(&w->finished);
}

void worker_operation_part_ended(struct inart_worker *w, struct worker_operation *o, bool well) {
    pthread_mutex_lock(&w->mutex);
    if (!well && o->status == STATUS_OK) {
        o->status = w->failure_status;
        memcpy(o->message, w->failure, sizeof o->message);
    }
    if (atomic_fetch_sub(&o->parts_left, 1) == 1) {
        if (o->status == STATUS_OK) {
            w->operations_done++;
            w->bytes_reduced += o->elements * inart_dtype_bytes(o->dtype);
        } else
            w->operations_failed++;
        operation_ended(w, o);
    }
    pthread_mutex_unlock(&w->mutex);
}

void worker_part_free(struct worker_part *p) {
    free(p->exponents);
    free(p->mixed);
    free(p);
}

void worker_drop_parts(struct worker_thread *x) {
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct worker_tree *t = &x->trees[i];
        if (!t->parts) continue;
        while (t->parts) {
            struct worker_part *p = t->parts;
            t->parts = p->next;
            worker_operation_part_ended(x->worker, p->operation, false);
            worker_part_free(p);
        }
        t->last = t->cursor[EXPONENT] = t->cursor[DATA] = NULL;
        for (uint32_t j = 0; j < t->config.slots; j++) t->ring[j] = (struct worker_chunk){.state = CHUNK_UNSENT};
        t->unanswered = 0;
        t->repeat = t->repeat_end = t->base;
    }
    if (x->engine.io) io_clear(x->engine.io);
}

/* Ends all pending operations, as soon as each thread comes to them; the engine refuses work until it is configured
 * again. */
static void set_failure(struct inart_worker *w, int32_t status, const char *message) {
    pthread_mutex_lock(&w->mutex);
    if (!atomic_load(&w->failed)) {
        snprintf(w->failure, sizeof w->failure, "%s", message);
        w->failure_status = status;
        atomic_store(&w->failed, true);
    }
    pthread_mutex_unlock(&w->mutex);
}

__attribute__((format(printf, 3, 4))) void worker_fail(struct worker_thread *x, int32_t status, const char *format,
                                                       ...) {
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    set_failure(x->worker, status, message);
    worker_drop_parts(x);
    for (uint32_t i = 0; i < x->worker->io.threads; i++)
        if (&x->worker->threads[i] != x) engine_wake(&x->worker->threads[i].engine);
}

void worker_fail_all(struct inart_worker *w, int32_t status, const char *message) {
    set_failure(w, status, message);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        engine_enter(&w->threads[i].engine);
        worker_drop_parts(&w->threads[i]);
        engine_leave(&w->threads[i].engine);
    }
}

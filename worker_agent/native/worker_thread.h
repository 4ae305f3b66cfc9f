/* One round of an I/O thread of the worker: what has come, what may go, how long to sleep. Included by worker.c only. */
#ifndef INART_WORKER_THREAD_H
#define INART_WORKER_THREAD_H

#include "worker_receiving.h"

static void refill(struct tree *t, uint64_t now)
{
    if (now < t->tokens_at) /* read before the lock was there: no time has passed */
        return;
    if (t->packets_per_second > 0) {
        double fresh = (double)(now - t->tokens_at) * 1e-9 * t->packets_per_second;
        t->tokens = t->tokens + fresh < t->tokens_most ? t->tokens + fresh : t->tokens_most;
        t->burst = t->burst + CATCH_UP * fresh < t->tokens_wake ? t->burst + CATCH_UP * fresh : t->tokens_wake;
    } else
        t->tokens = t->burst = 1e9;
    t->tokens_at = now;
}

/* When there are tokens for a burst; small ones cost more. `now` or earlier: there are. */
static uint64_t burst_due(const struct tree *t, uint64_t now)
{
    double wanted = t->tokens_wake * 0.75 > 1 ? t->tokens_wake * 0.75 : 1;
    if (t->tokens >= wanted && t->burst >= wanted)
        return now;
    double tokens = (t->tokens_wake - t->tokens) / t->packets_per_second;
    double burst = (t->tokens_wake - t->burst) / (CATCH_UP * t->packets_per_second);
    return now + 1 + (uint64_t)((tokens > burst ? tokens : burst) * 1e9);
}

/* When there is a token for one packet. `now` or earlier: there is. */
static uint64_t token_due(const struct tree *t, uint64_t now)
{
    double tokens = (1 - t->tokens) / t->packets_per_second, burst = (1 - t->burst) / (CATCH_UP * t->packets_per_second);
    double wait = tokens > burst ? tokens : burst;
    return t->packets_per_second > 0 && wait > 0 ? now + 1 + (uint64_t)(wait * 1e9) : now;
}

static bool has_next(const struct tree *t)
{
    const struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents)
        p = p->next;
    if (p && next_of(p, EXPONENT) < limit_of(t, p))
        return true;
    p = t->cursor[DATA];
    while (p && p->sent[DATA] == p->order.data)
        p = p->next;
    return p && agreed(p, p->sent[DATA]) && next_of(p, DATA) < limit_of(t, p);
}

/* Neither the window nor tokens hold it up: there is nothing to send, or nothing whose exponents are known. */
static bool has_nothing(const struct tree *t)
{
    const struct part *later = t->cursor[EXPONENT], *p = t->cursor[DATA];
    while (later && later->sent[EXPONENT] == later->order.exponents)
        later = later->next;
    if (later && next_of(later, EXPONENT) < limit_of(t, later))
        return false;
    while (p && p->sent[DATA] == p->order.data)
        p = p->next;
    return !p || (!agreed(p, p->sent[DATA]) && (!later || next_of(p, DATA) < limit_of(t, p)));
}

/* Answers open a full window for as many packets again. Where more is under way than the round trip needs, queues hold it, and
 * it does no harm to let some answers come together: a wake-up costs as much as tens of packets. Where it is not the window that
 * holds the tree up, the next answer is waited for: data for its exponents, or the trainer for the last of a tensor; but not so
 * impatiently that each of many slow trees' answers has a wake-up to itself. */
static uint64_t answer_spacing(const struct tree *t)
{
    if (!(t->packets_per_second > 0))
        return 0;
    if (has_nothing(t))
        return (uint64_t)(t->round_trip / 8 < FEW_SECONDS * INART_NS ? t->round_trip / 8 : FEW_SECONDS * INART_NS);
    double queued = t->unanswered / t->packets_per_second * INART_NS - t->round_trip;
    double burst = t->tokens_wake / t->packets_per_second, most = (burst < FEW_SECONDS ? burst : FEW_SECONDS) * INART_NS;
    return queued <= 0 ? 0 : (uint64_t)(queued / 2 < most ? queued / 2 : most);
}

static void check_progress(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (x->worker->config.timeout_seconds <= 0 || (double)(now - t->progress_at) < x->worker->config.timeout_seconds * 1e9)
        return;
    struct part *p = part_of(t, t->base);
    fail(x, STATUS_TIMEOUT,
         "operation %lld: no progress for %.1f s on tree %u (root %s): chunk %llu, resent %u times, has no answer%s%s",
         p ? (long long)p->operation->id : -1LL, (double)(now - t->progress_at) / 1e9, t->config.tree, t->config.root,
         (unsigned long long)t->base, chunk_of(t, t->base)->resends, x->engine.io->trouble[0] ? "; last error of the interface: " : "",
         x->engine.io->trouble);
}

static int receive_all(struct io_thread *x, uint64_t now)
{
    struct io *io = x->engine.io;
    int received = 0;
    for (int rounds = 0; rounds < ROUNDS && io->ready; rounds++)
        for (unsigned source = 0; source < io->sources; source++) {
            if (!(io->ready >> source & 1))
                continue;
            int n = io_receive(io, source);
            for (int i = 0; i < n; i++) {
                const struct io_in *in = &io->in[i];
                if (!sources_have(&x->worker->sources, x->worker->any_source, in, &x->stats))
                    continue;
                for (uint32_t at = 0; at < in->bytes || !at; at += in->segment ? in->segment : 1, received++) {
                    io_fetch(in, at);
                    receive(x, in->data + at, in->bytes - at < in->segment ? in->bytes - at : in->segment, now);
                }
            }
        }
    io->ready &= (uint32_t)((1ull << io->sources) - 1);
    return received;
}

/* One round: what has come, what may go. Says how long nothing will happen by itself. */
static struct engine_sleep work(struct engine_thread *engine)
{
    struct io_thread *x = (struct io_thread *)engine;
    struct inart_worker *w = x->worker;
    struct io *io = engine->io;
    struct engine_sleep sleep = {.until = UINT64_MAX, .listen = true, .sparse = true};
    if (!io)
        return sleep;
    uint64_t now = inart_now();
    bool sparse = receive_all(x, now) < SPARSE;
    if (atomic_load(&w->failed)) {
        drop_parts(x);
        return sleep;
    }
    io_flush(io, now);
    x->rotation++;
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct tree *t = &x->trees[(i + x->rotation) % x->tree_count];
        refill(t, now);
        if (!t->parts)
            continue;
        send_late(x, t, now);
        if (burst_due(t, now) <= now || has_again(t, now)) /* what the root waits for does not wait for more to go with it */
            while (t->tokens >= 1 && t->burst >= 1 && io_room(io, t->lane) && link_due(x, t, now) <= now
                   && (send_again(x, t, now) || send_next(x, t, now))) {
            }
        /* Only lateness may be caught up with. */
        if (t->tokens > t->tokens_wake && has_nothing(t))
            t->tokens = t->tokens_wake;
    }
    io_flush(io, now);

    bool listen = false, token_wait = false;
    uint64_t token_until = UINT64_MAX, spacing = UINT64_MAX;
    for (uint32_t i = 0; i < x->tree_count && !atomic_load(&w->failed); i++) {
        struct tree *t = &x->trees[i];
        if (!t->parts)
            continue;
        check_progress(x, t, now);
        if (!t->parts)
            break;
        uint64_t until = t->progress_at + (uint64_t)(w->config.timeout_seconds * 1e9);
        if (w->config.timeout_seconds > 0 && until < sleep.until)
            sleep.until = until;
        uint64_t late = base_due(x, t, now);
        bool due = late <= now, again = has_again(t, now);
        if (!due && late < sleep.until)
            sleep.until = late;
        if (t->repeat < t->repeat_end && t->repeat_at > now && t->repeat_at < sleep.until)
            sleep.until = t->repeat_at;
        if (due || again || has_next(t)) {
            uint64_t link = link_due(x, t, now);
            until = again ? token_due(t, now) : burst_due(t, now);
            until = link > until ? link : until;
            if (until <= now) /* only for want of room */
                sleep.until = io->retry ? io->retry : now;
            else {
                token_wait = true;
                if (until < token_until)
                    token_until = until;
            }
        } else {
            listen = true;
            if (answer_spacing(t) < spacing)
                spacing = answer_spacing(t);
        }
    }
    if (io->retry && io->retry < sleep.until)
        sleep.until = io->retry;
    if (token_until < sleep.until)
        sleep.until = token_until;
    sleep.sparse = sparse;
    if (listen)
        sleep.spacing = spacing;
    if (!listen && token_wait) /* no answer lets anything go: slow trees, whose answers may come together */
        sleep.spacing = (uint64_t)(FEW_SECONDS * INART_NS);
    sleep.listen = listen || !token_wait || token_until > now + TOKEN_SLEEP || atomic_load(&w->failed);
    if (io->ready)
        sleep.until = now;
    if (now < x->lingers_until && now + LINGER < sleep.until)
        sleep.until = now + LINGER;
    return sleep;
}

/* What was submitted to a thread that had nothing to do is sent by the submitting thread: to wake that one takes longer than to send. It is
 * woken when it sleeps for longer than it may now. */
static void send_at_once(struct io_thread *x)
{
    fenv_t before;
    fegetenv(&before); /* the submitting thread may flush subnormals to zero */
    fesetenv(FE_DFL_ENV);
    engine_enter(&x->engine);
    struct engine_sleep sleep = work(&x->engine);
    bool wake = sleep.until < x->engine.asleep.until || (sleep.listen && !x->engine.asleep.listen);
    engine_leave(&x->engine);
    fesetenv(&before);
    if (wake)
        engine_wake(&x->engine);
}

#endif

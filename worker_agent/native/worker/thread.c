#include <fenv.h>

#include "congestion.h"
#include "loss.h"
#include "operations.h"
#include "pacing.h"
#include "parts.h"
#include "receive.h"
#include "send.h"
#include "thread.h"
#include "window.h"

#define TOKEN_SLEEP (20 * INART_MS) /* up to here, waiting for tokens does not listen for packets */
/* The interval at which a thread that has just had something to do looks again, so that nobody must wake it; it does so
 * for LINGERS (receive.c). */
#define LINGER (10 * INART_MS)
#define PROGRESS_PACKETS 16 /* within the time of so many at its rate a tree has an answer, also after losses */
#define PROGRESS_NEVER 1e9  /* seconds */

/* Returns how long answers may come together before the thread wakes up. Answers open a full window for as many packets
 * again. Where more is in progress than the round trip needs, queues hold it, and it does no harm to let some answers
 * come together: a wake-up costs as much as tens of packets. Where it is not the window that holds the tree up, the
 * next answer is waited for: by data for its exponents, or by the trainer for the last of a tensor; but not so
 * impatiently that each of many slow trees' answers has a wake-up to itself. */
static uint64_t answer_spacing(const struct worker_tree *t) {
    if (!(t->packets_per_second > 0)) return 0;
    if (worker_has_nothing(t))
        return (uint64_t)(t->round_trip / 8 < FEW_SECONDS * INART_NS ? t->round_trip / 8 : FEW_SECONDS * INART_NS);
    double queued = t->unanswered / t->packets_per_second * INART_NS - t->round_trip;
    double burst = t->tokens_wake / t->packets_per_second,
           most = (burst < FEW_SECONDS ? burst : FEW_SECONDS) * INART_NS;
    return queued <= 0 ? 0 : (uint64_t)(queued / 2 < most ? queued / 2 : most);
}

/* Returns when the tree's operations fail for want of progress; UINT64_MAX: never. A tree may be planned for a packet
 * in a minute: waiting until it may send the next one is no want of progress. */
static uint64_t progress_until(const struct worker_thread *x, const struct worker_tree *t) {
    double seconds = x->worker->config.timeout_seconds,
           slow = t->packets_per_second > 0 ? PROGRESS_PACKETS / t->packets_per_second : 0;
    if (seconds <= 0 || slow > PROGRESS_NEVER) return UINT64_MAX;
    return t->progress_at + (uint64_t)((seconds > slow ? seconds : slow) * 1e9);
}

static void check_progress(struct worker_thread *x, struct worker_tree *t, uint64_t now) {
    if (now < progress_until(x, t)) return;
    struct worker_part *p = part_of(t, t->base);
    worker_fail(
        x, STATUS_TIMEOUT,
        "operation %lld: no progress for %.1f s on tree %u (root %s): chunk %llu, resent %u times, has no answer%s%s",
        p ? (long long)p->operation->id : -1LL, (double)(now - t->progress_at) / 1e9, t->config.tree, t->config.root,
        (unsigned long long)t->base, chunk_of(t, t->base)->resends,
        x->engine.io->trouble[0] ? "; last error of the interface: " : "", x->engine.io->trouble);
}

/* Lets all trees send what they have and may; another one begins each time. */
static void send_all(struct worker_thread *x, uint64_t now) {
    struct io *io = x->engine.io;
    io_flush(io, now);
    x->rotation++;
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct worker_tree *t = &x->trees[(i + x->rotation) % x->tree_count];
        pacing_refill(t, now);
        if (!t->parts) continue;
        worker_send_late(x, t, now);
        if (pacing_burst_due(t, now) <= now ||
            worker_has_again(t, now)) /* what the root waits for does not wait for more to go with it */
            while (t->tokens >= 1 && t->burst >= 1 && io_room(io, t->lane) && pacing_link_due(x, t, now) <= now &&
                   (worker_send_again(x, t, now) || worker_send_next(x, t, now))) {
            }
        /* A tree may catch up only with its own lateness, not with time in which it had nothing to send. */
        if (t->tokens > t->tokens_wake && worker_has_nothing(t)) t->tokens = t->tokens_wake;
    }
    io_flush(io, now);
}

/* What the trees of a thread wait for. `until` is the end of the first timer. `answers`: some tree waits for answers,
 * which may come together for `spacing`. `tokens`: some tree waits for tokens, the first until `tokens_until`. */
struct waits {
    uint64_t until, tokens_until, spacing;
    bool answers, tokens;
};

static void sooner(uint64_t *until, uint64_t at) {
    if (at < *until) *until = at;
}

/* Adds to `waits` what a tree waits for that has parts in progress. */
static void wait_of(struct worker_thread *x, struct worker_tree *t, uint64_t now, struct waits *waits) {
    struct io *io = x->engine.io;
    sooner(&waits->until, progress_until(x, t));
    uint64_t late = worker_base_due(x, t, now);
    bool due = late <= now, again = worker_has_again(t, now);
    if (!due) sooner(&waits->until, late);
    if (t->repeat < t->repeat_end && t->repeat_at > now) sooner(&waits->until, t->repeat_at);
    if (!due && !again && !worker_has_next(t)) {
        waits->answers = true;
        sooner(&waits->spacing, answer_spacing(t));
        return;
    }
    uint64_t link = pacing_link_due(x, t, now), until = again ? pacing_token_due(t, now) : pacing_burst_due(t, now);
    until = link > until ? link : until;
    if (until <= now) { /* only for want of room */
        waits->until = io->retry ? io->retry : now;
        return;
    }
    waits->tokens = true;
    sooner(&waits->tokens_until, until);
    if (congestion_limits(t)) { /* the time until answers are heard must not count as time in queues */
        waits->answers = true;
        sooner(&waits->spacing, (uint64_t)(t->congestion.round_trip / 16));
    }
}

struct engine_sleep worker_round(struct engine_thread *engine) {
    struct worker_thread *x = (struct worker_thread *)engine;
    struct inart_worker *w = x->worker;
    struct io *io = engine->io;
    struct engine_sleep sleep = {.until = UINT64_MAX, .listen = true, .sparse = true};
    if (!io) return sleep;
    uint64_t now = inart_now();
    bool sparse = engine_receive(engine, worker_receive, &w->sources, w->any_source, &x->stats, false, now) < SPARSE;
    if (atomic_load(&w->failed)) {
        worker_drop_parts(x);
        return sleep;
    }
    send_all(x, now);
    struct waits waits = {.until = UINT64_MAX, .tokens_until = UINT64_MAX, .spacing = UINT64_MAX};
    for (uint32_t i = 0; i < x->tree_count && !atomic_load(&w->failed); i++) {
        struct worker_tree *t = &x->trees[i];
        if (!t->parts) continue;
        check_progress(x, t, now);
        if (!t->parts) break;
        wait_of(x, t, now, &waits);
    }
    sleep.until = waits.until;
    if (io->retry) sooner(&sleep.until, io->retry);
    sooner(&sleep.until, waits.tokens_until);
    sleep.sparse = sparse;
    if (waits.answers) sleep.spacing = waits.spacing;
    if (!waits.answers && waits.tokens) /* no answer lets anything go: slow trees, whose answers may come together */
        sleep.spacing = (uint64_t)(FEW_SECONDS * INART_NS);
    sleep.listen = waits.answers || !waits.tokens || waits.tokens_until > now + TOKEN_SLEEP || atomic_load(&w->failed);
    if (io->ready) sleep.until = now;
    if (now < x->lingers_until) sooner(&sleep.until, now + LINGER);
    return sleep;
}

void worker_send_at_once(struct worker_thread *x) {
    fenv_t before;
    fegetenv(&before); /* the submitting thread may flush subnormals to zero */
    fesetenv(FE_DFL_ENV);
    engine_enter(&x->engine);
    struct engine_sleep sleep = worker_round(&x->engine);
    bool wake = sleep.until < x->engine.asleep.until || (sleep.listen && !x->engine.asleep.listen);
    engine_leave(&x->engine);
    fesetenv(&before);
    if (wake) engine_wake(&x->engine);
}

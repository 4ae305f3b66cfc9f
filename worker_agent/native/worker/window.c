#include "window.h"
#include "congestion.h"
#include "pacing.h"
#include "parts.h"

#define WINDOW_FIRST 4 /* chunks under way, at least, when nothing is known of the tree */

uint64_t window_limit(const struct worker_tree *t, const struct worker_part *p) {
    uint64_t most = t->base + inart_window(&p->operation->layout, t->config.slots);
    /* Results that this worker lacks are at the root: their chunks are not in progress any more. */
    uint64_t gently = (t->complete > t->base ? t->complete : t->base) + t->window;
    if (p->operation->layout.kind != INART_ALL_REDUCE) return most;
    uint64_t marked = !congestion_limits(t)      ? UINT64_MAX
                      : t->congestion.window < 2 ? 2
                                                 : (uint64_t)t->congestion.window;
    if (marked < t->window) gently = gently - t->window + marked;
    return gently < most ? gently : most;
}

uint32_t window_first(const struct worker_tree *t) {
    double leaves =
        t->packets_per_second * BURST_SECONDS; /* many slow trees collect more, but should not all begin with as many */
    uint32_t window =
        leaves > WINDOW_FIRST ? (uint32_t)(leaves < t->tokens_wake ? leaves : t->tokens_wake) : WINDOW_FIRST;
    return window < t->config.slots ? window : t->config.slots;
}

void window_cut(struct worker_tree *t, uint64_t now) {
    if (now - t->window_cut < (uint64_t)t->round_trip) return;
    congestion_lost(t);
    double least = 2 * t->packets_per_second * t->rtt_lowest / INART_NS + t->tokens_wake;
    uint32_t window = least < t->config.slots ? (uint32_t)least : t->config.slots, first = window_first(t);
    window = window > t->unanswered / 2 ? window : t->unanswered / 2;
    t->window_quick = window > first ? window : first;
    t->window = t->window < t->window_quick ? t->window : t->window_quick;
    t->answers_since = 0;
    t->window_cut = now;
}

#include "pacing.h"
#include "congestion.h"
#include "parts.h"
#include "window.h"

#define FEW_SECONDS_SHARED 0.001 /* ... or in this, of a worker that shares its link with a parameter server; */
#define FEW_SHARED 2             /* ... of such a worker so many in any case */

struct inart_uplink *pacing_uplink(const struct worker_thread *x, const struct worker_tree *t) {
    return t->config.here ? NULL : x->engine.uplink;
}

uint64_t pacing_link_due(const struct worker_thread *x, const struct worker_tree *t, uint64_t now) {
    return uplink_due(pacing_uplink(x, t), x->engine.io->frame_bytes, now);
}

/* Returns the packets per second that may leave now; 0: any number. */
static double pace_of(const struct worker_tree *t) {
    if (!congestion_limits(t)) return t->packets_per_second;
    double pace = congestion_pace(t);
    return t->packets_per_second > 0 && t->packets_per_second < pace ? t->packets_per_second : pace;
}

void pacing_refill(struct worker_tree *t, uint64_t now) {
    if (now < t->tokens_at) /* read before the lock was there: no time has passed */
        return;
    double pace = pace_of(t);
    if (pace > 0) {
        double fresh = (double)(now - t->tokens_at) * 1e-9 * pace;
        t->tokens = t->tokens + fresh < t->tokens_most ? t->tokens + fresh : t->tokens_most;
        t->burst = t->burst + CATCH_UP * fresh < t->tokens_wake ? t->burst + CATCH_UP * fresh : t->tokens_wake;
    } else
        t->tokens = t->burst = 1e9;
    t->tokens_at = now;
}

uint64_t pacing_burst_due(const struct worker_tree *t, uint64_t now) {
    double wake = t->tokens_wake, pace = pace_of(t);
    if (congestion_limits(t) && wake > t->congestion.window / 4) wake = t->congestion.window / 4;
    if (wake < 1) wake = 1;
    double wanted = wake * 0.75 > 1 ? wake * 0.75 : 1;
    if (t->tokens >= wanted && t->burst >= wanted) return now;
    double tokens = (wake - t->tokens) / pace, burst = (wake - t->burst) / (CATCH_UP * pace);
    return now + 1 + (uint64_t)((tokens > burst ? tokens : burst) * 1e9);
}

uint64_t pacing_token_due(const struct worker_tree *t, uint64_t now) {
    double pace = pace_of(t), tokens = (1 - t->tokens) / pace, burst = (1 - t->burst) / (CATCH_UP * pace);
    double wait = tokens > burst ? tokens : burst;
    return pace > 0 && wait > 0 ? now + 1 + (uint64_t)(wait * 1e9) : now;
}

double pacing_packet_mbits(uint32_t values) { return 8e-6 * INART_FRAME_BYTES((double)values); }

double inart_worker_bucket(double rate_mbps, double total_mbps, uint32_t slots, uint32_t values, uint32_t shared) {
    double wake = rate_mbps / pacing_packet_mbits(values) * BURST_SECONDS,
           most = (double)io_segments(values) * BURST_MESSAGES;
    /* Many slow trees would wake the thread for every packet. */
    double few = total_mbps / pacing_packet_mbits(values) * (shared ? FEW_SECONDS_SHARED : FEW_SECONDS);
    few = few < FEW ? few : FEW;
    few = shared && few < FEW_SHARED ? FEW_SHARED : few;
    few = few < slots / 4.0 ? few : slots / 4.0;
    wake = wake > few ? wake : few;
    return wake < 1 ? 1 : wake > most ? most : wake;
}

#include "pacing.h"
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

void pacing_refill(struct worker_tree *t, uint64_t now) {
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

uint64_t pacing_burst_due(const struct worker_tree *t, uint64_t now) {
    double wanted = t->tokens_wake * 0.75 > 1 ? t->tokens_wake * 0.75 : 1;
    if (t->tokens >= wanted && t->burst >= wanted) return now;
    double tokens = (t->tokens_wake - t->tokens) / t->packets_per_second;
    double burst = (t->tokens_wake - t->burst) / (CATCH_UP * t->packets_per_second);
    return now + 1 + (uint64_t)((tokens > burst ? tokens : burst) * 1e9);
}

uint64_t pacing_token_due(const struct worker_tree *t, uint64_t now) {
    double tokens = (1 - t->tokens) / t->packets_per_second,
           burst = (1 - t->burst) / (CATCH_UP * t->packets_per_second);
    double wait = tokens > burst ? tokens : burst;
    return t->packets_per_second > 0 && wait > 0 ? now + 1 + (uint64_t)(wait * 1e9) : now;
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

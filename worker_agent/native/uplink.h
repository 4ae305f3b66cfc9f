/* The link of a host on which a worker and a parameter server run: what both send over it counts here, so that together
 * they never send more than it carries. Each packet takes its time of the link, one after the other, as if it were sent
 * at once. New results always go, as the plan has room for them; contributions, and whatever is sent once more, wait
 * until the link has come to them. */
#ifndef INART_UPLINK_H
#define INART_UPLINK_H

#include <stdatomic.h>
#include <stdint.h>

#include "io.h"

/* The link's state, shared with worker_agent/io_options.py, which reads the fields here. */
struct inart_uplink {
    _Atomic uint64_t free_at; /* CLOCK_MONOTONIC: when all that was sent so far is on the wire */
    double ns_a_byte;
};

#define UPLINK_AHEAD (INART_NS / 250) /* of the link's time that may be taken in advance, */
#define UPLINK_PACKETS 4              /* ... and packets at least: a link's own queue holds more */

/* Takes note that packets of so many bytes in all are sent over the link. */
static inline void uplink_take(struct inart_uplink *u, uint32_t bytes, uint64_t now) {
    if (!u) return;
    uint64_t before = atomic_load(&u->free_at), after;
    do after = (before > now ? before : now) + (uint64_t)(u->ns_a_byte * bytes);
    while (!atomic_compare_exchange_weak(&u->free_at, &before, after));
}

/* Returns when a packet of so many bytes that can wait may be sent; `now` or earlier: at once. */
static inline uint64_t uplink_due(const struct inart_uplink *u, uint32_t bytes, uint64_t now) {
    if (!u) return now;
    uint64_t packets = (uint64_t)(UPLINK_PACKETS * u->ns_a_byte * bytes),
             ahead = packets > UPLINK_AHEAD ? packets : UPLINK_AHEAD;
    uint64_t free_at = atomic_load(&u->free_at);
    return free_at > now + ahead ? free_at - ahead : now;
}

#endif

/* Meters: colour-blind markers of two rates and three colours (RFC 2698), as bmv2's, and of a single rate (RFC 2697).
 *
 * Tokens are counted as in bmv2: those that came in since the meter was configured are the time in microseconds times
 * the rate, rounded down, so that nothing is lost to rounding however often the meter is executed. */
#ifndef SS_METER_H
#define SS_METER_H

#include <stdint.h>

enum { SS_GREEN = 0, SS_YELLOW = 1, SS_RED = 2 };
enum { SS_METER_GREEN = 0, SS_METER_TWO_RATES = 1, SS_METER_ONE_RATE = 2 };

struct ss_counter {
    uint64_t packets, bytes;
};

/* One token bucket: `rate` tokens per second, at most `burst`. `seen`: tokens that had come in at the last access. */
struct ss_bucket {
    uint64_t rate, burst, tokens, seen;
};

struct ss_meter {
    uint32_t mode;
    uint64_t start_us;      /* `seen` counts from this time */
    struct ss_bucket first; /* peak rate; for a single rate: the committed bucket */
    /* committed rate; for a single rate: the excess bucket, filled by the first one's overflow */
    struct ss_bucket second;
    struct ss_counter colours[3];
};

/* tokens after which counting starts anew: doubles are exact below it */
#define SS_METER_REBASE (UINT64_C(1) << 50)

/* Adds the tokens that came in since the last access; returns those that did not fit. */
static inline uint64_t ss_bucket_fill(struct ss_bucket *b, uint64_t elapsed_us) {
    double in = (double)elapsed_us * ((double)b->rate / 1e6);
    uint64_t seen = in < 0x1p62 ? (uint64_t)in : UINT64_C(1) << 62;
    uint64_t more = seen > b->seen ? seen - b->seen : 0;
    if (seen > b->seen) b->seen = seen;
    uint64_t room = b->burst - b->tokens;
    if (more <= room) {
        b->tokens += more;
        return 0;
    }
    b->tokens = b->burst;
    return more - room;
}

static inline uint32_t ss_meter_colour(struct ss_meter *m, uint64_t now_us, uint64_t amount) {
    if (m->mode == SS_METER_GREEN) return SS_GREEN;
    uint64_t elapsed = now_us > m->start_us ? now_us - m->start_us : 0;
    uint64_t over = ss_bucket_fill(&m->first, elapsed);
    if (m->mode == SS_METER_ONE_RATE) {
        uint64_t room = m->second.burst - m->second.tokens;
        m->second.tokens += over < room ? over : room;
    }
    uint32_t colour;
    if (m->first.tokens < amount) {
        colour = SS_RED;
        if (m->mode == SS_METER_ONE_RATE && m->second.tokens >= amount) {
            m->second.tokens -= amount;
            colour = SS_YELLOW;
        }
    } else {
        m->first.tokens -= amount;
        colour = SS_GREEN;
        /* a red packet does not access this bucket; tokens that come in meanwhile are not lost */
        if (m->mode == SS_METER_TWO_RATES) {
            ss_bucket_fill(&m->second, elapsed);
            if (m->second.tokens < amount)
                colour = SS_YELLOW;
            else
                m->second.tokens -= amount;
        }
    }
    if (m->first.seen >= SS_METER_REBASE) {
        if (m->mode == SS_METER_TWO_RATES) ss_bucket_fill(&m->second, elapsed);
        m->first.seen = m->second.seen = 0;
        m->start_us = now_us;
    }
    return colour;
}

/* Returns the colour of a packet; `amount`: packets or bytes that it takes from the meter. */
static inline uint32_t ss_meter_execute(struct ss_meter *m, uint64_t now_us, uint64_t amount, uint64_t bytes) {
    uint32_t colour = ss_meter_colour(m, now_us, amount);
    m->colours[colour].packets++;
    m->colours[colour].bytes += bytes;
    return colour;
}

#endif

/* Writes a packet's words past the caches and computes their check word in one pass: the same as stream.h and check.h
 * one after the other give. The root does it with each sum that a switch has made. */
#ifndef INART_CHECKED_STREAM_H
#define INART_CHECKED_STREAM_H

#include "check.h"
#include "stream.h"

#ifdef CHECK_VECTORS
struct checked_streamer {
    const uint32_t *wire;
    uint32_t *to;
};

CHECK_INLINE void checked_stream_step(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                      const void *with) {
    const struct checked_streamer *q = with;
    check_vector v = check_load(q->wire + j);
    (void)last; /* the check word's coefficient is 0 */
    check_stream(q->to + j, v);
    check_take(s, low, high, check_swap(v), j);
}

CHECK_PASS uint64_t checked_stream_pass(const struct check *k, const uint32_t *wire, uint32_t *to) {
    const struct checked_streamer q = {wire, to};
    const uint64_t offset = k->offset; /* before what is written, which could be *k for all that compilers know */
    return (uint64_t)check_pass(k->low, k->high, k->wide, k->values, checked_stream_step, &q) + offset;
}
#endif

/* Does the same as inart_stream with a packet's words, and returns check_sum of them. */
static inline uint64_t checked_stream(const struct check *k, const uint32_t *restrict wire, uint32_t *restrict to) {
#ifdef CHECK_VECTORS
    if (k->values % CHECK_WIDTH == 0 && (uintptr_t)to % sizeof(check_vector) == 0)
        return checked_stream_pass(k, wire, to);
#endif
    inart_stream(to, wire, k->values * sizeof *wire);
    return check_sum(k, wire);
}

#endif

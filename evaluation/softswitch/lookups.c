/* Runs frames through one device, without ports: what parser, table and deparser cost. Time is CPU time of this thread,
 * so that others on the machine do not count. */
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef int64_t process(void *device, uint32_t port, const uint8_t *data, uint32_t len, uint8_t **out);

static uint64_t now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* `n` frames of `len` bytes one after the other, again and again for `ns`; returns the frames that were run. */
uint64_t run(process *function, void *device, const uint8_t *frames, uint32_t n, uint32_t len, uint64_t ns,
             uint64_t *answered) {
    uint64_t end = now() + ns, done = 0;
    *answered = 0;
    while (now() < end)
        for (uint32_t i = 0; i < n; i++, done++) {
            uint8_t *out = NULL;
            int64_t left = function(device, 1, frames + (size_t)i * len, len, &out);
            if (left > 0) *answered += (uint64_t)left;
            free(out);
        }
    return done;
}

/* Gives one frame to a device again and again, as fast as a thread can, and notes a 32-bit number of each answer. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t process(void *device, uint32_t port, const uint8_t *data, uint32_t len, uint8_t **out);

/* `answers` has room for n numbers; returns how many answers there were that have one number in all `values` places
 * behind the first 18 bytes. */
uint32_t run(process *function, void *device, const uint8_t *frame, uint32_t len, uint32_t n, uint32_t values,
             uint32_t *answers) {
    uint32_t alike = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *out = NULL;
        if (function(device, 1, frame, len, &out) == 1) {
            const uint8_t *at = out + 8 + 18; /* a frame's port and length are before it */
            uint32_t other = 0;
            for (uint32_t v = 1; v < values; v++) other |= (uint32_t)memcmp(at, at + 4 * v, 4);
            alike += other == 0;
            answers[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
        }
        free(out);
    }
    return alike;
}

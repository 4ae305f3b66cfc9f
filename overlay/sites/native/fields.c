/* Integers of few bits in words of 64 bits, for sums that sites add word by word (overlay/sites/packing.py).
 *
 * A word holds as many fields of `width` bits as fit: word = q[0] + q[1] 2^width + q[2] 2^(2 width) + ..., all modulo
 * 2^64, with signed q. Sums of such words are such words of the sums, as long as each field's sum fits into a signed
 * number of `width` bits; borrows between fields are undone when the fields are taken apart, the lowest first.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* The largest magnitude of each block of values. A NaN makes its block's a NaN. */
void fields_scales(const float *values, size_t count, size_t block, float *scales) {
    for (size_t first = 0, b = 0; first < count; first += block, b++) {
        size_t end = first + block < count ? first + block : count;
        float most = 0.0f;
        int bad = 0;
        for (size_t i = first; i < end; i++) {
            float magnitude = fabsf(values[i]);
            most = magnitude > most ? magnitude : most;
            bad |= !(magnitude <= INFINITY);
        }
        scales[b] = bad ? NAN : most;
    }
}

/* The sum of the squares. It is 0 only if all values are 0, as the square of any float is a positive double. */
double fields_squares(const float *values, size_t count) {
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    size_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (size_t k = 0; k < 4; k++) sums[k] += (double)values[i + k] * values[i + k];
    for (; i < count; i++) sums[0] += (double)values[i] * values[i];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static float quantum_of(float scale, float levels) {
    float quantum = scale / levels;
    return isfinite(scale) && quantum > 0.0f ? quantum : 0.0f;
}

/* Rounds fraction * values to whole quanta of their blocks (a scale is `levels` quanta), packs them, and writes what
 * rounding has left out of `values` to `left`: nothing for a fraction of 0. */
void fields_pack(const float *values, size_t count, size_t block, const float *scales, float fraction, float levels,
                 int width, uint64_t *words, float *left) {
    size_t fields = 64 / (size_t)width, n = 0;
    uint64_t word = 0;
    size_t field = 0;
    for (size_t first = 0, b = 0; first < count; first += block, b++) {
        size_t end = first + block < count ? first + block : count;
        float quantum = quantum_of(scales[b], levels);
        int counts = fraction > 0.0f && quantum > 0.0f; /* else nothing of the block is in the mean, now or later */
        for (size_t i = first; i < end; i++) {
            float whole = counts ? rintf(fraction * values[i] / quantum) : 0.0f;
            whole = whole > levels ? levels : whole < -levels ? -levels : whole;
            left[i] = counts ? values[i] - whole * quantum / fraction : 0.0f;
            word += (uint64_t)(int64_t)whole << (field * (size_t)width);
            if (++field == fields) {
                words[n++] = word;
                word = 0;
                field = 0;
            }
        }
    }
    if (field) words[n] = word;
}

/* Takes sums apart: values = the fields times the quanta of their blocks; NaN where a scale is not finite. */
void fields_unpack(const uint64_t *words, size_t count, size_t block, const float *scales, float levels, int width,
                   float *values) {
    size_t fields = 64 / (size_t)width, n = 0;
    uint64_t word = 0;
    size_t field = fields;
    int spare = 64 - width;
    for (size_t first = 0, b = 0; first < count; first += block, b++) {
        size_t end = first + block < count ? first + block : count;
        float quantum = isfinite(scales[b]) ? quantum_of(scales[b], levels) : NAN;
        for (size_t i = first; i < end; i++) {
            if (field == fields) {
                word = words[n++];
                field = 0;
            }
            int64_t whole = (int64_t)(word << spare) >> spare;
            word = (word - (uint64_t)whole) >> width;
            values[i] = (float)whole * quantum;
            field++;
        }
    }
}

/* The engine's own conversions, callable one by one: those of fields, and for their benchmark those of tensors. */
#define _GNU_SOURCE
#include "numbers.h"
#include "fields.h"
#include "packet.h"

#include <stdlib.h>

/* As fields in words: `residual` NULL, or what does not travel. */
void numbers_fields_quantise(const struct inart_fields *f, const void *data, size_t n, size_t words, int dtype,
                             int32_t biased, uint32_t position, uint32_t *wire, float *residual) {
    float scratch[INART_MAX_VALUES * INART_MOST_FIELDS];
    const float *x = inart_load(data, n, dtype, scratch);
    inart_fields_quantise(f, x, n, words, biased, position, wire);
    if (residual) inart_fields_residual(f, x, n, biased, position, residual);
}

void numbers_fields_dequantise(const struct inart_fields *f, const uint32_t *wire, size_t n, size_t words,
                               int32_t biased, int mean, int dtype, void *data) {
    float scratch[INART_MAX_VALUES * INART_MOST_FIELDS];
    inart_fields_dequantise(f, wire, n, words, biased, mean ? (float)f->workers : 1.0f, scratch);
    inart_store(scratch, n, dtype, data);
}

struct inart_fields numbers_fields_of(uint32_t count, uint32_t workers, int stochastic, uint64_t seed,
                                      uint32_t worker) {
    return inart_fields_of(count, workers, stochastic, seed, worker);
}

size_t numbers_fields_size(void) { return sizeof(struct inart_fields); }

/* ---- whole tensors, as the engine goes through them: chunk by chunk ---- */

void numbers_exponent_all(const float *x, size_t chunks, size_t values, int32_t *exponents) {
    for (size_t c = 0; c < chunks; c++) exponents[c] = inart_exponent(x + c * values, values);
}

void numbers_quantise_all(const float *x, size_t chunks, size_t values, int32_t biased, int workers, uint32_t *wire) {
    for (size_t c = 0; c < chunks; c++)
        inart_quantise(x + c * values, values, values, biased, (uint32_t)workers, wire + c * values);
}

void numbers_dequantise_all(const uint32_t *wire, size_t chunks, size_t values, int32_t biased, int workers, float *x) {
    for (size_t c = 0; c < chunks; c++)
        inart_dequantise(wire + c * values, values, biased, (uint32_t)workers, 1.0f, x + c * values);
}

/* From floats to packets in a super-frame's buffer, over and over: what the engine does before the system call.
 * `quantise` 0: the values are integers already and are only put in order. */
int numbers_packetise(const void *data, size_t chunks, size_t values, int32_t biased, int workers, int quantise) {
    size_t bytes = INART_PAYLOAD_BYTES(values), packets = 60;
    uint8_t *memory = aligned_alloc(64, (packets * bytes + 63) & ~(size_t)63);
    if (!memory) return -1;
    for (size_t c = 0; c < chunks; c++) {
        struct inart_header h = {.job = 1, .label = 2, .epoch = 3, .sequence = (uint32_t)c};
        uint8_t *packet = memory + c % packets * bytes;
        inart_write_header(packet, &h);
        uint32_t *restrict wire = (uint32_t *)inart_values(packet);
        if (quantise)
            inart_quantise((const float *)data + c * values, values, values, biased, (uint32_t)workers, wire);
        else {
            const uint32_t *restrict integers = (const uint32_t *)data + c * values;
            for (size_t i = 0; i < values; i++) wire[i] = __builtin_bswap32(integers[i]);
        }
        __asm__ volatile("" : : "r"(wire) : "memory"); /* nobody reads the packet: it is written all the same */
    }
    free(memory);
    return 0;
}

/* The engine's own conversions, callable one by one: for their benchmark and for tests against worker_agent/fixedpoint.py. */
#define _GNU_SOURCE
#include "numbers.h"
#include "packet.h"

#include <stdlib.h>

int32_t numbers_exponent(const void *data, size_t n, int dtype)
{
    float scratch[INART_MAX_VALUES];
    return inart_exponent(inart_load(data, n, dtype, scratch), n);
}

void numbers_quantise(const void *data, size_t n, int dtype, int32_t biased, int workers, uint32_t *wire)
{
    float scratch[INART_MAX_VALUES];
    inart_quantise(inart_load(data, n, dtype, scratch), n, n, biased, (uint32_t)workers, wire);
}

void numbers_dequantise(const uint32_t *wire, size_t n, int32_t biased, int workers, int mean, int dtype, void *data)
{
    float scratch[INART_MAX_VALUES];
    inart_dequantise(wire, n, biased, (uint32_t)workers, mean ? (float)workers : 1.0f, scratch);
    inart_store(scratch, n, dtype, data);
}

/* ---- whole tensors, as the engine goes through them: chunk by chunk ---- */

void numbers_exponent_all(const float *x, size_t chunks, size_t values, int32_t *exponents)
{
    for (size_t c = 0; c < chunks; c++)
        exponents[c] = inart_exponent(x + c * values, values);
}

void numbers_quantise_all(const float *x, size_t chunks, size_t values, int32_t biased, int workers, uint32_t *wire)
{
    for (size_t c = 0; c < chunks; c++)
        inart_quantise(x + c * values, values, values, biased, (uint32_t)workers, wire + c * values);
}

void numbers_dequantise_all(const uint32_t *wire, size_t chunks, size_t values, int32_t biased, int workers, float *x)
{
    for (size_t c = 0; c < chunks; c++)
        inart_dequantise(wire + c * values, values, biased, (uint32_t)workers, 1.0f, x + c * values);
}

/* From floats to packets in a super-frame's buffer, over and over: what the engine does before the system call.
 * `quantise` 0: the values are integers already and are only put in order. */
int numbers_packetise(const void *data, size_t chunks, size_t values, int32_t biased, int workers, int quantise)
{
    size_t bytes = INART_PAYLOAD_BYTES(values), packets = 60;
    uint8_t *memory = aligned_alloc(64, (packets * bytes + 63) & ~(size_t)63);
    if (!memory)
        return -1;
    for (size_t c = 0; c < chunks; c++) {
        struct inart_header h = {.job = 1, .label = 2, .epoch = 3, .sequence = (uint32_t)c};
        uint8_t *packet = memory + c % packets * bytes;
        inart_write_header(packet, &h);
        uint32_t *restrict wire = (uint32_t *)inart_values(packet);
        if (quantise)
            inart_quantise((const float *)data + c * values, values, values, biased, (uint32_t)workers, wire);
        else {
            const uint32_t *restrict integers = (const uint32_t *)data + c * values;
            for (size_t i = 0; i < values; i++)
                wire[i] = __builtin_bswap32(integers[i]);
        }
        __asm__ volatile("" : : "r"(wire) : "memory"); /* nobody reads the packet: it is written all the same */
    }
    free(memory);
    return 0;
}

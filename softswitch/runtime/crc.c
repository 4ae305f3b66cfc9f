/* The parameters of a program's crc16_custom and crc32_custom calculations, which the host may change. */
#include <errno.h>
#include <stdlib.h>

#include "runtime.h"
#include "ss_crc.h"

/* Gives all checks their first parameters: those of CRC-16/ARC and CRC-32 of IEEE 802.3, as in bmv2. */
bool ss_crcs_init(struct ss_state *state, const struct ss_program *program) {
    state->crcs = calloc(program->n_crcs + 1, sizeof *state->crcs);
    for (uint32_t i = 0; state->crcs && i < program->n_crcs; i++) {
        if (program->crcs[i] == 16)
            ss_crc_make(&state->crcs[i], 16, 0x8005, 0, 0, true, true);
        else
            ss_crc_make(&state->crcs[i], 32, 0x04c11db7u, UINT32_MAX, UINT32_MAX, true, true);
    }
    return state->crcs != NULL;
}

/* Changes the parameters of a calculation between two packets. `reflect` has the bits 1 (the data's bytes) and 2 (the
 * remainder). Returns 0, or -EINVAL. */
SS_API int ss_crc_set(struct ss_device *device, uint32_t crc, uint32_t polynomial, uint32_t initial, uint32_t final_xor,
                      uint32_t reflect) {
    ss_thread_lock(device->thread);
    bool there = device->program && crc < device->program->n_crcs;
    if (there)
        ss_crc_make(&device->state.crcs[crc], device->program->crcs[crc], polynomial, initial, final_xor, reflect & 1,
                    reflect & 2);
    ss_thread_unlock(device->thread);
    return there ? 0 : -EINVAL;
}

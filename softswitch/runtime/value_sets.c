/* Parser value sets: tables without actions, which are looked up as fast, and replaced as a whole. */
#include <errno.h>
#include <stdlib.h>

#include "runtime.h"

static bool make(struct ss_table *table, uint32_t words) {
    struct ss_table_info info = {.key_words = words, .size = UINT32_MAX};
    return ss_table_init(table, &info);
}

bool ss_value_sets_init(struct ss_state *state, const struct ss_program *program) {
    state->value_sets = calloc(program->n_value_sets + 1, sizeof *state->value_sets);
    for (uint32_t i = 0; state->value_sets && i < program->n_value_sets; i++)
        if (!make(&state->value_sets[i], program->value_sets[i])) return false;
    return state->value_sets != NULL;
}

void ss_value_sets_free(struct ss_state *state, const struct ss_program *program) {
    for (uint32_t i = 0; state->value_sets && i < program->n_value_sets; i++) ss_table_clear(&state->value_sets[i]);
    free(state->value_sets);
    state->value_sets = NULL;
}

/* Replaces a set's content. Each value has a key, then a mask, each as long as the set's key; a value may occur twice.
 * Returns 0, -ENODEV: no program, or -ENOMEM. */
SS_API int ss_value_set_write(struct ss_device *device, uint32_t set, const uint64_t *values, uint32_t n) {
    struct ss_table table;
    ss_thread_lock(device->thread);
    int result = device->program && set < device->program->n_value_sets ? 0 : -ENODEV;
    uint32_t words = result == 0 ? device->program->value_sets[set] : 0;
    if (result == 0 && !make(&table, words)) result = -ENOMEM;
    if (result == 0) {
        for (uint32_t i = 0; result == 0 && i < n; i++, values += 2 * words) {
            struct ss_entry *entry;
            result = ss_table_add(&table, values, values + words, NULL, 0, i, &entry);
            if (result == -EEXIST) result = 0;
        }
        if (result == 0) {
            struct ss_table old = device->state.value_sets[set];
            device->state.value_sets[set] = table;
            table = old;
        }
        ss_table_clear(&table);
    }
    ss_thread_unlock(device->thread);
    return result;
}

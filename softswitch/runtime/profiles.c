/* Action profiles: members, and the choices among them that table entries point to. The host numbers members and
 * choices, and knows which entries use which; each change is atomic for packets. */
#include <errno.h>
#include <stdlib.h>

#include "runtime.h"

#define MOST (1u << 26) /* most members or choices of a profile */

bool ss_profiles_init(struct ss_state *state, const struct ss_program *program) {
    state->profiles = calloc(program->n_profiles + 1, sizeof *state->profiles);
    for (uint32_t i = 0; state->profiles && i < program->n_profiles; i++)
        state->profiles[i].params_bytes = program->profiles[i];
    return state->profiles != NULL;
}

void ss_profiles_free(struct ss_state *state, const struct ss_program *program) {
    for (uint32_t i = 0; state->profiles && i < program->n_profiles; i++) {
        struct ss_profile *profile = &state->profiles[i];
        for (uint32_t k = 0; k < profile->n_members; k++) free(profile->members[k]);
        for (uint32_t k = 0; k < profile->n_choices; k++) free(profile->choices[k]);
        free(profile->members);
        free(profile->choices);
    }
    free(state->profiles);
    state->profiles = NULL;
}

static struct ss_profile *profile_of(struct ss_device *device, uint32_t profile) {
    return device->program && profile < device->program->n_profiles ? &device->state.profiles[profile] : NULL;
}

/* Makes the array of pointers long enough for index `at`. Returns false without memory. */
static bool reserve(void ***array, uint32_t *n, uint32_t at) {
    if (at < *n) return true;
    uint32_t size = *n ? *n : 16;
    while (size <= at) size *= 2;
    void **larger = at < MOST ? realloc(*array, size * sizeof *larger) : NULL;
    if (!larger) return false;
    memset(larger + *n, 0, (size - *n) * sizeof *larger);
    *array = larger;
    *n = size;
    return true;
}

/* Makes or changes member `number`. Returns 0, -ENODEV: no program, -EINVAL, or -ENOMEM. */
SS_API int ss_member_set(struct ss_device *device, uint32_t profile, uint32_t number, uint32_t action,
                         const uint8_t *params, uint32_t params_len) {
    ss_thread_lock(device->thread);
    struct ss_profile *p = profile_of(device, profile);
    int result = !p ? -ENODEV : params_len > p->params_bytes ? -EINVAL : 0;
    if (result == 0 && !reserve((void ***)&p->members, &p->n_members, number)) result = -ENOMEM;
    if (result == 0 && !p->members[number]) {
        size_t size = (sizeof(struct ss_member) + p->params_bytes + 15) & ~(size_t)15;
        p->members[number] = aligned_alloc(16, size);
        if (!p->members[number]) result = -ENOMEM;
    }
    if (result == 0) {
        p->members[number]->action = action;
        memset(p->members[number]->params, 0, p->params_bytes);
        memcpy(p->members[number]->params, params, params_len);
    }
    ss_thread_unlock(device->thread);
    return result;
}

/* Makes or changes choice `number` among `n` members. Returns 0, -ENODEV: no program, -ENOENT: no such member, or
 * -ENOMEM. */
SS_API int ss_choice_set(struct ss_device *device, uint32_t profile, uint32_t number, const uint32_t *members,
                         uint32_t n) {
    struct ss_choice *choice = malloc(sizeof *choice + n * sizeof *choice->members);
    if (!choice) return -ENOMEM;
    choice->n = n;
    ss_thread_lock(device->thread);
    struct ss_profile *p = profile_of(device, profile);
    int result = p ? 0 : -ENODEV;
    for (uint32_t i = 0; result == 0 && i < n; i++) {
        choice->members[i] = members[i] < p->n_members ? p->members[members[i]] : NULL;
        if (!choice->members[i]) result = -ENOENT;
    }
    if (result == 0 && !reserve((void ***)&p->choices, &p->n_choices, number)) result = -ENOMEM;
    struct ss_choice *old = choice;
    if (result == 0) {
        old = p->choices[number];
        p->choices[number] = choice;
    }
    ss_thread_unlock(device->thread);
    free(old);
    return result;
}

/* Frees a member or choice to which nothing points any more. */
SS_API int ss_member_free(struct ss_device *device, uint32_t profile, uint32_t number) {
    ss_thread_lock(device->thread);
    struct ss_profile *p = profile_of(device, profile);
    if (p && number < p->n_members) {
        free(p->members[number]);
        p->members[number] = NULL;
    }
    ss_thread_unlock(device->thread);
    return p ? 0 : -ENODEV;
}

SS_API int ss_choice_free(struct ss_device *device, uint32_t profile, uint32_t number) {
    ss_thread_lock(device->thread);
    struct ss_profile *p = profile_of(device, profile);
    if (p && number < p->n_choices) {
        free(p->choices[number]);
        p->choices[number] = NULL;
    }
    ss_thread_unlock(device->thread);
    return p ? 0 : -ENODEV;
}

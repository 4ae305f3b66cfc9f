/* The control plane's operations on meters; packets execute meters in ss_meter.h. */
#include <errno.h>

#include "runtime.h"

static struct ss_bucket bucket(uint64_t rate, uint64_t burst) { return (struct ss_bucket){rate, burst, burst, 0}; }

/* Configures a meter, with full buckets. Its counters continue. */
void ss_meter_configure(struct ss_device *device, struct ss_meter *meter, const struct ss_meter_config *config) {
    meter->mode = (uint32_t)config->mode;
    meter->start_us = (ss_now_ns() - device->fabric->start_ns) / 1000;
    meter->first = bucket(config->first_rate, config->first_burst);
    meter->second = bucket(config->second_rate, config->second_burst);
}

/* Accesses elements [first, first + n) of an array: sets them to `old` (copies taken before), configures them if
 * `config` is given, zeroes their counters if `clear`, and copies them to `out`. Returns 0, -ENODEV: no program, or
 * -ENOENT: no such elements. */
SS_API int ss_meter_access(struct ss_device *device, uint32_t array, uint64_t first, uint64_t n,
                           const struct ss_meter *old, const struct ss_meter_config *config, uint32_t clear,
                           struct ss_meter *out) {
    int result = -ENODEV;
    ss_thread_lock(device->thread);
    if (device->program && array < device->program->n_meters) {
        uint64_t size = device->program->meters[array];
        result = first <= size && n <= size - first ? 0 : -ENOENT;
        struct ss_meter *meter = device->state.meters[array] + first;
        for (uint64_t i = 0; result == 0 && i < n; i++, meter++) {
            if (old) *meter = old[i];
            if (config) ss_meter_configure(device, meter, config);
            if (clear) memset(meter->colours, 0, sizeof meter->colours);
            if (out) out[i] = *meter;
        }
    }
    ss_thread_unlock(device->thread);
    return result;
}

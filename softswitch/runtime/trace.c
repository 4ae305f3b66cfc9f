/* Traces: while a frame is traced it runs through the traced variant of its program, which has the same state and calls
 * ss_trace_service at every step. The records of one frame go to the host as one event when the frame is done.
 */
#include <errno.h>
#include <stdlib.h>

#include "runtime.h"

static void record(struct ss_thread *thread, uint32_t point, const void *data, uint32_t len) {
    uint32_t head[2] = {point, len}, need = thread->trace_len + (uint32_t)sizeof head + len;
    if (thread->trace_full) return;
    if (need > SS_TRACE_LIMIT) {
        head[0] = SS_TRACE_TOO_LONG;
        head[1] = len = 0;
        need = thread->trace_len + (uint32_t)sizeof head;
        thread->trace_full = true;
    }
    if (need > thread->trace_capacity) {
        uint32_t capacity = thread->trace_capacity ? 2 * thread->trace_capacity : 4096;
        while (capacity < need) capacity *= 2;
        uint8_t *grown = realloc(thread->trace, capacity);
        if (!grown) return;
        thread->trace = grown;
        thread->trace_capacity = capacity;
    }
    memcpy(thread->trace + thread->trace_len, head, sizeof head);
    if (len) memcpy(thread->trace + thread->trace_len + sizeof head, data, len);
    thread->trace_len = need;
}

void ss_trace_service(void *argument, uint32_t point, const uint8_t *data, uint32_t len) {
    struct ss_device *device = argument;
    if (device->thread->tracing) record(device->thread, point, data, len);
}

void ss_trace_point(struct ss_thread *thread, uint32_t point, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t data[3] = {a, b, c};
    if (point == SS_TRACE_SENT && thread->tracing->trace.out_port == (int32_t)a) thread->trace_matched = true;
    record(thread, point, data, sizeof data);
}

/* Begins to trace the frame, until ss_trace_end, if it is to be traced. */
void ss_trace_begin(struct ss_thread *thread, struct ss_device *device, uint16_t port, uint32_t len) {
    const struct ss_trace *trace = &device->trace;
    if (trace->in_port >= 0 && trace->in_port != port) return;
    thread->tracing = device;
    thread->trace_matched = trace->out_port < 0;
    thread->trace_len = 0;
    thread->trace_full = false;
    ss_trace_point(thread, SS_TRACE_RECEIVED, port, len, 0);
}

void ss_trace_end(struct ss_thread *thread) {
    struct ss_device *device = thread->tracing;
    thread->tracing = NULL;
    if (!thread->trace_matched) return;
    device->trace.left--;
    ss_post(device, SS_EVENT_TRACE, device->trace.left, thread->trace, thread->trace_len);
}

/* Traces the next `frames` that come in by `in_port` and leave by `out_port` (-1: any); 0 ends the trace. `program` is
 * the traced variant of the program of `generation`; returns -ESTALE if another one runs by now. */
SS_API int ss_device_trace(struct ss_device *device, const struct ss_program *program, uint32_t generation,
                           uint32_t frames, int32_t in_port, int32_t out_port) {
    ss_thread_lock(device->thread);
    int result = 0;
    if (device->generation != generation || !device->program)
        result = -ESTALE;
    else if (program->abi != SS_ABI_VERSION || program->packet_bytes != device->program->packet_bytes)
        result = -EINVAL;
    else
        device->trace = (struct ss_trace){frames, in_port, out_port, frames ? program : NULL};
    ss_thread_unlock(device->thread);
    return result;
}

/* Packets that run beside others: what compiler/sharing.py has shown of their program allows it. A thread runs a batch
 * with a gate of the device's owner; a packet waits for the lock of its registers' index when it first uses one, and
 * has it until its ingress ends. What it counts, drops and sends is noted, and done for the whole batch under the
 * owner's lock. So all is as if the packets had run one after the other, in some order that keeps that of each port. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "runtime.h"

struct ss_shard *ss_shards_new(void) {
    struct ss_shard *shards = aligned_alloc(64, SS_SHARDS * sizeof *shards);
    if (!shards) return NULL;
    /* who waits for a packet's registers waits for less than a microsecond */
    pthread_mutexattr_t spins;
    pthread_mutexattr_init(&spins);
    pthread_mutexattr_settype(&spins, PTHREAD_MUTEX_ADAPTIVE_NP);
    for (unsigned i = 0; i < SS_SHARDS; i++) pthread_mutex_init(&shards[i].lock, &spins);
    pthread_mutexattr_destroy(&spins);
    return shards;
}

void ss_shards_free(struct ss_shard *shards) {
    for (unsigned i = 0; shards && i < SS_SHARDS; i++) pthread_mutex_destroy(&shards[i].lock);
    free(shards);
}

void ss_hold_service(void *argument, struct ss_packet *p, uint64_t index) {
    struct ss_shard *shard = &((struct ss_device *)argument)->shards[index % SS_SHARDS];
    pthread_mutex_lock(&shard->lock);
    p->target.held = shard;
}

bool ss_shareable(const struct ss_device *device, const struct ss_port *port) {
    return device->fabric->n_threads > 1 && device->active && device->program->shareable && !device->trace.program &&
           (!port || (device->spread && port->pcap_in < 0));
}

struct ss_thread *ss_visitor_new(void) {
    struct ss_thread *visitor = calloc(1, sizeof *visitor);
    if (!visitor) return NULL;
    visitor->pending_tail = &visitor->pending;
    visitor->counts = malloc(sizeof *visitor->counts);
    visitor->dropped = calloc(SS_DROP_REASONS, sizeof *visitor->dropped);
    visitor->collect = calloc(1, sizeof *visitor->collect);
    if (visitor->counts) visitor->counts->n = 0;
    if (visitor->counts && visitor->dropped && visitor->collect) return visitor;
    ss_visitor_free(visitor);
    return NULL;
}

void ss_visitor_free(void *argument) {
    struct ss_thread *visitor = argument;
    if (!visitor) return;
    if (visitor->collect) ss_list_free(visitor->collect);
    free(visitor->counts);
    free(visitor->dropped);
    free(visitor->collect);
    free(visitor->packets[0]);
    free(visitor->packets[1]);
    free(visitor);
}

static pthread_key_t key; /* of what a thread of the host runs packets with; it is freed when the thread ends */
static void key_new(void) { pthread_key_create(&key, ss_visitor_free); }

struct ss_thread *ss_visitor_of_caller(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, key_new);
    struct ss_thread *visitor = pthread_getspecific(key);
    if (!visitor && (visitor = ss_visitor_new())) pthread_setspecific(key, visitor);
    return visitor;
}

static void count(struct ss_counts *counts) {
    for (uint32_t i = 0; i < counts->n; i++) {
        counts->items[i].counter->packets++;
        counts->items[i].counter->bytes += counts->items[i].bytes;
    }
    counts->n = 0;
}

void ss_shared_run(struct ss_thread *visitor, struct ss_device *device, uint16_t port, struct ss_list *frames) {
    struct ss_buf *buf;
    visitor->now_ns = ss_now_ns();
    while ((buf = ss_pop(frames))) {
        if (visitor->counts->n > SS_COUNTS - SS_MOST_COUNTS) {
            ss_lock(&device->thread->state);
            count(visitor->counts);
            ss_unlock(&device->thread->state);
        }
        ss_switch_receive(visitor, device, port, buf);
    }
}

void ss_shared_end(struct ss_thread *owner, struct ss_device *device, uint16_t port, struct ss_thread *visitor) {
    struct ss_buf *buf;
    count(visitor->counts);
    for (unsigned reason = 0; reason < SS_DROP_REASONS; reason++) {
        device->drops[reason] += visitor->dropped[reason];
        visitor->dropped[reason] = 0;
    }
    struct ss_port *in = device->ports[port];
    if (in) {
        in->rx_packets += visitor->rx_packets;
        in->rx_bytes += visitor->rx_bytes;
    }
    visitor->rx_packets = visitor->rx_bytes = 0;
    while ((buf = ss_pop(visitor->collect))) ss_output(owner, device, buf->port, buf);
}

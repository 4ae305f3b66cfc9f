/* The fabric: threads and their loop, devices, ports, links, and the calls that Python makes. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

#define MIN_SLEEP_NS 20000u /* timers closer together than this share one wake-up */
#define LOCAL_BURST 256

__thread struct ss_thread *ss_current;

uint64_t ss_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t ss_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static __thread struct ss_thread *held; /* the thread that this one froze, see ss_device_freeze */

void ss_lock(struct ss_lock *lock) {
    pthread_mutex_lock(&lock->turn);
    pthread_mutex_lock(&lock->lock);
    pthread_mutex_unlock(&lock->turn);
}
void ss_unlock(struct ss_lock *lock) { pthread_mutex_unlock(&lock->lock); }
static void lock_init(struct ss_lock *lock) {
    pthread_mutex_init(&lock->turn, NULL);
    pthread_mutex_init(&lock->lock, NULL);
}

void ss_thread_lock(struct ss_thread *thread) {
    if (held == thread) {
        thread->depth++;
        return;
    }
    for (unsigned i = 0; i < thread->fabric->n_threads; i++) ss_lock(&thread->gates[i].lock);
    ss_lock(&thread->state);
}
void ss_thread_unlock(struct ss_thread *thread) {
    if (held == thread && thread->depth > 0) {
        thread->depth--;
        return;
    }
    ss_unlock(&thread->state);
    for (unsigned i = thread->fabric->n_threads; i-- > 0;) ss_unlock(&thread->gates[i].lock);
}

void ss_gate_enter(struct ss_thread *owner, const struct ss_thread *thread) {
    ss_lock(&owner->gates[thread->number].lock);
}
void ss_gate_leave(struct ss_thread *owner, const struct ss_thread *thread) {
    ss_unlock(&owner->gates[thread->number].lock);
}

/* Takes the locks without which no thread receives or sends, so that ports may be added and removed. */
static void lock_io(struct ss_fabric *fabric) {
    for (unsigned i = 0; i < fabric->n_threads; i++) ss_lock(&fabric->threads[i].io);
}
static void unlock_io(struct ss_fabric *fabric) {
    for (unsigned i = 0; i < fabric->n_threads; i++) ss_unlock(&fabric->threads[i].io);
}

void ss_wake(struct ss_thread *thread) {
    if (!atomic_exchange(&thread->sleeping, false)) return;
    uint64_t one = 1;
    while (write(thread->wake, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* ---- events for Python ---- */

void ss_post(struct ss_device *device, uint32_t type, uint32_t port, const void *data, uint32_t len) {
    struct ss_fabric *fabric = device->fabric;
    struct ss_event *event = malloc(sizeof *event + len);
    if (!event) {
        ss_drop(device, NULL, SS_DROP_NO_MEMORY);
        return;
    }
    event->next = NULL;
    event->type = type;
    event->port = port;
    event->len = len;
    event->generation = device->generation;
    event->device = device->id;
    if (len) memcpy(event->data, data, len);
    pthread_mutex_lock(&fabric->event_lock);
    bool full = fabric->n_events[type] >= SS_EVENT_LIMIT || fabric->event_bytes[type] + len > SS_EVENT_BYTES;
    if (!full) {
        *fabric->events_tail = event;
        fabric->events_tail = &event->next;
        fabric->n_events[type]++;
        fabric->event_bytes[type] += len;
        pthread_cond_signal(&fabric->event_ready);
    }
    pthread_mutex_unlock(&fabric->event_lock);
    if (full) {
        if (type != SS_EVENT_LOG && type != SS_EVENT_IDLE && type != SS_EVENT_PCAP_ENDED)
            ss_drop(device, NULL, SS_DROP_HOST_QUEUE_FULL);
        free(event);
    }
}

uint32_t ss_events_waiting(struct ss_fabric *fabric, uint32_t type) {
    pthread_mutex_lock(&fabric->event_lock);
    uint32_t n = fabric->n_events[type];
    pthread_mutex_unlock(&fabric->event_lock);
    return n;
}

/* Waits for the next event and returns it, or NULL once the fabric is freed; the caller frees it with ss_free. */
SS_API struct ss_event *ss_event_wait(struct ss_fabric *fabric) {
    pthread_mutex_lock(&fabric->event_lock);
    while (!fabric->events && !fabric->events_closed) pthread_cond_wait(&fabric->event_ready, &fabric->event_lock);
    struct ss_event *event = fabric->events;
    if (event) {
        fabric->events = event->next;
        if (!fabric->events) fabric->events_tail = &fabric->events;
        fabric->n_events[event->type]--;
        fabric->event_bytes[event->type] -= event->len;
    }
    pthread_mutex_unlock(&fabric->event_lock);
    return event;
}

SS_API void ss_events_close(struct ss_fabric *fabric) {
    pthread_mutex_lock(&fabric->event_lock);
    fabric->events_closed = true;
    pthread_cond_broadcast(&fabric->event_ready);
    pthread_mutex_unlock(&fabric->event_lock);
}

static uint64_t service_random(void *device) { return ss_random(&((struct ss_device *)device)->random); }
static void service_log(void *device, uint32_t message, const unsigned __int128 *values, uint32_t n) {
    ss_post(device, SS_EVENT_LOG, message, values, n * (uint32_t)sizeof *values);
}
static const struct ss_services services = {service_random, service_log, ss_digest_service, ss_trace_service,
                                            ss_hold_service};

/* ---- threads ---- */

static void take_inbox(struct ss_thread *thread) {
    if (atomic_load_explicit(&thread->inbox_n, memory_order_seq_cst) == 0) return;
    pthread_mutex_lock(&thread->inbox_lock);
    struct ss_list list = thread->inbox;
    thread->inbox = (struct ss_list){0};
    atomic_store(&thread->inbox_n, 0);
    pthread_mutex_unlock(&thread->inbox_lock);
    struct ss_buf *buf;
    while ((buf = ss_pop(&list))) ss_push(&thread->local, buf);
}

static void work_locally(struct ss_thread *thread) {
    struct ss_buf *buf;
    for (int i = 0; i < LOCAL_BURST && (buf = ss_pop(&thread->local)); i++)
        ss_switch_receive(thread, buf->device, buf->port, buf);
}

void ss_timers_changed(struct ss_thread *owner) {
    uint64_t due = owner->heap_n ? owner->heap[0]->heap_due : UINT64_MAX;
    if (due >= atomic_load(&owner->next_due)) return;
    atomic_store(&owner->next_due, due);
    ss_wake(owner);
}

static int sleep_for(struct ss_thread *thread, struct epoll_event *events, int n) {
    struct timespec wait, *timeout = NULL;
    bool busy = thread->busy;
    atomic_store(&thread->sleeping, true);
    /* this is read after `sleeping` is set: a thread that makes it earlier from now on wakes us */
    uint64_t due = atomic_load(&thread->next_due);
    if (atomic_load_explicit(&thread->inbox_n, memory_order_seq_cst)) busy = true;
    if (busy || due != UINT64_MAX) {
        uint64_t now = ss_now_ns(), ns = 0;
        if (!busy && due > now) ns = due - now < MIN_SLEEP_NS ? MIN_SLEEP_NS : due - now;
        if (ns > 1000000000u) ns = 1000000000u;
        wait = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
        timeout = &wait;
    }
    int got = epoll_pwait2(thread->epoll, events, n, timeout, NULL);
    atomic_store(&thread->sleeping, false);
    return got;
}

/* Does all work except that of interfaces: links, timers, idle entries of the thread's own devices. */
static void work(struct ss_thread *thread) {
    ss_gate_enter(thread, thread);
    ss_lock(&thread->state);
    thread->now_ns = ss_now_ns();
    take_inbox(thread);
    work_locally(thread);
    if (thread->heap_n) {
        thread->now_ns = ss_now_ns();
        ss_fire_timers(thread);
    }
    if (thread->idle_due <= thread->now_ns) ss_idle_fire(thread);
    thread->busy = thread->local.head != NULL;
    uint64_t due = thread->heap_n ? thread->heap[0]->heap_due : UINT64_MAX;
    atomic_store(&thread->next_due, due < thread->idle_due ? due : thread->idle_due);
    ss_outputs_take(thread, thread);
    ss_unlock(&thread->state);
    ss_gate_leave(thread, thread);
}

static void *loop(void *argument) {
    struct ss_thread *thread = argument;
    struct epoll_event events[SS_BATCH];
    ss_current = thread;
    prctl(PR_SET_TIMERSLACK, 1000ul);
    prctl(PR_SET_NAME, "softswitch");
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&thread->fabric->stopping)) {
        int n = sleep_for(thread, events, SS_BATCH);
        ss_lock(&thread->io);
        for (int i = 0; i < n; i++) {
            struct ss_port *port = events[i].data.ptr;
            uint64_t count;
            if (port) {
                if (port->kind == SS_PORT_INTERFACE && port->worker == thread) ss_interface_receive(thread, port);
            } else if (read(thread->wake, &count, sizeof count) < 0) {
                continue;
            }
        }
        work(thread);
        ss_outputs_send(thread);
        ss_unlock(&thread->io);
    }
    return NULL;
}

static int thread_init(struct ss_fabric *fabric, struct ss_thread *thread) {
    memset(thread, 0, sizeof *thread);
    thread->fabric = fabric;
    thread->pending_tail = &thread->pending;
    thread->next_due = thread->idle_due = UINT64_MAX;
    lock_init(&thread->io);
    lock_init(&thread->state);
    pthread_mutex_init(&thread->inbox_lock, NULL);
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    thread->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    thread->rx = ss_rx_new();
    thread->number = (unsigned)(thread - fabric->threads);
    thread->gates = aligned_alloc(64, fabric->n_threads * sizeof *thread->gates);
    for (unsigned i = 0; thread->gates && i < fabric->n_threads; i++) lock_init(&thread->gates[i].lock);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (thread->epoll < 0 || thread->wake < 0 || !thread->rx || !thread->gates) return -1;
    return epoll_ctl(thread->epoll, EPOLL_CTL_ADD, thread->wake, &event);
}

SS_API struct ss_fabric *ss_fabric_new(uint32_t threads, uint64_t seed) {
    struct ss_fabric *fabric = calloc(1, sizeof *fabric);
    if (!fabric) return NULL;
    fabric->n_threads = threads;
    fabric->threads = calloc(threads, sizeof *fabric->threads);
    fabric->seed = seed;
    fabric->start_ns = ss_now_ns();
    fabric->events_tail = &fabric->events;
    pthread_mutex_init(&fabric->event_lock, NULL);
    pthread_cond_init(&fabric->event_ready, NULL);
    for (uint32_t i = 0; fabric->threads && i < threads; i++)
        if (thread_init(fabric, &fabric->threads[i])) return NULL;
    return fabric;
}

SS_API int ss_fabric_start(struct ss_fabric *fabric) {
    atomic_store(&fabric->stopping, false);
    for (unsigned i = 0; i < fabric->n_threads; i++) {
        struct ss_thread *thread = &fabric->threads[i];
        if (thread->running) continue;
        int error = pthread_create(&thread->id, NULL, loop, thread);
        if (error) return -error;
        thread->running = true;
    }
    return 0;
}

SS_API void ss_fabric_stop(struct ss_fabric *fabric) {
    atomic_store(&fabric->stopping, true);
    for (unsigned i = 0; i < fabric->n_threads; i++) {
        struct ss_thread *thread = &fabric->threads[i];
        if (!thread->running) continue;
        uint64_t one = 1;
        while (write(thread->wake, &one, sizeof one) < 0 && errno == EINTR) {
        }
        pthread_join(thread->id, NULL);
        thread->running = false;
    }
}

/* ---- devices ---- */

SS_API struct ss_device *ss_device_new(struct ss_fabric *fabric, uint64_t id, int32_t cpu_port) {
    struct ss_device *device = calloc(1, sizeof *device);
    if (!device || !(device->shards = ss_shards_new())) {
        free(device);
        return NULL;
    }
    unsigned n = 0;
    for (struct ss_device *d = fabric->devices; d; d = d->next) n++;
    device->fabric = fabric;
    device->thread = &fabric->threads[n % fabric->n_threads];
    device->id = id;
    device->cpu_port = cpu_port;
    device->priorities = 1;
    device->random = fabric->seed ^ id * 0x2545f4914f6cdd1du;
    for (unsigned i = 0; i < fabric->n_threads; i++) ss_thread_lock(&fabric->threads[i]);
    device->next = fabric->devices;
    fabric->devices = device;
    for (unsigned i = 0; i < fabric->n_threads; i++) ss_thread_unlock(&fabric->threads[i]);
    return device;
}

static void state_free(struct ss_device *device) {
    const struct ss_program *program = device->program;
    struct ss_state *s = &device->state;
    for (uint32_t i = 0; program && s->tables && i < program->n_tables; i++) ss_table_clear(&s->tables[i]);
    for (uint32_t i = 0; program && s->counters && i < program->n_counters; i++) free(s->counters[i]);
    for (uint32_t i = 0; program && s->registers && i < program->n_registers; i++) free(s->registers[i]);
    for (uint32_t i = 0; program && s->meters && i < program->n_meters; i++) free(s->meters[i]);
    if (program) ss_profiles_free(s, program);
    if (program) ss_value_sets_free(s, program);
    ss_idle_free(s);
    free(s->tables);
    free(s->counters);
    free(s->registers);
    free(s->meters);
    free(s->crcs);
    memset(s, 0, sizeof *s);
    if (program) ss_digests_free(device->digests, program->n_digests);
    device->digests = NULL;
    device->trace = (struct ss_trace){0};
    device->program = NULL;
    device->active = false;
    device->generation++;
    ss_groups_clear(&device->groups);
    ss_groups_clear(&device->sessions);
}

static bool state_new(struct ss_device *device, const struct ss_program *program) {
    struct ss_state *s = &device->state;
    device->program = program;
    s->services = &services;
    s->device = device;
    s->tables = calloc(program->n_tables + 1, sizeof *s->tables);
    s->counters = calloc(program->n_counters + 1, sizeof *s->counters);
    s->registers = calloc(program->n_registers + 1, sizeof *s->registers);
    device->digests = calloc(program->n_digests + 1, sizeof *device->digests);
    if (!s->tables || !s->counters || !s->registers || !device->digests) return false;
    for (uint32_t i = 0; i < program->n_tables; i++) {
        const struct ss_table_info *info = &program->tables[i];
        if (!ss_table_init(&s->tables[i], info)) return false;
        s->tables[i].default_entry->action = info->default_action;
        memcpy(s->tables[i].default_entry->params, info->default_params, info->params_bytes);
    }
    for (uint32_t i = 0; i < program->n_counters; i++)
        if (!(s->counters[i] = calloc(program->counters[i] + 1, sizeof **s->counters))) return false;
    for (uint32_t i = 0; i < program->n_registers; i++)
        if (!(s->registers[i] = calloc(1, program->registers[i] + SS_SLACK))) return false;
    if (!(s->meters = calloc(program->n_meters + 1, sizeof *s->meters))) return false;
    for (uint32_t i = 0; i < program->n_meters; i++)
        if (!(s->meters[i] = calloc(program->meters[i] + 1, sizeof **s->meters))) return false;
    return ss_profiles_init(s, program) && ss_value_sets_init(s, program) && ss_crcs_init(s, program);
}

/* Loads a program with fresh state; frames are dropped until ss_device_activate. NULL unloads. */
SS_API int ss_device_load(struct ss_device *device, const struct ss_program *program) {
    if (program && program->abi != SS_ABI_VERSION) return -EINVAL;
    int result = 0;
    ss_thread_lock(device->thread);
    state_free(device);
    if (program && !state_new(device, program)) {
        state_free(device);
        result = -ENOMEM;
    }
    ss_thread_unlock(device->thread);
    return result;
}

SS_API void ss_device_activate(struct ss_device *device) {
    ss_thread_lock(device->thread);
    device->active = device->program != NULL;
    ss_thread_unlock(device->thread);
}

/* Makes a device without ports beside `device`, on which a program and its state are prepared; for ss_device_adopt. */
SS_API struct ss_device *ss_device_stage(struct ss_device *device) {
    struct ss_device *staged = calloc(1, sizeof *staged);
    if (!staged) return NULL;
    staged->fabric = device->fabric;
    staged->thread = device->thread;
    staged->id = device->id;
    staged->cpu_port = device->cpu_port;
    return staged;
}

SS_API void ss_device_discard(struct ss_device *staged) {
    state_free(staged);
    free(staged);
}

#define SWAP(type, a, b)  \
    do {                  \
        type other = (a); \
        (a) = (b);        \
        (b) = other;      \
    } while (0)

/* Makes `device` take over the program and state of `staged`, which is freed, between two frames. */
SS_API void ss_device_adopt(struct ss_device *device, struct ss_device *staged) {
    ss_thread_lock(device->thread);
    SWAP(const struct ss_program *, device->program, staged->program);
    SWAP(struct ss_state, device->state, staged->state);
    SWAP(struct ss_group_map, device->groups, staged->groups);
    SWAP(struct ss_group_map, device->sessions, staged->sessions);
    SWAP(struct ss_digest *, device->digests, staged->digests);
    device->state.device = device;
    device->state.now_us = staged->state.now_us;
    device->next_handle = staged->next_handle;
    device->trace = staged->trace; /* of the new program, so that its first frame is traced */
    device->active = device->program != NULL;
    device->generation++;
    ss_idle_arm(device);
    ss_thread_unlock(device->thread);
    ss_device_discard(staged);
}

/* Stops the device: until ss_device_thaw by the same system thread, no frame is processed and only this thread changes
 * anything. */
SS_API void ss_device_freeze(struct ss_device *device) {
    ss_thread_lock(device->thread);
    held = device->thread;
}

SS_API void ss_device_thaw(struct ss_device *device) {
    held = NULL;
    ss_thread_unlock(device->thread);
}

SS_API uint32_t ss_device_generation(struct ss_device *device) {
    ss_thread_lock(device->thread);
    uint32_t generation = device->generation;
    ss_thread_unlock(device->thread);
    return generation;
}

SS_API void ss_device_priorities(struct ss_device *device, uint32_t n) {
    ss_thread_lock(device->thread);
    device->priorities = n;
    ss_thread_unlock(device->thread);
}

SS_API void ss_device_capture(struct ss_device *device, uint32_t on) {
    ss_thread_lock(device->thread);
    device->capture = on != 0;
    ss_thread_unlock(device->thread);
}

/* ---- ports, links ---- */

/* Returns the port's record, made on first use; NULL: no memory or no such number. The device's thread is locked. */
static struct ss_port *port_get(struct ss_device *device, uint32_t number) {
    if (number >= SS_MAX_PORTS) return NULL;
    if (!device->ports[number]) {
        struct ss_port *port = calloc(1, sizeof *port);
        if (!port) return NULL;
        port->device = device;
        port->number = (uint16_t)number;
        port->rx_fd = port->tx_fd = port->pcap_in = port->pcap_out = port->heap_at = -1;
        pthread_mutex_init(&port->tx_lock, NULL);
        port->random = device->fabric->seed ^ (device->id << 16 | number) * 0x9fb21c651e98df25u;
        device->ports[number] = port;
    }
    return device->ports[number];
}

/* Returns the thread that polls the device's next interface. With a device for each thread, each serves its own; with
 * fewer devices, the ports of a device are shared among all threads. */
static struct ss_thread *worker_of(struct ss_device *device) {
    struct ss_fabric *fabric = device->fabric;
    unsigned devices = 0;
    for (struct ss_device *d = fabric->devices; d; d = d->next) devices++;
    if (devices >= fabric->n_threads) return device->thread;
    return &fabric->threads[(device->thread - fabric->threads + device->n_interfaces) % fabric->n_threads];
}

SS_API int ss_port_add(struct ss_device *device, uint32_t number, const char *interface, uint32_t offload) {
    lock_io(device->fabric);
    ss_thread_lock(device->thread);
    struct ss_port *port = port_get(device, number);
    int result = !port ? -EINVAL : port->kind != SS_PORT_UNUSED ? -EEXIST : ss_interface_open(port, interface);
    if (result == 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = port};
        port->worker = worker_of(device);
        port->offload = offload != 0;
        if (epoll_ctl(port->worker->epoll, EPOLL_CTL_ADD, port->rx_fd, &event)) {
            result = -errno;
            ss_interface_close(port);
            port->kind = SS_PORT_UNUSED;
        } else {
            device->n_interfaces++;
            device->spread |= port->worker != device->thread;
        }
    }
    ss_thread_unlock(device->thread);
    unlock_io(device->fabric);
    return result;
}

/* Reopens a port whose interface's name now belongs to another interface: the port keeps its counters and its shape. If
 * there is no interface (the error says why) it stays a port that receives nothing and drops what it sends. */
SS_API int ss_port_reopen(struct ss_device *device, uint32_t number) {
    lock_io(device->fabric);
    ss_thread_lock(device->thread);
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    int result = port && port->kind == SS_PORT_INTERFACE ? 0 : -ENOENT;
    if (result == 0) {
        char name[sizeof port->name];
        memcpy(name, port->name, sizeof name);
        if (port->rx_fd >= 0) epoll_ctl(port->worker->epoll, EPOLL_CTL_DEL, port->rx_fd, NULL);
        pthread_mutex_lock(&port->tx_lock);
        ss_interface_close(port);
        result = ss_interface_open(port, name);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = port};
        if (result == 0 && epoll_ctl(port->worker->epoll, EPOLL_CTL_ADD, port->rx_fd, &event)) {
            result = -errno;
            ss_interface_close(port);
        }
        pthread_mutex_unlock(&port->tx_lock);
    }
    ss_thread_unlock(device->thread);
    unlock_io(device->fabric);
    return result;
}

static void unlink_port(struct ss_device *device, uint32_t number) {
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    if (!port) return;
    if (port->rx_fd >= 0) epoll_ctl(port->worker->epoll, EPOLL_CTL_DEL, port->rx_fd, NULL);
    pthread_mutex_lock(&port->tx_lock);
    ss_interface_close(port);
    pthread_mutex_unlock(&port->tx_lock);
    ss_pcap_close(port);
    ss_port_drain(device->thread, port);
    port->kind = SS_PORT_UNUSED;
    port->peer = NULL;
}

/* Locks both devices' threads, in a fixed order. */
static void lock_pair(struct ss_device *a, struct ss_device *b) {
    struct ss_thread *first = a->thread < b->thread ? a->thread : b->thread;
    struct ss_thread *second = a->thread < b->thread ? b->thread : a->thread;
    ss_thread_lock(first);
    if (second != first) ss_thread_lock(second);
}
static void unlock_pair(struct ss_device *a, struct ss_device *b) {
    ss_thread_unlock(a->thread);
    if (b->thread != a->thread) ss_thread_unlock(b->thread);
}

SS_API int ss_port_remove(struct ss_device *device, uint32_t number) {
    lock_io(device->fabric);
    ss_thread_lock(device->thread);
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    struct ss_device *peer = port ? port->peer : NULL;
    uint16_t peer_port = port ? port->peer_port : 0;
    int result = port && port->kind != SS_PORT_UNUSED ? 0 : -ENOENT;
    if (result == 0) unlink_port(device, number);
    ss_thread_unlock(device->thread);
    unlock_io(device->fabric);
    if (peer) {
        ss_thread_lock(peer->thread);
        if (peer->ports[peer_port] && peer->ports[peer_port]->peer == device) unlink_port(peer, peer_port);
        ss_thread_unlock(peer->thread);
    }
    return result;
}

SS_API int ss_link(struct ss_device *a, uint32_t a_port, struct ss_device *b, uint32_t b_port) {
    int result = 0;
    lock_pair(a, b);
    struct ss_port *p = port_get(a, a_port), *q = port_get(b, b_port);
    if (!p || !q || p == q)
        result = -EINVAL;
    else if (p->kind != SS_PORT_UNUSED || q->kind != SS_PORT_UNUSED)
        result = -EEXIST;
    else {
        p->kind = q->kind = SS_PORT_LINK;
        p->peer = b;
        p->peer_port = (uint16_t)b_port;
        q->peer = a;
        q->peer_port = (uint16_t)a_port;
    }
    unlock_pair(a, b);
    return result;
}

/* Sets a port's shaping; NULL: none. Queued frames keep their times. */
SS_API int ss_port_shape(struct ss_device *device, uint32_t number, const struct ss_shape *shape) {
    ss_thread_lock(device->thread);
    struct ss_port *port = port_get(device, number);
    if (port) {
        port->shaped = shape != NULL;
        if (shape)
            port->shape = *shape;
        else
            memset(&port->shape, 0, sizeof port->shape);
        if (port->queue.head || port->n_classed) port->shaped = true; /* later frames stay behind those that wait */
        if (port->n_classed) ss_port_reshaped(device->thread, port);
    }
    ss_thread_unlock(device->thread);
    return port ? 0 : -EINVAL;
}

SS_API int ss_inject(struct ss_device *device, uint32_t port, const uint8_t *data, uint32_t len) {
    if (port >= SS_MAX_PORTS || len > SS_MAX_FRAME) return -EINVAL;
    struct ss_buf *buf = ss_buf_copy(data, len);
    if (!buf) return -ENOMEM;
    struct ss_thread *thread = device->thread;
    buf->device = device;
    buf->port = (uint16_t)port;
    pthread_mutex_lock(&thread->inbox_lock);
    bool full = thread->inbox.n >= SS_INBOX_LIMIT;
    if (!full) {
        ss_push(&thread->inbox, buf);
        atomic_fetch_add(&thread->inbox_n, 1);
    }
    pthread_mutex_unlock(&thread->inbox_lock);
    if (full) {
        ss_buf_free(buf);
        return -ENOBUFS;
    }
    ss_wake(thread);
    return 0;
}

/* Returns the thread whose gates the calling thread of the host uses. */
static const struct ss_thread *as_thread(const struct ss_fabric *fabric) {
    static atomic_uint callers;
    static __thread unsigned caller;
    if (!caller) caller = atomic_fetch_add(&callers, 1) + 1;
    return &fabric->threads[caller % fabric->n_threads];
}

/* Runs a frame as data-plane threads do, so beside others if its program allows it; frames that leave are put into
 * `list`. */
static void process(struct ss_device *device, uint16_t port, struct ss_buf *buf, struct ss_list *list) {
    struct ss_thread *owner = device->thread;
    const struct ss_thread *as = as_thread(device->fabric);
    ss_gate_enter(owner, as);
    struct ss_thread *visitor = ss_shareable(device, NULL) ? ss_visitor_of_caller() : NULL;
    struct ss_list frames = {0};
    ss_push(&frames, buf);
    if (visitor) ss_shared_run(visitor, device, port, &frames);
    ss_lock(&owner->state);
    owner->collect = list;
    owner->now_ns = ss_now_ns();
    if (visitor) ss_shared_end(owner, device, port, visitor);
    if ((buf = ss_pop(&frames))) ss_switch_receive(owner, device, port, buf);
    owner->collect = NULL;
    ss_unlock(&owner->state);
    ss_gate_leave(owner, as);
}

/* Runs one frame to completion and returns the frames that leave, each as u32 port, u32 length, bytes. Free the result
 * with ss_free. */
SS_API int64_t ss_process(struct ss_device *device, uint32_t port, const uint8_t *data, uint32_t len, uint8_t **out) {
    if (port >= SS_MAX_PORTS || len > SS_MAX_FRAME) return -EINVAL;
    struct ss_thread *thread = device->thread;
    struct ss_list list = {0};
    struct ss_buf *buf = ss_buf_copy(data, len);
    if (!buf) return -ENOMEM;
    if (held == thread) {
        thread->collect = &list;
        thread->now_ns = ss_now_ns();
        ss_switch_receive(thread, device, (uint16_t)port, buf);
        thread->collect = NULL;
    } else {
        process(device, (uint16_t)port, buf, &list);
    }
    size_t size = 1;
    for (buf = list.head; buf; buf = buf->next) size += 8 + buf->len;
    uint8_t *at = *out = malloc(size);
    int64_t n = at ? (int64_t)list.n : -ENOMEM;
    for (buf = list.head; at && buf; buf = buf->next) {
        uint32_t head[2] = {buf->port, buf->len};
        memcpy(at, head, sizeof head);
        memcpy(at + sizeof head, buf->data, buf->len);
        at += sizeof head + buf->len;
    }
    ss_list_free(&list);
    return n;
}

/* Writes to `out`: rx packets, rx bytes, tx packets, tx bytes, super-frames in and out, frames with a flipped bit,
 * frames and bytes that wait for the line now, packets that were marked (ECN), then the drops by reason. -ENOENT: the
 * port was never used. */
SS_API int ss_port_stats(struct ss_device *device, uint32_t number, uint64_t *out) {
    ss_thread_lock(device->thread);
    struct ss_port *port = number < SS_MAX_PORTS ? device->ports[number] : NULL;
    if (port) {
        ss_port_backlog(port, ss_now_ns());
        uint64_t head[10] = {port->rx_packets, port->rx_bytes,        port->tx_packets,
                             port->tx_bytes,   port->rx_super,        atomic_load(&port->tx_super),
                             port->corrupted,  port->backlog_packets, port->backlog_bytes,
                             port->marked};
        memcpy(out, head, sizeof head);
        memcpy(out + 10, port->drops, sizeof port->drops);
    }
    ss_thread_unlock(device->thread);
    return port ? 0 : -ENOENT;
}

SS_API void ss_device_drops(struct ss_device *device, uint64_t *out) {
    ss_thread_lock(device->thread);
    memcpy(out, device->drops, sizeof device->drops);
    ss_thread_unlock(device->thread);
}

SS_API const char *ss_drop_name(uint32_t reason) {
    static const char *const names[SS_DROP_REASONS] = {
        [SS_DROP_NO_PROGRAM] = "no_program",
        [SS_DROP_INGRESS] = "ingress",
        [SS_DROP_EGRESS] = "egress",
        [SS_DROP_NO_PORT] = "no_such_port",
        [SS_DROP_NO_GROUP] = "no_such_multicast_group",
        [SS_DROP_NO_SESSION] = "no_such_clone_session",
        [SS_DROP_PRIORITY] = "priority_out_of_range",
        [SS_DROP_PASSES] = "too_many_passes",
        [SS_DROP_QUEUE_FULL] = "queue_full",
        [SS_DROP_INJECTED_LOSS] = "injected_loss",
        [SS_DROP_LINK_FULL] = "link_full",
        [SS_DROP_TX_ERROR] = "transmit_error",
        [SS_DROP_HOST_QUEUE_FULL] = "host_queue_full",
        [SS_DROP_DIGEST_LIMIT] = "too_many_digests",
        [SS_DROP_OFFLOAD] = "bad_offload",
        [SS_DROP_TOO_LONG] = "too_long",
        [SS_DROP_NO_MEMORY] = "no_memory",
    };
    return reason < SS_DROP_REASONS ? names[reason] : NULL;
}

/* Frees a stopped fabric; no thread may be in ss_event_wait any more. */
SS_API void ss_fabric_free(struct ss_fabric *fabric) {
    for (struct ss_device *d = fabric->devices; d; d = d->next)
        for (unsigned i = 0; i < SS_MAX_PORTS; i++) unlink_port(d, i);
    while (fabric->devices) {
        struct ss_device *device = fabric->devices;
        fabric->devices = device->next;
        state_free(device);
        for (unsigned i = 0; i < SS_MAX_PORTS; i++) free(device->ports[i]);
        ss_shards_free(device->shards);
        free(device);
    }
    for (unsigned i = 0; i < fabric->n_threads; i++) {
        struct ss_thread *thread = &fabric->threads[i];
        ss_list_free(&thread->inbox);
        ss_list_free(&thread->local);
        ss_rx_free(thread->rx);
        ss_visitor_free(thread->visitor);
        free(thread->gates);
        ss_list_free(&thread->pool);
        close(thread->epoll);
        close(thread->wake);
        free(thread->packets[0]);
        free(thread->packets[1]);
        free(thread->heap);
        free(thread->outputs);
        free(thread->trace);
    }
    while (fabric->events) {
        struct ss_event *event = fabric->events;
        fabric->events = event->next;
        free(event);
    }
    free(fabric->threads);
    free(fabric);
}

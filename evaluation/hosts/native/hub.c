/* A label switch in one thread, for benchmarks and tests of the hosts where no P4 target is wanted in between: forward,
 * replicate and aggregate as docs/architecture.md section 2 has them, between Linux interfaces, with loss, duplication,
 * reordering and delay on every port when asked. Not a product: tables are filled before it starts.
 */
#define _GNU_SOURCE
#include "engine.h"
#include "hub_io.h"
#include "labels.h"

enum { FORWARD, REPLICATE, AGGREGATE };
enum { FORWARDED, REPLICATED, ABSORBED, COMPLETED, DUPLICATE, STALE, FLUSHED, REFUSED, MALFORMED, UNKNOWN, VERDICTS };

#define MOST_PORTS 64
#define MOST_ACTIONS 4096
#define MOST_DELAYED 65536

/* Shared with evaluation/hosts/hub.py. */
struct hub_action {
    int32_t kind;
    uint32_t port; /* out */
    uint64_t ports;    /* replicate: bitmap */
    uint32_t slot_base, slot_mask;
    uint64_t contributor, expected;
    uint32_t next_label;
};
struct hub_faults {
    double loss, duplicate, reorder; /* probabilities, per packet, at the ingress and again at the egress of a port */
    double delay_seconds;            /* of every packet, at the egress */
    double hold_seconds;             /* how long a reordered packet is held back, at most */
};

struct slot {
    uint64_t owner, bitmap;
    bool closed;
};

struct delayed {
    uint64_t due;
    uint32_t port;
    uint8_t *frame; /* HEAD bytes and the packet */
};

struct hub {
    uint32_t ports, values, slots, actions;
    size_t packet_bytes;
    struct port_io *io;
    struct label_map *labels;
    struct hub_action action[MOST_ACTIONS];
    struct hub_faults faults;
    struct slot *slot;
    int32_t *value;
    struct delayed *heap;
    uint32_t delayed;
    atomic_ullong verdicts[VERDICTS];
    uint64_t count[VERDICTS];
    atomic_int reboot;
    atomic_bool closing;
    uint64_t random;
    int event;
    pthread_t thread;
};

static double random_unit(struct hub *h)
{
    h->random ^= h->random << 13;
    h->random ^= h->random >> 7;
    h->random ^= h->random << 17;
    return (double)(h->random >> 11) * 0x1p-53;
}

static void delay(struct hub *h, uint32_t port, const uint8_t *head, const uint8_t *packet, uint64_t due)
{
    uint8_t *copy = h->delayed < MOST_DELAYED ? malloc(HEAD + h->packet_bytes) : NULL;
    if (!copy)
        return;
    memcpy(copy, head, HEAD);
    memcpy(copy + HEAD, packet, h->packet_bytes);
    uint32_t i = h->delayed++;
    while (i && h->heap[(i - 1) / 2].due > due) {
        h->heap[i] = h->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->heap[i] = (struct delayed){due, port, copy};
}

static struct delayed undelay(struct hub *h)
{
    struct delayed first = h->heap[0], last = h->heap[--h->delayed];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= h->delayed)
            break;
        if (child + 1 < h->delayed && h->heap[child + 1].due < h->heap[child].due)
            child++;
        if (h->heap[child].due >= last.due)
            break;
        h->heap[i] = h->heap[child];
        i = child;
    }
    h->heap[i] = last;
    return first;
}

static void send_out(struct hub *h, uint32_t port, const uint8_t *head, const uint8_t *packet, uint64_t now)
{
    if (port >= h->ports)
        return;
    const struct hub_faults *f = &h->faults;
    if (f->loss > 0 && random_unit(h) < f->loss)
        return;
    int copies = f->duplicate > 0 && random_unit(h) < f->duplicate ? 2 : 1;
    for (; copies; copies--) {
        uint64_t due = now + (uint64_t)(f->delay_seconds * 1e9);
        if (f->reorder > 0 && random_unit(h) < f->reorder)
            due += (uint64_t)(random_unit(h) * f->hold_seconds * 1e9);
        if (due > now)
            delay(h, port, head, packet, due);
        else
            port_put(&h->io[port], head, packet);
    }
}

static int aggregate(struct hub *h, const struct hub_action *a, const uint8_t *head, uint8_t *packet, const struct inart_header *p, uint64_t now)
{
    uint64_t bits = a->contributor ? a->contributor : p->bitmap;
    if (p->flags & INART_FLAG_RESULT || !bits || bits & ~a->expected)
        return REFUSED;
    uint64_t own = (uint64_t)p->epoch << 32 | p->sequence;
    uint32_t index = (a->slot_base + (p->sequence & a->slot_mask)) % h->slots;
    struct slot *s = &h->slot[index];
    int32_t *sum = h->value + (size_t)index * h->values, *wire = inart_values(packet);
    int verdict = STALE;
    uint64_t bitmap = bits;
    if (own > s->owner)
        *s = (struct slot){.owner = own};
    if (own == s->owner && !s->closed) {
        if (!(bits & s->bitmap)) {
            for (uint32_t i = 0; i < h->values; i++) {
                int32_t v = (int32_t)__builtin_bswap32((uint32_t)wire[i]);
                if (!s->bitmap)
                    sum[i] = v;
                else if (p->flags & INART_FLAG_MAXIMUM)
                    sum[i] = v > sum[i] ? v : sum[i];
                else
                    sum[i] = (int32_t)((uint32_t)sum[i] + (uint32_t)v);
            }
            s->bitmap |= bits;
        } else if (bits & ~s->bitmap)
            return REFUSED;
        else if (!(p->flags & INART_FLAG_RESEND))
            return DUPLICATE;
        if (s->bitmap != a->expected && !(p->flags & INART_FLAG_RESEND))
            return ABSORBED;
        verdict = s->bitmap == a->expected ? COMPLETED : FLUSHED;
        s->closed = true;
        bitmap = s->bitmap;
        for (uint32_t i = 0; i < h->values; i++)
            wire[i] = (int32_t)__builtin_bswap32((uint32_t)sum[i]);
    }
    inart_put64(packet + INART_AT(INART_OFFSET_BITMAP), bitmap);
    inart_put32(packet + INART_AT(INART_OFFSET_LABEL), a->next_label);
    send_out(h, a->port, head, packet, now);
    return verdict;
}

static int process(struct hub *h, uint32_t port, const uint8_t *head, uint8_t *packet, size_t length, uint64_t now)
{
    struct inart_header p;
    if (inart_parse(packet, length, h->packet_bytes, &p))
        return MALFORMED;
    int32_t number = label_map_get(&h->labels[port], p.label);
    if (number < 0)
        return UNKNOWN;
    const struct hub_action *a = &h->action[number];
    if (a->kind == FORWARD) {
        send_out(h, a->port, head, packet, now);
        return FORWARDED;
    }
    if (a->kind == REPLICATE) {
        for (uint64_t ports = a->ports; ports; ports &= ports - 1)
            send_out(h, (uint32_t)__builtin_ctzll(ports), head, packet, now);
        return REPLICATED;
    }
    return aggregate(h, a, head, packet, &p, now);
}

static void *run(void *argument)
{
    struct hub *h = argument;
    struct pollfd descriptors[MOST_PORTS + 1];
    for (uint32_t port = 0; port < h->ports; port++)
        descriptors[port] = (struct pollfd){.fd = h->io[port].fd, .events = POLLIN};
    descriptors[h->ports] = (struct pollfd){.fd = h->event, .events = POLLIN};
    while (!atomic_load(&h->closing)) {
        uint64_t now = inart_now();
        if (atomic_exchange(&h->reboot, 0))
            memset(h->slot, 0, h->slots * sizeof *h->slot);
        bool more = false;
        for (uint32_t port = 0; port < h->ports; port++) {
            struct port_io *io = &h->io[port];
            int n = port_receive(io);
            more |= n == MESSAGES;
            for (int i = 0; i < n; i++) {
                uint8_t *frame = io->in[i] + sizeof(struct virtio_net_hdr);
                struct virtio_net_hdr offload;
                memcpy(&offload, io->in[i], sizeof offload);
                size_t length = io->rx[i].msg_len - sizeof offload, segment = offload.gso_size;
                if (!is_ours(frame, length))
                    continue;
                length -= HEAD;
                if (!is_whole(frame, length)) {
                    atomic_fetch_add(&h->verdicts[MALFORMED], 1);
                    continue;
                }
                if (offload.gso_type == VIRTIO_NET_HDR_GSO_NONE)
                    segment = length;
                for (size_t at = 0; at < length; at += segment) {
                    if (h->faults.loss > 0 && random_unit(h) < h->faults.loss)
                        continue;
                    size_t bytes = length - at < segment ? length - at : segment;
                    h->count[process(h, port, frame, frame + HEAD + at, bytes, now)]++;
                }
            }
            for (int i = 0; i < VERDICTS; i++) {
                atomic_fetch_add(&h->verdicts[i], h->count[i]);
                h->count[i] = 0;
            }
        }
        while (h->delayed && h->heap[0].due <= now) {
            struct delayed d = undelay(h);
            port_put(&h->io[d.port], d.frame, d.frame + HEAD);
            free(d.frame);
        }
        bool unsent = false;
        for (uint32_t port = 0; port < h->ports; port++) {
            port_flush(&h->io[port]);
            unsent |= h->io[port].count != 0;
        }
        if (more)
            continue;
        struct timespec wait = {0, (long)(INART_NS / 1000)}, *limit = unsent ? &wait : NULL;
        if (h->delayed) {
            now = inart_now();
            uint64_t ns = h->heap[0].due > now ? h->heap[0].due - now : 0;
            if (!unsent || ns < INART_NS / 1000)
                wait = (struct timespec){(time_t)(ns / INART_NS), (long)(ns % INART_NS)};
            limit = &wait;
        }
        ppoll(descriptors, h->ports + 1, limit, NULL);
        if (descriptors[h->ports].revents & POLLIN) {
            uint64_t count;
            if (read(h->event, &count, sizeof count) < 0) { /* nothing to count */
            }
        }
    }
    return NULL;
}

static void wake(struct hub *h)
{
    uint64_t one = 1;
    if (write(h->event, &one, sizeof one) < 0) { /* full: it is awake already */
    }
}

void hub_destroy(struct hub *h, int started)
{
    if (started) {
        atomic_store(&h->closing, true);
        wake(h);
        pthread_join(h->thread, NULL);
    }
    for (uint32_t port = 0; port < h->ports; port++) {
        port_close(&h->io[port]);
        label_map_free(&h->labels[port]);
    }
    while (h->delayed)
        free(undelay(h).frame);
    close(h->event);
    free(h->io);
    free(h->labels);
    free(h->slot);
    free(h->value);
    free(h->heap);
    free(h);
}

struct hub *hub_create(const char *const *interfaces, uint32_t ports, uint32_t values, uint32_t slots, uint64_t seed, char *error, size_t size)
{
    struct hub *h = ports <= MOST_PORTS ? calloc(1, sizeof *h) : NULL;
    if (!h) {
        snprintf(error, size, "out of memory, or more than %d ports", MOST_PORTS);
        return NULL;
    }
    h->values = values;
    h->packet_bytes = INART_PAYLOAD_BYTES(values);
    h->slots = slots;
    h->random = seed * 0x9e3779b97f4a7c15u | 1;
    h->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->io = calloc(ports, sizeof *h->io);
    h->labels = calloc(ports, sizeof *h->labels);
    h->slot = calloc(slots, sizeof *h->slot);
    h->value = aligned_alloc(64, ((size_t)slots * values * 4 + 63) & ~(size_t)63);
    h->heap = malloc(MOST_DELAYED * sizeof *h->heap);
    for (; h->ports < ports; h->ports++)
        if (label_map_make(&h->labels[h->ports], MOST_ACTIONS) || port_open(&h->io[h->ports], interfaces[h->ports], h->packet_bytes, error, size)) {
            h->ports++;
            hub_destroy(h, 0);
            return NULL;
        }
    return h;
}

int hub_label(struct hub *h, uint32_t port, uint32_t label, const struct hub_action *action)
{
    if (port >= h->ports || h->actions == MOST_ACTIONS)
        return -1;
    h->action[h->actions] = *action;
    label_map_set(&h->labels[port], label, (int32_t)h->actions++);
    return 0;
}

void hub_faults(struct hub *h, const struct hub_faults *faults) { h->faults = *faults; }

int hub_start(struct hub *h) { return pthread_create(&h->thread, NULL, run, h) ? -1 : 0; }

void hub_reboot(struct hub *h)
{
    atomic_store(&h->reboot, 1);
    wake(h);
}

void hub_verdicts(struct hub *h, uint64_t *verdicts)
{
    for (int i = 0; i < VERDICTS; i++)
        verdicts[i] = atomic_load(&h->verdicts[i]);
}

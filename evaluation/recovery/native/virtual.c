/* An engine in virtual time: network.c moves the time, calls an engine's round and carries its packets. */
#include "virtual.h"
#include "carried.h"

static struct virtual_world *world; /* see virtual_attach */

int virtual_clock(int clock, struct timespec *t) {
    (void)clock;
    uint64_t now = world ? world->now : 0;
    *t = (struct timespec){.tv_sec = (time_t)(now / 1000000000ull), .tv_nsec = (long)(now % 1000000000ull)};
    return 0;
}

int virtual_closed(int fd) {
    (void)fd;
    return 0;
}

ssize_t virtual_written(int fd, const void *from, size_t size) {
    (void)fd;
    (void)from;
    return (ssize_t)size;
}

/* ---- the back end: packets go to the world one by one, and come from the host's queue there ---- */

static int virtual_open(struct io *io, char *error, size_t size) {
    (void)error;
    (void)size;
    io->state = world->host;
    for (unsigned lane = 0; lane < io->spec.lanes; lane++) io->source[io->sources++] = (int)lane;
    io->receive_buffer = 1u << 25;
    return 0;
}

static void virtual_close(struct io *io) { io->sources = 0; }

static int virtual_receive(struct io *io, unsigned source) {
    int n = 0;
    for (struct carried *c; n < (int)io->wanted && (c = world->take(io->state, io->spec.port[source])); n++)
        io->in[n] = (struct io_in){c->payload, c->bytes, c->bytes, c->source, c->congested};
    io->full = n == (int)io->wanted;
    return n;
}

static int virtual_send(struct io *io) {
    struct io_out *out = &io->out[io->out_head];
    enum io_reach reach = io->spec.reach[out->lane];
    for (; out->sent < out->packets; out->sent++)
        world->send(io->state, io->spec.port[out->lane], out->data + out->sent * io->packet_bytes,
                    (uint32_t)io->packet_bytes, reach != INART_HERE, reach != INART_LINK);
    io->counters.messages_sent++;
    io->out_head++;
    return 0;
}

static uint64_t virtual_drops(struct io *io) {
    (void)io;
    return 0;
}

const struct io_backend io_backend = {virtual_open, virtual_close, virtual_receive, virtual_send, virtual_drops};

/* ---- the only thread ---- */

int virtual_answer(void *condition) {
    struct engine_thread *t = (struct engine_thread *)((char *)condition - offsetof(struct engine_thread, answered));
    t->opened = io_open(t->wanted, t->error, t->error_size);
    t->good = t->opened != NULL;
    t->wanted = NULL;
    return 0;
}

/* The world of all engines of this library; `host` is the one whose functions are called next. */
void virtual_attach(struct virtual_world *w) { world = w; }

struct virtual_sleep virtual_round(struct engine_thread *t) {
    if (t->io) t->io->ready = ~0u;
    while (t->retired) {
        struct io *old = t->retired;
        t->retired = old->next;
        io_close(old);
    }
    struct engine_sleep sleep = t->work(t);
    t->wakeups++;
    if (sleep.sparse && sleep.spacing < WAKE_SPACING) /* as in the long run */
        sleep.spacing = WAKE_SPACING;
    return (struct virtual_sleep){sleep.until, sleep.listen ? sleep.spacing : UINT64_MAX};
}

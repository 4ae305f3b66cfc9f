/* Of the worker's engine, what only shows when a system call fails or time goes as it seldom does. */
#undef pthread_create
#undef close
#undef sendmmsg

#include "worker/pacing.h"
#include "worker/roundtrip.h"
#include "worker/worker.h"

#include "expect.h"

static int may_create = 1 << 30, closed_twice, send_error, sent_packets;

int checked_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    return may_create-- > 0 ? pthread_create(thread, attributes, run, argument) : EAGAIN;
}

int checked_close(int descriptor) {
    int result = close(descriptor);
    closed_twice += result < 0 && errno == EBADF;
    return result;
}

int checked_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags) {
    (void)descriptor, (void)flags;
    if (send_error) {
        errno = send_error;
        return -1;
    }
    for (unsigned i = 0; i < count; i++)
        sent_packets += (int)(messages[i].msg_hdr.msg_iov[0].iov_len / INART_PAYLOAD_BYTES(64));
    return (int)count;
}

/* A machine that has no room for a thread: the engine is refused with the reason, and each descriptor is closed once. A
 * second close would hit whatever another thread has opened meanwhile. */
static void thread_that_cannot_start(void) {
    for (int works = 0; works < 3; works++) {
        struct inart_io_config io = {.interface = "lo", .threads = 3, .core = {-1, -1, -1}};
        struct inart_worker_config config = {.workers = 1, .values = 64};
        char error[256] = "";
        may_create = works;
        closed_twice = 0;
        EXPECT(!inart_worker_create(&io, &config, error, sizeof error));
        EXPECT(strstr(error, "cannot start the engine's thread"));
        EXPECT(closed_twice == 0);
    }
    may_create = 1 << 30;
}

/* A time that was read before the lock was there is earlier than the thread's last one: no tokens for that. */
static void time_that_goes_backwards(void) {
    struct worker_tree t = {.packets_per_second = 1000, .tokens_most = 50, .tokens_wake = 10, .tokens_at = 5000000};
    pacing_refill(&t, 4999000);
    EXPECT(t.tokens == 0 && t.burst == 0 && t.tokens_at == 5000000);
    pacing_refill(&t, 6000000);
    EXPECT(t.tokens > 0.99 && t.tokens < 1.01);
}

static struct worker_chunk sent(uint64_t at, unsigned resends) {
    return (struct worker_chunk){.state = CHUNK_SENT, .sent_at = at, .resends = (uint16_t)resends};
}

/* How patient a tree is with packets that overtake each other is forgotten after a while, and when the tree is led
 * another way: so is the lowest round trip, which would call answers on a shorter way answers of what was sent before.
 */
static void reordering_is_forgotten(void) {
    struct worker_chunk ring[4];
    struct worker_tree t = {.ring = ring, .mask = 3, .reorder = 1, .config = {.slots = 4}};
    uint64_t now = 100 * INART_NS;
    ring[0] = sent(now - 10 * INART_MS, 0);
    worker_measure(&t, &ring[0], now);
    EXPECT(t.rtt_lowest == 10.0 * INART_MS);
    for (int i = 0; i < 6; i++) t.reorder = t.reorder < 16 ? 2 * t.reorder : 16;
    t.reorder_since = now;
    for (int i = 0; i < 20; i++) {
        now += INART_NS;
        ring[0] = sent(now - 10 * INART_MS, 0);
        worker_measure(&t, &ring[0], now);
    }
    EXPECT(t.reorder == 1);
    t.reorder = 8;
    t.packets_per_second = 1000;
    worker_repaired(&t, 0, false, false, 64, now);
    EXPECT(t.reorder == 1 && t.rtt_lowest == 0);
    ring[0] = sent(now - 30 * INART_MS, 0);
    worker_measure(&t, &ring[0], now);
    EXPECT(t.rtt_lowest == 30.0 * INART_MS && t.round_trip == 30.0 * INART_MS);
}

/* An interface that has no address for a moment refuses as a kernel without segmentation does. */
static void super_frames_come_back(void) {
    char error[256];
    struct io_spec spec = {
        .interface = "lo", .values = 64, .lanes = 1, .port = {INART_UDP_PORT_BASE}, .backend = INART_UDP};
    struct io *io = io_open(&spec, error, sizeof error);
    EXPECT(io);
    unsigned most = io->segments;
    if (most == 1) {
        printf("this kernel has no UDP_SEGMENT\n");
        io_close(io);
        return;
    }
    struct inart_header header = {0};
    uint64_t now = inart_now();
    for (int i = 0; i < 10; i++) memset(inart_values(io_build(io, 0, &header)), 0, 64 * 4);
    send_error = EINVAL;
    io_flush(io, now);
    EXPECT(io->segments == 1 && io->retry > now && io_unsent(io));
    send_error = 0;
    io_flush(io, io->retry);
    EXPECT(!io_unsent(io) && sent_packets == 10);
    now += 2 * INART_NS;
    io_build(io, 0, &header);
    io_flush(io, now);
    EXPECT(io->segments == most);
    io_close(io);
}

/* A kernel that refuses (no interface, a filter) is asked less and less often, one that is full as soon as it may have
 * room. */
static void attempts_become_rarer(void) {
    char error[256];
    struct io_spec spec = {
        .interface = "lo", .values = 64, .lanes = 1, .port = {INART_UDP_PORT_BASE}, .backend = INART_UDP};
    struct io *io = io_open(&spec, error, sizeof error);
    EXPECT(io);
    struct inart_header header = {0};
    uint64_t now = inart_now(), begun = now;
    int attempts = 0;
    io_build(io, 0, &header);
    send_error = EPERM;
    for (; now < begun + INART_NS; attempts++) {
        io_flush(io, now);
        EXPECT(io->retry > now);
        now = io->retry;
    }
    EXPECT(attempts > 10 && attempts < 40);
    send_error = EAGAIN;
    io_flush(io, now);
    EXPECT(io->retry == now + INART_RETRY);
    send_error = 0;
    io_flush(io, now + INART_RETRY);
    EXPECT(!io_unsent(io));
    io_close(io);
}

int main(int argc, char **argv) {
    const struct probe checks[] = {
        {"thread_that_cannot_start", thread_that_cannot_start}, {"time_that_goes_backwards", time_that_goes_backwards},
        {"reordering_is_forgotten", reordering_is_forgotten},   {"super_frames_come_back", super_frames_come_back},
        {"attempts_become_rarer", attempts_become_rarer},
    };
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}

/* Of the worker's engine, what only shows when a system call fails or time goes as it seldom does. */
#undef pthread_create
#undef close
#undef sendmmsg

#include "worker/decode.h"
#include "worker/encode.h"
#include "worker/loss.h"
#include "worker/pacing.h"
#include "worker/roundtrip.h"
#include "worker/window.h"
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
        struct inart_io_config io = {.interface = "lo", .threads = 3};
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

/* A tree that had nothing to send for long sends no more at once, when an operation comes, than one that was busy. */
static void unused_time_is_lost(void) {
    char error[256] = "";
    struct inart_io_config io = {.interface = "lo", .threads = 1};
    struct inart_tree_config tree = {.slots = 64, .port = INART_UDP_PORT_BASE, .rate_mbps = 1, .root = "ps"};
    struct inart_worker_config config = {
        .workers = 2, .values = 64, .trees = 1, .tree = &tree, .timeout_seconds = 60, .last_number = UINT32_MAX};
    struct inart_part_range range = {0, 6400};
    uint32_t number = 0;
    int32_t status;
    static float values[6400];
    struct inart_worker *w = inart_worker_create(&io, &config, error, sizeof error);
    EXPECT(w);
    struct worker_thread *x = &w->threads[0];
    struct worker_tree *t = &x->trees[0];
    engine_enter(&x->engine);
    EXPECT(t->tokens_most > t->tokens_wake + 1);
    t->tokens_at -= 10 * INART_NS;
    engine_leave(&x->engine);
    uint64_t start = inart_now();
    EXPECT(inart_worker_submit(w, values, values, 6400, INART_FLOAT32, &(struct inart_encoding){.fields = 1}, 0,
                               INART_ALL_REDUCE, -1, 0, 1, &number, &range, &status, error, sizeof error) >= 0);
    engine_enter(&x->engine);
    double tokens = t->tokens + (double)t->stats.chunks_sent;
    engine_leave(&x->engine);
    double since =
        t->packets_per_second * (double)(inart_now() - start) / INART_NS; /* tokens since the operation came */
    EXPECT(tokens < t->tokens_wake + 0.5 + since);
    inart_worker_stop(w);
    inart_worker_destroy(w);
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
    worker_rerouted(&t, 0, false, false, 64, now);
    EXPECT(t.reorder == 1 && t.rtt_lowest == 0);
    ring[0] = sent(now - 30 * INART_MS, 0);
    worker_measure(&t, &ring[0], now);
    EXPECT(t.rtt_lowest == 30.0 * INART_MS && t.round_trip == 30.0 * INART_MS);
}

/* When a result turns out to be lost, the window becomes half of what is under way: once in a round trip. */
static void lost_results_halve_the_window(void) {
    char error[256];
    struct io_spec spec = {.interface = "lo", .values = 64, .lanes = 1, .port = {INART_UDP_PORT_BASE}};
    const uint64_t now = 100 * INART_NS;
    uint8_t key[CHECK_KEY_BYTES] = {1};
    struct inart_worker w = {.check = check_make(key, 2, 64), .config = {.workers = 2, .values = 64}};
    struct worker_thread x = {.worker = &w, .engine.io = io_open(&spec, error, sizeof error), .random = 1};
    struct worker_operation o = {.layout = {.kind = INART_ALL_REDUCE, .workers = 2, .source = -1}};
    struct worker_part p = {.operation = &o, .order = {.data = 1000}};
    struct worker_chunk ring[64];
    for (int i = 0; i < 64; i++) ring[i] = sent(now - INART_NS, 0);
    struct worker_tree t = {.config = {.slots = 64}, .ring = ring, .mask = 63, .reorder = 1, .parts = &p, .end = 1000};
    t.direction = (struct inart_direction){1, 0, 1, 0};
    t.packets_per_second = 1000, t.tokens = t.burst = t.tokens_most = 50, t.tokens_wake = 2;
    t.round_trip = t.rtt_lowest = INART_MS;
    t.window = t.window_quick = 64, t.unanswered = 40, t.complete = 1;
    EXPECT(x.engine.io && w.check);
    EXPECT(worker_base_due(&x, &t, now) > now && t.window == 64);
    worker_send_late(&x, &t, t.due);
    EXPECT(t.stats.resent_gap == 1 && t.window == 20);
    t.window = t.unanswered = 10;
    window_cut(&t, t.window_cut + INART_MS / 2);
    EXPECT(t.window == 10);
    window_cut(&t, t.window_cut + INART_MS);
    EXPECT(t.window == 5);
    io_close(x.engine.io);
    check_free(w.check);
}

/* An interface that has no address for a moment refuses as a kernel without segmentation does. */
static void super_frames_come_back(void) {
    char error[256];
    struct io_spec spec = {.interface = "lo", .values = 64, .lanes = 1, .port = {INART_UDP_PORT_BASE}};
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
    struct io_spec spec = {.interface = "lo", .values = 64, .lanes = 1, .port = {INART_UDP_PORT_BASE}};
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

static const uint32_t extremes[] = {0x80000000u, 0x80000001u, 0xffffffffu, 0x7fffffffu, 0x40000000u, 0, 1};
#define EXTREMES (sizeof extremes / sizeof *extremes)

/* The sizes of tensors in an operation's first packet are read as numbers whatever the words are: INT32_MIN has no
 * negative. Also the least and the greatest sums are values. */
static void any_word_is_a_number(void) {
    const uint32_t values = 64, n = INART_EXPONENT_WORDS(64);
    uint8_t key[CHECK_KEY_BYTES] = {1};
    struct inart_worker w = {.check = check_make(key, 3, values), .config = {.workers = 3, .values = values}};
    struct worker_thread x = {.worker = &w};
    struct worker_tree t = {.config = {.root = "ps"}};
    struct inart_header h = {.sequence = 5, .bitmap = 7ull << 32 | 3};
    struct worker_operation o = {.elements = 1000, .layout = {.kind = INART_ALL_REDUCE, .workers = 3, .source = -1}};
    uint32_t wire[64] = {0}, exponents[32] = {0};
    EXPECT(w.check);
    for (uint32_t j = 2; j < CHECK_VALUES; j++) exponents[j] = worker_operation_mark(&o, j - 2);
    for (unsigned i = 0; i < EXTREMES * EXTREMES; i++) {
        struct worker_part p = {.operation = &o};
        memcpy(wire, exponents, sizeof exponents);
        check_seal_exponents(w.check, 0, 5, 2, wire);
        for (unsigned j = 0; j < 2; j++)
            wire[j] = wire[j + n] = __builtin_bswap32(extremes[j ? i % EXTREMES : i / EXTREMES] | 1u << 31);
        wire[values - 1] =
            __builtin_bswap32(check_result(w.check, &(struct check_results){0}, 0, 0, INART_FLAG_MAXIMUM, 5, 7));
        EXPECT(worker_take_exponents(&x, &t, &p, 0, &h, wire) == TAKEN);
        EXPECT(p.largest >= 0 && p.smallest >= 0);
    }
    for (unsigned i = 0; i < 64; i++) wire[i] = __builtin_bswap32(extremes[i % EXTREMES]);
    float found[INART_MOST_FIELDS * 64];
    for (int32_t e = INART_EXPONENT_LOWEST; e <= INART_EXPONENT_HIGHEST; e += 4) {
        inart_dequantise(wire, 64, e, 3, 3, found);
        inart_dequantise(wire, 64, e + INART_NONFINITE, 3, 3, found);
        for (uint32_t count = 2; count <= INART_MOST_FIELDS; count++) {
            struct inart_fields f = inart_fields_of(count, 3, false, 0, 0);
            inart_fields_dequantise(&f, wire, 64 * count, 64, e, 3, found);
            inart_fields_dequantise(&f, wire, 64 * count, 64, e + INART_NONFINITE, 3, found);
        }
    }
    check_free(w.check);
}

/* A trainer that writes into a tensor that is under way makes that sum another one, and nothing else: what is larger
 * than its chunk's agreed exponent is sent as the largest value for which the sum has room. */
static void values_that_were_written_meanwhile(void) {
    const float written[] = {1e38f, -1e38f, INFINITY, -INFINITY, NAN, -NAN, 3.0f, 0.5f};
    const uint32_t workers = 3, values = 64, data = INART_DATA_VALUES(64);
    const double most = ldexp(1, inart_fraction_bits((int)workers));
    uint8_t key[CHECK_KEY_BYTES] = {1};
    struct check *check = check_make(key, workers, values);
    float x[INART_MOST_FIELDS * 64];
    uint16_t halves[2 * 64];
    uint32_t wire[64] = {0};
    EXPECT(check);
    for (unsigned i = 0; i < INART_MOST_FIELDS * 64; i++) x[i] = written[i % 8];
    for (unsigned i = 0; i < 2 * 64; i++) halves[i] = (uint16_t)(inart_bits(written[i % 8]) >> 16);
    for (int32_t e = INART_EXPONENT_LOWEST; e <= INART_EXPONENT_HIGHEST; e++) {
        inart_quantise(x, data, data, e, workers, wire);
        for (uint32_t i = 0; i < data; i++) EXPECT(fabs((double)(int32_t)__builtin_bswap32(wire[i])) <= most);
        checked_quantise(check, x, data, e, wire);
        for (uint32_t i = 0; i < data; i++) EXPECT(fabs((double)(int32_t)__builtin_bswap32(wire[i])) <= most);
        inart_quantise(x, data, data, e + INART_NONFINITE, workers, wire);
        for (uint32_t count = 2; count <= INART_MOST_FIELDS; count++)
            for (int chance = 0; chance < 2; chance++) {
                struct inart_fields f = inart_fields_of(count, workers, chance, 7, 1);
                inart_fields_quantise(&f, x, count * data, data, e, 0, wire);
                inart_fields_residual(&f, x, count * data, e, 0, (float[INART_MOST_FIELDS * 64]){0});
            }
        struct inart_fields pair = inart_fields_of(2, workers, false, 0, 0);
        if (inart_pairs_fit(&pair, INART_BFLOAT16, 2 * data, data, e))
            inart_pairs_quantise(&pair, check, halves, e, wire);
    }
    check_free(check);
}

int main(int argc, char **argv) {
    const struct probe checks[] = {
        {"thread_that_cannot_start", thread_that_cannot_start},
        {"time_that_goes_backwards", time_that_goes_backwards},
        {"unused_time_is_lost", unused_time_is_lost},
        {"lost_results_halve_the_window", lost_results_halve_the_window},
        {"reordering_is_forgotten", reordering_is_forgotten},
        {"super_frames_come_back", super_frames_come_back},
        {"attempts_become_rarer", attempts_become_rarer},
        {"any_word_is_a_number", any_word_is_a_number},
        {"values_that_were_written_meanwhile", values_that_were_written_meanwhile},
    };
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}

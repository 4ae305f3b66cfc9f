/* Of softswitch's runtime, what only shows when the kernel has no room, or the host does not read what it is told. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/socket.h>

static int send_error, calls, left; /* left: how many of the last 32 frames the kernel took */
static bool takes_frames;           /* only super-frames meet the error */
static int checked_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags);
#define sendmmsg checked_sendmmsg
#include "transmit.c"
#undef sendmmsg
#include "idle.c"

#include "expect.h"

struct ss_fabric *ss_fabric_new(uint32_t threads, uint64_t seed);
void ss_fabric_free(struct ss_fabric *fabric);
void ss_events_close(struct ss_fabric *fabric);
struct ss_event *ss_event_wait(struct ss_fabric *fabric);
struct ss_device *ss_device_new(struct ss_fabric *fabric, uint64_t id, int32_t cpu_port);

static int checked_sendmmsg(int descriptor, struct mmsghdr *messages, unsigned count, int flags) {
    (void)descriptor, (void)flags;
    calls++;
    if (!send_error || (takes_frames && messages[0].msg_hdr.msg_iovlen == 2)) return (int)count;
    errno = send_error;
    return -1;
}

static void put16(uint8_t *at, unsigned value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* The next datagram of a flow, which may leave with those before it as one super-frame. */
static struct ss_buf *datagram_of(unsigned id) {
    const unsigned payload = 200, ip = 14, udp = 34;
    struct ss_buf *buf = ss_buf_new(SS_UDP_HEADERS + payload);
    EXPECT(buf);
    memset(buf->data, 0, buf->len = SS_UDP_HEADERS + payload);
    uint8_t *f = buf->data;
    put16(f + 12, 0x0800);
    f[ip] = 0x45;
    put16(f + ip + 2, 28 + payload);
    put16(f + ip + 4, id);
    f[ip + 8] = 64;
    f[ip + 9] = 17;
    unsigned sum = 0;
    for (unsigned i = 0; i < 20; i += 2) sum += (unsigned)(f[ip + i] << 8 | f[ip + i + 1]);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    put16(f + ip + 10, ~sum & 0xffff);
    put16(f + udp + 4, 8 + payload);
    return buf;
}

/* How many calls it takes to be rid of 32 datagrams, and until when no super-frames leave. */
static int calls_for(struct ss_port *port, int error) {
    struct ss_buf *frames[32];
    for (unsigned i = 0; i < 32; i++) frames[i] = datagram_of(i);
    send_error = error;
    calls = 0;
    port->plain_until = 0;
    send_batch(port, frames, 32);
    left = 32;
    for (unsigned i = 0; i < 32; i++)
        if (frames[i]) {
            ss_buf_free(frames[i]);
            left--;
        }
    return calls;
}

/* A port that is full for a moment goes on with super-frames, which cost a tenth; one that refuses them gets frames one
 * by one. */
static void full_is_not_refused(void) {
    struct ss_port port = {.tx_fd = socket(AF_INET, SOCK_DGRAM, 0), .offload = true, .name = "lo"};
    EXPECT(calls_for(&port, 0) == 1 && port.plain_until == 0);
    EXPECT(calls_for(&port, EAGAIN) == 1 && port.plain_until == 0);
    EXPECT(calls_for(&port, ENOBUFS) == 2 && port.plain_until == 0); /* asked also with one frame */
    EXPECT(calls_for(&port, EINVAL) > 30 && port.plain_until > 0);
    takes_frames = true; /* as of an interface that cannot cut super-frames */
    EXPECT(calls_for(&port, ENOBUFS) == 3 && left == 32 && port.plain_until > 0);
    takes_frames = false;
}

/* Traces that nobody reads take so much memory and no more; other events still have room. */
static void events_have_a_limit_in_bytes(void) {
    struct ss_fabric *fabric = ss_fabric_new(1, 1);
    struct ss_device *device = ss_device_new(fabric, 1, -1);
    static uint8_t trace[SS_TRACE_LIMIT];
    for (int i = 0; i < 1000; i++) ss_post(device, SS_EVENT_TRACE, 0, trace, sizeof trace);
    EXPECT(ss_events_waiting(fabric, SS_EVENT_TRACE) == SS_EVENT_BYTES / SS_TRACE_LIMIT);
    EXPECT(device->drops[SS_DROP_HOST_QUEUE_FULL] == 1000 - SS_EVENT_BYTES / SS_TRACE_LIMIT);
    ss_post(device, SS_EVENT_DIGEST, 0, trace, 100);
    EXPECT(ss_events_waiting(fabric, SS_EVENT_DIGEST) == 1);
    free(ss_event_wait(fabric));
    ss_post(device, SS_EVENT_TRACE, 0, trace, sizeof trace);
    EXPECT(ss_events_waiting(fabric, SS_EVENT_TRACE) == SS_EVENT_BYTES / SS_TRACE_LIMIT);
    ss_events_close(fabric);
    ss_fabric_free(fabric);
}

#define TAKEN_EVENTS 2000
static atomic_int taken;

static void *post_idle_entries(void *device) {
    struct ss_device *of = device;
    struct batch batch = {of->state.tables, 0, calloc(1, 64)};
    while (atomic_load_explicit(&taken, memory_order_relaxed) < TAKEN_EVENTS) {
        batch.bytes = 64;
        post(of, &batch);
    }
    free(batch.data);
    ss_events_close(of->fabric);
    return NULL;
}

/* The host takes events while the switch's threads ask how many wait for it. The sanitizer of threads says whether they
 * do so under the lock. (`taken` puts nothing in order that is not in order by itself.) */
static void events_are_counted_under_their_lock(void) {
    struct ss_fabric *fabric = ss_fabric_new(1, 1);
    struct ss_device *device = ss_device_new(fabric, 1, -1);
    struct ss_event *event;
    pthread_t thread;
    EXPECT(!pthread_create(&thread, NULL, post_idle_entries, device));
    for (; (event = ss_event_wait(fabric)); free(event)) atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    pthread_join(thread, NULL);
    ss_fabric_free(fabric);
}

int main(int argc, char **argv) {
    const struct probe checks[] = {
        {"full_is_not_refused", full_is_not_refused},
        {"events_have_a_limit_in_bytes", events_have_a_limit_in_bytes},
        {"events_are_counted_under_their_lock", events_are_counted_under_their_lock},
    };
    return run_checks(checks, sizeof checks / sizeof *checks, argc, argv);
}

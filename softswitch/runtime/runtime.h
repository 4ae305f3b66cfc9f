/* The runtime's own structures: fabric, threads, devices, ports, buffers. See ss_abi.h for what programs see.
 *
 *   AF_PACKET port --rx--> thread --> device (switch.c: parse, ingress, egress, deparse) --> port --shape--> AF_PACKET
 *   other device's link --inbox-^                                                             \--------> peer's inbox
 *
 * Each device belongs to one thread, whose state lock is held while its packets go through the program: a packet is
 * atomic towards all others, whatever registers it uses. Receiving, segmentation, coalescing and sending need no state:
 * they run without that lock, in the thread that polls the port. With more threads than devices, several threads do
 * that for one device (ss_port_add).
 *
 * Packets of a program that may be shared (compiler/sharing.py) then run without that lock, too: each has the lock of
 * its registers' index (ss_shard), and notes what it counts and sends; the state lock is taken for a batch of them, to
 * count and to send (ss_shared_end). Whoever runs packets has a gate of the device's owner, each thread its own, and
 * control calls that change anything have all of them and the state, so a write is atomic towards packets as before.
 *
 * Locks are taken in this order: a thread's io (its set of ports cannot change meanwhile), its gates in their order,
 * state, a shard (nothing else is waited for with it), a port's tx_lock. */
#ifndef SS_RUNTIME_H
#define SS_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ss_abi.h"

#define SS_API __attribute__((visibility("default")))
#define SS_HEADROOM 512u    /* room for headers that a program adds, as in bmv2 */
#define SS_SLACK 64u        /* readable bytes after a frame */
#define SS_SMALL 2048u      /* frames up to this size come from the pool */
#define SS_MAX_FRAME 65600u /* 64 KiB and some */
#define SS_BATCH 64
#define SS_TX_BATCH 256
#define SS_MAX_SEGMENTS 128u /* most segments of a super-frame in Linux */
#define SS_INBOX_LIMIT 16384u
#define SS_EVENT_LIMIT 16384u      /* most events of each type that wait for the host */
#define SS_EVENT_BYTES (64u << 20) /* and most bytes that they have together */
#define SS_TRACE_LIMIT (1u << 20)  /* most bytes of trace of one frame */
#define SS_CLASSES 8               /* most classes of service; v1model's field `priority` has 3 bits */
#define SS_PASSES 1024             /* most resubmissions, recirculations and egress clones of one frame */

enum ss_drop {
    SS_DROP_NO_PROGRAM,
    SS_DROP_INGRESS,
    SS_DROP_EGRESS,
    SS_DROP_NO_PORT,
    SS_DROP_NO_GROUP,
    SS_DROP_NO_SESSION,
    SS_DROP_PRIORITY,
    SS_DROP_PASSES,
    SS_DROP_QUEUE_FULL,
    SS_DROP_INJECTED_LOSS,
    SS_DROP_LINK_FULL,
    SS_DROP_TX_ERROR,
    SS_DROP_HOST_QUEUE_FULL,
    SS_DROP_DIGEST_LIMIT,
    SS_DROP_OFFLOAD,
    SS_DROP_TOO_LONG,
    SS_DROP_NO_MEMORY,
    SS_DROP_REASONS
};

enum { SS_CHECKSUM_UNKNOWN, SS_CHECKSUM_FITS, SS_CHECKSUM_WRONG };

struct ss_buf {
    struct ss_buf *next;
    struct ss_device *device; /* the receiver, while the frame is in an inbox */
    uint64_t depart, due;     /* ns, while in a shaped port's queue */
    uint8_t *data;
    uint32_t len, capacity; /* capacity of `store` */
    struct ss_buf *origin;  /* buffer that owns these bytes; NULL: this one */
    atomic_uint holders;    /* buffers that use these bytes: this one, and those that have it as origin */
    uint16_t port;
    bool pooled;
    uint8_t class;            /* its class of service: the priority that the program gave it */
    _Atomic uint8_t checksum; /* SS_CHECKSUM_*: state of the UDP or TCP checksum of a frame that leaves */
    uint8_t store[] __attribute__((aligned(64)));
};

struct ss_list {
    struct ss_buf *head, *tail;
    uint32_t n;
};

struct ss_shape {
    double rate_bps; /* 0: not limited */
    uint64_t burst_bytes;
    uint64_t queue_bytes;   /* 0: not limited by bytes */
    uint64_t queue_packets; /* 0: not limited by packets */
    uint64_t ecn_packets;   /* what finds so many waiting is marked, if it may be (ECN); 0: nothing is */
    uint64_t ahead_bytes;   /* frames of at most this size, without TCP data, do not wait */
    uint64_t delay_ns, jitter_ns, reorder_ns;
    double loss, duplicate, reorder;
    double corrupt;                       /* probability that one bit of a frame flips */
    uint64_t corrupt_every;               /* 0: only by chance; otherwise each so-many-th frame that may be hit */
    uint64_t corrupt_from, corrupt_until; /* range of bytes of the frame that may be hit; until 0: to its end */
    uint64_t corrupt_udp;                 /* whether only UDP over IPv4 is hit */
    double class_bps[SS_CLASSES];         /* rate of each class of service; 0: not limited beyond the line's */
    uint64_t corrupt_hidden;              /* whether UDP's checksum becomes 0, so that no receiver's kernel notices */
    uint64_t dscp_classes; /* whether an IPv4 packet that the program gives no priority has that of its DSCP */
};

enum ss_port_kind { SS_PORT_UNUSED, SS_PORT_INTERFACE, SS_PORT_LINK };

struct ss_port {
    struct ss_device *device;
    uint16_t number;
    enum ss_port_kind kind;
    int rx_fd, tx_fd;
    int pcap_in, pcap_out; /* files that record what passes; -1: none */
    struct ss_device *peer;
    uint16_t peer_port;
    /* shaping of what leaves */
    bool shaped;
    struct ss_shape shape;
    double free_at; /* time in ns when the line will have sent everything accepted so far */
    uint64_t last_due, last_late, last_ahead, last_depart;
    struct ss_list queue;   /* by due time */
    struct ss_list late;    /* reordered frames, by due time */
    struct ss_list ahead;   /* frames that did not wait for the line, by due time */
    struct ss_buf *waiting; /* first frame of `queue` that the line has not taken yet */
    uint64_t backlog_bytes, backlog_packets;
    struct ss_list classes[SS_CLASSES]; /* what waits for the line where there are several queues (classes.c) */
    uint64_t class_bytes[SS_CLASSES], n_classed;
    double class_free_at[SS_CLASSES]; /* as free_at, of a class with a rate of its own */
    uint64_t random;
    int heap_at; /* place in the thread's timer heap, -1: not in it */
    uint64_t heap_due;
    /* frames to hand to the kernel */
    struct ss_list tx;        /* under the state lock */
    struct ss_thread *worker; /* the thread that polls it */
    pthread_mutex_t tx_lock;  /* guards tx_fd and plain_until */
    char name[16];            /* name of the interface */
    bool offload;             /* whether it may send super-frames */
    uint64_t plain_until;     /* ns: the interface has refused a super-frame, and gets none until then */
    bool super;               /* whether it received super-frames lately, which come in smaller batches */
    bool dirty;
    struct ss_port *next_dirty;
    uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes, rx_super;
    uint64_t corrupted;    /* frames of which a bit was flipped */
    uint64_t marked;       /* packets that were marked as having met congestion */
    uint64_t corrupt_turn; /* frames that could have been corrupted, counted for corrupt_every */
    atomic_uint_least64_t tx_super;
    uint64_t drops[SS_DROP_REASONS];
};

struct ss_replica {
    uint16_t port, rid;
};
struct ss_group {
    uint32_t n, truncate;
    struct ss_replica replicas[];
};
struct ss_group_map {
    struct ss_group **pages[256];
};

/* One kind of digest: whether it is enabled, and the messages that are not to be repeated. */
struct ss_digest {
    bool enabled, filter;
    uint32_t n, buckets; /* messages in the filter; size of `bucket` (a power of two, or 0) */
    struct ss_message **bucket;
};

/* The trace of a device: the next `left` frames that match. `program` is the program's traced variant. */
struct ss_trace {
    uint32_t left;
    int32_t in_port, out_port; /* -1: any */
    const struct ss_program *program;
};

/* The lock of those elements of a device's registers whose index leaves one remainder. */
#define SS_SHARDS 256u
struct ss_shard {
    pthread_mutex_t lock __attribute__((aligned(64)));
};

struct ss_device {
    struct ss_fabric *fabric;
    struct ss_shard *shards; /* SS_SHARDS of them */
    struct ss_thread *thread;
    struct ss_device *next;
    uint64_t id;
    int cpu_port;          /* -1: none */
    unsigned n_interfaces; /* number of interfaces that it has been given so far */
    bool spread;           /* whether several threads have polled its interfaces */
    uint32_t priorities;   /* queues per port; packets of this priority and above are dropped; 1 is bmv2's default */
    const struct ss_program *program;
    struct ss_state state;
    bool active;  /* a program is loaded and ready */
    bool capture; /* hand frames for unused ports to the host */
    struct ss_group_map groups, sessions;
    struct ss_digest *digests; /* has program->n_digests elements */
    uint32_t generation;       /* counts programs: events of an earlier one are stale */
    struct ss_trace trace;
    struct ss_port *ports[SS_MAX_PORTS];
    uint64_t drops[SS_DROP_REASONS];
    uint64_t random;
    uint64_t next_handle;
};

/* A copy that waits behind the present frame: a clone, or a resubmitted or recirculated copy. */
struct ss_pending {
    struct ss_pending *next;
    bool egress;
    uint16_t port;
    uint32_t parsed;
    struct ss_buf *buf;
    /* as large as the program's packet state; generated code relies on it */
    struct ss_packet packet __attribute__((aligned(64)));
};

/* A fair lock: the thread that holds `turn` is next. Without it a busy thread would take its lock again before one that
 * waits wakes up. */
struct ss_lock {
    pthread_mutex_t lock, turn;
};

/* A fair lock with a cache line of its own. */
struct ss_gate {
    struct ss_lock lock __attribute__((aligned(64)));
};

/* Frames on their way to a port's interface. */
struct ss_output {
    struct ss_port *port;
    struct ss_list frames;
};

struct ss_thread {
    struct ss_fabric *fabric;
    pthread_t id;
    bool running;
    unsigned number; /* in the fabric */
    struct ss_lock io, state;
    struct ss_gate *gates; /* of the devices that this thread owns, one for each thread of the fabric */
    unsigned depth;        /* how many times its holder took `state`, minus one */
    int epoll, wake;
    atomic_bool sleeping;
    pthread_mutex_t inbox_lock;
    struct ss_list inbox, local;
    atomic_uint inbox_n;
    struct ss_port **heap;
    int heap_n, heap_size;
    struct ss_port *dirty;
    struct ss_list pool;
    struct ss_packet *packets[2]; /* scratch space, of packet_size bytes each */
    uint32_t packet_size;
    struct ss_pending *pending, **pending_tail;
    unsigned passes;
    struct ss_list *collect;   /* if set, collects what leaves instead of sending it (ss_process) */
    struct ss_device *tracing; /* the device whose present frame is traced, or NULL */
    /* A thread that runs packets beside others is a ss_thread of its own, with nothing but scratch space, `collect` and
     * the following; in other threads `counts` and `dropped` are NULL. */
    struct ss_counts *counts;
    uint64_t *dropped; /* by reason */
    uint64_t rx_packets, rx_bytes;
    struct ss_thread *visitor; /* the one of this thread, made at first use */
    bool trace_matched;        /* whether that frame left by the requested port */
    bool trace_full;
    uint8_t *trace; /* records: point, length, data */
    uint32_t trace_len, trace_capacity;
    uint64_t now_ns, now_us;        /* now_us: since the fabric was made, when the present frame came */
    bool busy;                      /* frames wait in `local` */
    atomic_uint_least64_t next_due; /* time to be awake; other threads only make it earlier */
    uint64_t idle_due;              /* time when the first entry may have been idle for its timeout */
    struct ss_rx *rx;
    struct ss_output *outputs; /* what this thread has to send, of any device */
    unsigned n_outputs, outputs_size;
};

struct ss_event {
    struct ss_event *next;
    uint32_t type, port, len, generation;
    uint64_t device;
    uint8_t data[];
};
enum {
    SS_EVENT_PACKET_IN = 1,
    SS_EVENT_CAPTURE = 2,
    SS_EVENT_LOG = 3,
    SS_EVENT_DIGEST = 4,
    SS_EVENT_TRACE = 5,
    SS_EVENT_IDLE = 6,
    SS_EVENT_PCAP_ENDED = 7,
    SS_EVENT_TYPES
};

/* Trace points of the switch itself; a program's are numbered from 0. Data: up to three uint32_t. */
enum {
    SS_TRACE_RECEIVED = 0x80000000u, /* port, bytes */
    SS_TRACE_DROPPED,                /* reason */
    SS_TRACE_CLONE,                  /* session, copies */
    SS_TRACE_MULTICAST,              /* group, copies */
    SS_TRACE_EGRESS,                 /* port, replication id, instance type */
    SS_TRACE_RESUBMIT,
    SS_TRACE_RECIRCULATE, /* bytes */
    SS_TRACE_AGAIN,       /* instance type: a copy that waited begins in ingress */
    SS_TRACE_DEPARSED,    /* bytes of headers, bytes of payload kept */
    SS_TRACE_SENT,        /* port, bytes */
    SS_TRACE_TOO_LONG,
};

struct ss_fabric {
    unsigned n_threads;
    struct ss_thread *threads;
    struct ss_device *devices;
    uint64_t seed, start_ns;
    atomic_bool stopping;
    pthread_mutex_t event_lock;
    pthread_cond_t event_ready;
    struct ss_event *events, **events_tail;
    uint32_t n_events[SS_EVENT_TYPES];
    uint64_t event_bytes[SS_EVENT_TYPES];
    bool events_closed;
};

extern __thread struct ss_thread *ss_current; /* the data-plane thread that runs this code, or NULL */

/* buffers (buffer.c) */
struct ss_buf *ss_buf_new(uint32_t len);
struct ss_buf *ss_buf_copy(const uint8_t *data, uint32_t len);
/* Returns another buffer with the same bytes, which nobody may change from now on. NULL: no memory. */
struct ss_buf *ss_buf_share(struct ss_buf *buf);
void ss_buf_free(struct ss_buf *buf);
static inline bool ss_buf_shared(const struct ss_buf *buf) {
    return buf->origin || atomic_load_explicit(&buf->holders, memory_order_acquire) > 1;
}
static inline void ss_push(struct ss_list *list, struct ss_buf *buf) {
    buf->next = NULL;
    if (list->tail)
        list->tail->next = buf;
    else
        list->head = buf;
    list->tail = buf;
    list->n++;
}
static inline struct ss_buf *ss_pop(struct ss_list *list) {
    struct ss_buf *buf = list->head;
    if (buf) {
        list->head = buf->next;
        if (!list->head) list->tail = NULL;
        list->n--;
    }
    return buf;
}
void ss_list_free(struct ss_list *list);

/* locking and time (fabric.c) */
void ss_lock(struct ss_lock *lock);
void ss_unlock(struct ss_lock *lock);
void ss_thread_lock(struct ss_thread *thread);
void ss_thread_unlock(struct ss_thread *thread);
void ss_gate_enter(struct ss_thread *owner, const struct ss_thread *thread);
void ss_gate_leave(struct ss_thread *owner, const struct ss_thread *thread);
void ss_wake(struct ss_thread *thread);
void ss_timers_changed(struct ss_thread *owner); /* called by another thread, which has locked the owner's state */
uint64_t ss_now_ns(void);
uint64_t ss_random(uint64_t *state);
void ss_post(struct ss_device *device, uint32_t type, uint32_t port, const void *data, uint32_t len);
uint32_t ss_events_waiting(struct ss_fabric *fabric, uint32_t type);

/* the switch (switch.c): the functions take over the buffer */
void ss_switch_receive(struct ss_thread *thread, struct ss_device *device, uint16_t port, struct ss_buf *buf);

/* packets beside others (share.c) */
struct ss_shard *ss_shards_new(void);
void ss_shards_free(struct ss_shard *shards);
void ss_hold_service(void *device, struct ss_packet *p, uint64_t index);
static inline void ss_release(struct ss_packet *p) {
    if (!p->target.held) return;
    pthread_mutex_unlock(&((struct ss_shard *)p->target.held)->lock);
    p->target.held = NULL;
}
/* Returns whether packets that come by the port (NULL: from the host) may run beside others. The caller has a gate. */
bool ss_shareable(const struct ss_device *device, const struct ss_port *port);
struct ss_thread *ss_visitor_new(void);
struct ss_thread *ss_visitor_of_caller(void);
void ss_visitor_free(void *visitor);
/* Runs frames through the program beside others. The caller has a gate; it then locks the owner's state and calls
 * ss_shared_end. */
void ss_shared_run(struct ss_thread *visitor, struct ss_device *device, uint16_t port, struct ss_list *frames);
void ss_shared_end(struct ss_thread *owner, struct ss_device *device, uint16_t port, struct ss_thread *visitor);

/* what leaves (egress.c) */
void ss_output(struct ss_thread *thread, struct ss_device *device, uint16_t port, struct ss_buf *buf);
uint64_t ss_port_backlog(struct ss_port *port, uint64_t now);
uint64_t ss_port_wait(const struct ss_port *port, unsigned class, uint64_t now);
struct ss_buf *ss_port_mark(struct ss_port *port, struct ss_buf *buf, uint64_t waiting);
void ss_port_propagate(struct ss_port *port, struct ss_buf *buf);
void ss_port_reshaped(struct ss_thread *thread, struct ss_port *port);
void ss_fire_timers(struct ss_thread *thread);
void ss_port_drain(struct ss_thread *thread, struct ss_port *port);
void ss_drop(struct ss_device *device, struct ss_port *port, enum ss_drop reason);

/* classes of service (classes.c) */
bool ss_classes_used(const struct ss_port *port);
uint64_t ss_classes_due(const struct ss_port *port);
void ss_classes_serve(struct ss_port *port, uint64_t now);
bool ss_classes_add(struct ss_port *port, struct ss_buf *buf, uint64_t now);
uint64_t ss_classes_wait(const struct ss_port *port, unsigned class, uint64_t now);
void ss_classes_drain(struct ss_port *port);

/* to interfaces (transmit.c) */
void ss_outputs_take(struct ss_thread *owner, struct ss_thread *thread);
void ss_outputs_send(struct ss_thread *thread);

/* digests (digest.c) */
void ss_digest_service(void *device, uint32_t digest, const uint8_t *data, uint32_t len);
void ss_digests_free(struct ss_digest *digests, uint32_t n);

/* recording (pcap.c) */
void ss_pcap(struct ss_port *port, int *file, const struct ss_buf *buf);
void ss_pcap_close(struct ss_port *port);

/* traces (trace.c) */
void ss_trace_service(void *device, uint32_t point, const uint8_t *data, uint32_t len);
void ss_trace_begin(struct ss_thread *thread, struct ss_device *device, uint16_t port, uint32_t len);
void ss_trace_end(struct ss_thread *thread);
void ss_trace_point(struct ss_thread *thread, uint32_t point, uint32_t a, uint32_t b, uint32_t c);
/* This costs one predicted branch when nothing is traced. */
#define SS_TRACE(thread, point, a, b, c)                                                \
    do {                                                                                \
        if (__builtin_expect((thread)->tracing != NULL, 0))                             \
            ss_trace_point(thread, point, (uint32_t)(a), (uint32_t)(b), (uint32_t)(c)); \
    } while (0)

/* what arrives (interface.c) */
int ss_interface_open(struct ss_port *port, const char *name);
void ss_interface_close(struct ss_port *port);
void ss_interface_receive(struct ss_thread *thread, struct ss_port *port);
struct ss_rx *ss_rx_new(void);
void ss_rx_free(struct ss_rx *rx);

/* checksum and segmentation offload that senders left to us (offload.c) */
struct ss_vnet {
    uint8_t flags, gso_type;
    uint16_t hdr_len, gso_size, csum_start, csum_offset;
};
bool ss_complete_checksum(uint8_t *data, uint32_t len, uint16_t start, uint16_t offset);
bool ss_segment(struct ss_buf *buf, uint32_t first, const uint8_t *more, const struct ss_vnet *vnet,
                struct ss_list *out);
struct ss_run {
    uint32_t frames, size; /* each frame but the last has `size` bytes of payload */
    uint32_t headers;      /* bytes before the payload */
    uint8_t last_flags;    /* TCP's FIN and PSH of the last frame */
    uint64_t payload;
};
void ss_run_find(struct ss_buf *const *frames, uint32_t n, uint32_t most, struct ss_run *run);
#define SS_UDP_HEADERS 42u /* bytes of headers of a UDP datagram over IPv4 without options */
#define SS_RUN_HEADERS 94u /* the most bytes of headers of a super-frame: TCP with all its options */
void ss_run_headers(const struct ss_buf *first, const struct ss_run *run, struct ss_vnet *vnet, uint8_t *out);

/* hash tables (map.c) */
bool ss_map_reserve(struct ss_map *map);
struct ss_slot *ss_map_add(struct ss_map *map, uint32_t hash, void *item); /* reserve first */
void ss_map_remove(struct ss_map *map, struct ss_slot *slot);
void ss_map_free(struct ss_map *map);

/* tables (tables.c) */
bool ss_table_init(struct ss_table *table, const struct ss_table_info *info);
void ss_table_clear(struct ss_table *table);
void ss_table_sort(struct ss_table *table);
void ss_bitmaps_add(struct ss_table *table, struct ss_entry *entry); /* bitmaps.c; the entry is already in the table */
void ss_bitmaps_remove(struct ss_table *table, const struct ss_entry *entry);
void ss_bitmaps_free(struct ss_table *table);
int ss_table_add(struct ss_table *t, const uint64_t *key, const uint64_t *mask, const uint8_t *ranges, int32_t priority,
                 uint64_t handle, struct ss_entry **out);
struct ss_entry_key { /* the identity of an entry in a table */
    const uint64_t *key, *mask;
    const uint8_t *ranges;
    int32_t priority;
};
struct ss_table *ss_table_of(struct ss_device *device, uint32_t table);
int ss_entry_insert(struct ss_device *device, struct ss_table *t, const struct ss_entry_key *k, uint32_t action,
                    const uint8_t *params, uint32_t params_len, uint32_t is_const);
int ss_entry_modify(struct ss_table *t, const struct ss_entry_key *k, uint32_t action, const uint8_t *params,
                    uint32_t params_len);
int ss_entry_delete(struct ss_device *device, struct ss_table *t, const struct ss_entry_key *k);
uint8_t *ss_record_write(struct ss_device *device, const struct ss_table *t, const struct ss_entry *e, uint8_t *out);
size_t ss_record_bytes(const struct ss_table *t);

/* idle timeouts (idle.c) */
struct ss_idle {
    struct ss_entry *entry;
    const struct ss_table *table;
    uint64_t ttl_ns;   /* 0: none */
    uint64_t since_ns; /* start of the present period */
    uint64_t due_ns;
    uint32_t at; /* index in the heap */
};
void ss_idle_init(const struct ss_table *t, struct ss_entry *e);
bool ss_idle_set(struct ss_device *device, const struct ss_table *t, struct ss_entry *e, uint64_t ttl_ns);
void ss_idle_stop(struct ss_state *state, const struct ss_table *t, struct ss_entry *e);
uint64_t ss_idle_ttl(const struct ss_table *t, const struct ss_entry *e);
void ss_idle_free(struct ss_state *state);
void ss_idle_arm(struct ss_device *device);
void ss_idle_fire(struct ss_thread *thread);

/* meters (meters.c). Rates are in bytes or packets per second. */
struct ss_meter_config {
    uint64_t mode, first_rate, second_rate, first_burst, second_burst;
};
void ss_meter_configure(struct ss_device *device, struct ss_meter *meter, const struct ss_meter_config *config);

/* action profiles, parser value sets (profiles.c, value_sets.c) */
void ss_profiles_free(struct ss_state *state, const struct ss_program *program);
bool ss_profiles_init(struct ss_state *state, const struct ss_program *program);
void ss_value_sets_free(struct ss_state *state, const struct ss_program *program);
bool ss_value_sets_init(struct ss_state *state, const struct ss_program *program);
bool ss_crcs_init(struct ss_state *state, const struct ss_program *program); /* crc.c */
void ss_groups_clear(struct ss_group_map *map);
struct ss_group *ss_group_get(const struct ss_group_map *map, uint32_t id);
bool ss_group_set(struct ss_group_map *map, uint32_t id, struct ss_group *group);

#endif

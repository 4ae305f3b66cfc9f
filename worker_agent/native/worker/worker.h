/* The worker's engine as Python and tests see it. */
#ifndef INART_WORKER_H
#define INART_WORKER_H

#include "check.h"
#include "engine.h"
#include "gathered.h"

#define NAME_BYTES 64
#define MESSAGE_BYTES 512

enum inart_status {
    STATUS_OK = 0,
    STATUS_MISMATCH = 1,
    STATUS_TIMEOUT = 2,
    STATUS_ABORTED = 3,
    STATUS_PROTOCOL = 4,
    STATUS_EXHAUSTED = 5 /* the sequence numbers of the epoch are used up */
};

/* ---- shared with worker_agent/native_worker.py, which reads the fields here (worker_agent/c_structures.py) ---- */
struct inart_tree_config {
    uint32_t tree, up_label, return_label, answer_label, slots, port, thread;
    uint32_t here;        /* the parameter server is on this host */
    uint32_t link;        /* of the host's links, over which it is sent */
    uint32_t directions;  /* 2: gathers have every second slot and a window of their own (direction.h); else 1 */
    uint32_t lanes, lane; /* how many the tree has, and which this one is: port, thread and rate are the lane's, slots
                             the tree's. Lanes of one tree come one after the other */
    double rate_mbps;     /* 0: not paced */
    double gather_speed;  /* times that rate, for chunks of an all-gather */
    uint32_t others;      /* labels that more results come with */
    const uint32_t *others_labels;
    char root[NAME_BYTES];
};

struct inart_worker_config {
    uint32_t job, epoch, workers, values, trees, index;
    uint8_t key[CHECK_KEY_BYTES]; /* of the epoch: check.h */
    uint32_t sources;
    const uint32_t *source; /* addresses of the parameter servers, host order; none: any */
    double timeout_seconds;
    uint32_t last_number; /* the last sequence number on the wire */
    const struct inart_tree_config *tree;
};

/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_part_range {
    uint64_t offset, count; /* elements */
};

/* How an operation's values travel: `fields` in a word (fields.h), or as `gathered` says (gathered.h). `residual` is a
 * float32 array of the same size for the part of each value that does not travel; NULL: it is not wanted. */
struct inart_encoding {
    uint32_t fields, stochastic;
    uint64_t seed;
    float *residual;
    struct inart_gathered gathered;
};

struct inart_completion {
    int64_t operation;
    int32_t status;
    double seconds, first_send, last_answer; /* first_send, last_answer: CLOCK_MONOTONIC */
    char message[MESSAGE_BYTES];
};

struct inart_tree_stats {
    uint64_t chunks_sent, resent_gap, resent_timeout, resent_recovery, answers, duplicates, refused, check_failures;
    uint64_t marked; /* answers: queues were too long (ECN) */
    uint64_t first_send_ns, last_answer_ns, busy_ns, next_sequence, oldest_unanswered;
    uint64_t numbers_used;          /* of all sequence numbers on the wire, in all directions and lanes */
    double rtt_seconds, rtt_lowest; /* lowest of the last second; of all */
};

struct inart_worker_stats {
    struct inart_packet_stats packets;
    uint64_t operations_done, operations_failed, bytes_reduced;
};

/* ------------------------------------------------------------------- */

struct inart_worker;

/* Calls that change something must come one at a time. */

extern const size_t inart_worker_sizes[]; /* of the structures above, in their order */

/* Returns how many packets of a tree may leave at a time (controlplane/planner/plan/pacing.py computes the same; a test
 * compares them). `total_mbps` is the rate of all trees of the worker. `shared` says that its link is also a parameter
 * server's. Plans then fill more links, and have more trees, and bursts of all workers that met on such a link filled
 * its queue. */
INART_PUBLIC double inart_worker_bucket(double rate_mbps, double total_mbps, uint32_t slots, uint32_t values,
                                        uint32_t shared);

/* Ends all pending operations and the I/O threads; completions can still be fetched. */
INART_PUBLIC void inart_worker_stop(struct inart_worker *w);

/* Frees the engine, after stop and when no other call is in progress. */
INART_PUBLIC void inart_worker_destroy(struct inart_worker *w);

INART_PUBLIC struct inart_worker *inart_worker_create(const struct inart_io_config *io,
                                                      const struct inart_worker_config *config, char *error,
                                                      size_t size);

/* Ends pending operations with `reason`, and uses the new configuration. Returns 0, or -1: the engine is unusable until
 * it gets a good one. */
INART_PUBLIC int inart_worker_reconfigure(struct inart_worker *w, const struct inart_worker_config *config,
                                          const char *reason, char *error, size_t size);

INART_PUBLIC void inart_worker_abort(struct inart_worker *w, const char *reason);

/* Takes note that the tree with `up_label` was rerouted. `rate_mbps` is its rate from now on (0: as before).
 * `contributions`: those in progress may be lost, and are sent once more. `results`: these may be lost, too, and the
 * parameter server sends them once more. `link` is the host's link over which it is sent from now on; -1: as before. */
INART_PUBLIC void inart_worker_rerouted(struct inart_worker *w, uint32_t up_label, double rate_mbps, int contributions,
                                        int results, int link);

/* Submits an operation, and returns its number; or -1 with the reason in `error` and the status in *status. For `kind`
 * and `source` see inart_layout: the array is one part a worker, or a single one in an all-reduce and a broadcast.
 * `number` and `range` are the trees, and the elements of each part that each tree carries. Only this function changes
 * `end` of a tree, and only worker_configure() changes the trees, so neither needs a lock. */
INART_PUBLIC int64_t inart_worker_submit(struct inart_worker *w, const void *in, void *out, uint64_t elements,
                                         int dtype, const struct inart_encoding *encoding, int mean, int kind,
                                         int source, uint32_t tag, uint32_t trees, const uint32_t *number,
                                         const struct inart_part_range *range, int32_t *status, char *error,
                                         size_t size);

/* Waits for one operation. Returns 1: `completion` is filled, and no other thread gets it; 0: another thread gets it;
 * -1: it has not ended within `seconds` (< 0: no limit). */
INART_PUBLIC int inart_worker_wait(struct inart_worker *w, int64_t operation, double seconds,
                                   struct inart_completion *completion);

/* Waits for the next completion. Returns 1: `completion` is filled; 0: none came within `seconds` (< 0: no limit); -1:
 * the engine is closing and nothing is left. */
INART_PUBLIC int inart_worker_next_completion(struct inart_worker *w, double seconds,
                                              struct inart_completion *completion);

/* Sets `oldest` to the oldest chunk without an answer of each of the trees `number`; UINT64_MAX where a tree has none.
 */
INART_PUBLIC void inart_worker_open(struct inart_worker *w, const uint32_t *number, uint64_t *oldest, uint32_t count);

/* Sets the counters of the engine, and those of the trees `number` in `trees`, which has room for `count` entries. */
INART_PUBLIC void inart_worker_statistics(struct inart_worker *w, struct inart_worker_stats *stats,
                                          struct inart_io_stats *io, const uint32_t *number,
                                          struct inart_tree_stats *trees, uint32_t count);

#endif

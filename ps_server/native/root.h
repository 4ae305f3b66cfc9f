/* The parameter server's engine as Python sees it. */
#ifndef INART_ROOT_H
#define INART_ROOT_H

#include "check.h"
#include "engine.h"

#define MOST_WORDS ((INART_MAX_WORKERS + 63) / 64) /* of a set of workers, a bit each */
#define INART_SUSPECTS 32

/* ---- shared with ps_server/server.py, which reads the fields here (worker_agent/c_structures.py) ---- */
struct inart_root_flow { /* partial: the bitmap says which parts are in a packet; else all of them */
    uint32_t label;
    int32_t partial;
    uint32_t workers;              /* in all parts */
    const uint32_t *worker, *part; /* each worker's index, and its part */
};

struct inart_root_tree_config {
    uint32_t tree, return_label, slots, flows, port, thread, here; /* here: a worker of the tree is on this host */
    uint32_t link;        /* of the host's links, over which results are sent */
    uint32_t directions;  /* 2: gathers have every second slot and a window of their own (direction.h); else 1 */
    uint32_t lanes, lane; /* as in inart_tree_config */
    double rate_mbps;     /* of results, as planned; 0: not known */
    const struct inart_root_flow *flow;
    const uint32_t *answer_labels; /* by worker index */
    const uint32_t *others_labels; /* all but this worker, by its index; NULL: there are none */
};

struct inart_root_config {
    uint32_t job, epoch, workers, values, trees;
    uint8_t key[CHECK_KEY_BYTES]; /* of the epoch: check.h */
    uint32_t sources;
    const uint32_t *source; /* addresses of the workers, host order; none: any */
    const struct inart_root_tree_config *tree;
};

/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_root_tree_stats {
    uint64_t packets, bytes, added, completed, duplicates, refused, results, answers, results_dropped, check_failures,
        questions;
    uint64_t first_packet_ns, last_result_ns;
    uint64_t oldest_incomplete, oldest_waiting_ns, newest; /* newest: highest sequence seen + 1 */
    uint64_t oldest_workers[MOST_WORDS];                   /* who is in the oldest incomplete chunk */
    uint64_t suspects[INART_SUSPECTS]; /* labels of packets that were wrong, in the upper half, and how many; 0: none */
    uint32_t suspect_workers[INART_SUSPECTS]; /* whose each of them is: the worker's index + 1; 0: of several */
};

/* ---------------------------------------------------------------- */

struct inart_root;

extern const size_t inart_root_sizes[]; /* of the structures above, in their order */

INART_PUBLIC void inart_root_destroy(struct inart_root *r);

INART_PUBLIC struct inart_root *inart_root_create(const struct inart_io_config *io,
                                                  const struct inart_root_config *config, char *error, size_t size);

/* Starts all chunks afresh with the new configuration. Returns 0, or -1 with the reason in `error`, and then the old
 * one stays. */
INART_PUBLIC int inart_root_reconfigure(struct inart_root *r, const struct inart_root_config *config, char *error,
                                        size_t size);

/* Takes note that the tree with `return_label` was rerouted. `mbps` is its rate from now on (0: as before). `results`:
 * those that workers may lack are sent once more. `link` is the host's link over which they are sent from now on; -1:
 * as before. */
INART_PUBLIC void inart_root_rerouted(struct inart_root *r, uint32_t return_label, double mbps, int results, int link);

/* Sets `oldest` to the oldest chunk of each of the trees `number` that lacks some worker; UINT64_MAX where a tree has
 * none. */
INART_PUBLIC void inart_root_open(struct inart_root *r, const uint32_t *number, uint64_t *oldest, uint32_t count);

/* Sets the counters of the engine, and those of the trees `number` in `trees`, which has room for `count` entries. */
INART_PUBLIC void inart_root_statistics(struct inart_root *r, struct inart_packet_stats *stats,
                                        struct inart_io_stats *io, const uint32_t *number,
                                        struct inart_root_tree_stats *trees, uint32_t count);

#endif

/* The state of a parameter server's engine: trees, their rings of chunks, flows, threads. */
#ifndef INART_ROOT_STATE_H
#define INART_ROOT_STATE_H

#include <stdatomic.h>

#include "cell.h"
#include "check.h"
#include "direction.h"
#include "engine.h"
#include "labels.h"
#include "root.h"
#include "stream.h"

#define EVERYBODY UINT16_MAX
#define MOST_PARTS 64              /* bits of a packet's bitmap */
#define RECENT_ATTEMPTS 16         /* a divisor of INART_ATTEMPTS */
#define GUARD_FIRST (2 * INART_MS) /* that packets may overtake each other by; doubles when that was too little */

struct root_cell {
    uint64_t owner;        /* sequence + 1; 0: fresh */
    uint32_t missing;      /* workers */
    uint8_t flags;         /* those of CHECK_KINDS that its packets have */
    uint8_t state;         /* enum cell_state */
    uint8_t attempt, asks; /* that it was asked for in, and how often */
    uint16_t asker; /* of a complete chunk, whom its result is to be sent once more: a worker's index + 1, or EVERYBODY;
                       0: nobody */
    bool congested; /* a switch has marked one of its packets: workers are told with its result */
    uint64_t asked_at; /* 0: never; of a complete chunk: when its result was last sent once more */
    uint64_t sent_at;  /* when its result was last sent to all */
};

struct root_tree {
    uint32_t number, return_label, slots, mask, lane; /* slots: of this direction and lane */
    struct inart_direction direction;
    struct inart_family family; /* of the first of a tree in its thread */
    uint32_t first;             /* that one's place among the thread's trees */
    struct root_cell *ring;
    uint64_t *workers; /* ring x words: who is in a chunk */
    uint32_t *values;  /* ring x values per packet, big-endian as on the wire */
    struct check_recent masks[CHECK_MASKS];
    struct check_results results[2]; /* of sums, and of maxima */
    uint64_t oldest;                 /* incomplete */
    uint64_t oldest_since;
    uint64_t wary_until;                     /* each packet is verified before it is added */
    uint32_t *answer_labels, *others_labels; /* by worker index; others_labels: NULL: there are none */
    /* Results that are to be sent once more (cell.asker) are from `repeat` to before `repeat_end`. All packets to the
     * workers take tokens, which come at a little more than the planned rate (packets per second). Results are sent
     * once more with the tokens that new results leave, so that they never fill the links with packets that no worker
     * lacks. */
    uint64_t repeat, repeat_end, tokens_at;
    double planned, tokens;
    /* The state of asking.c. All workers have sent what is before `evident`; `evident_before` is that number at the
     * last look. `wanted` is the number, plus 1, of a chunk that a worker waits for; 0: none. */
    uint64_t evident, evident_before, wanted, look_at, guard;
    uint64_t wanted_asked, probed_at, probed; /* probed: by a RESEND of a chunk that lacked somebody */
    uint64_t question_rtt, asked_came;        /* when a chunk that was asked for came */
    uint64_t attempt_at[RECENT_ATTEMPTS];     /* when they were asked for; 0: and something of it has come */
    uint64_t unadded_since;                   /* packets that were asked for since then, and that no switch will add */
    uint64_t heard_of, heard[MOST_WORDS];     /* who was in a chunk that was asked for anew */
    uint64_t rate_since, guard_since;
    uint32_t unadded, rate_count;
    double rate;
    uint8_t attempt, wanted_asks, wanted_slow, wanted_left;
    struct inart_root_tree_stats stats;
};

struct root_flow {
    uint32_t tree;
    bool partial;
    uint32_t parts, workers;
    uint64_t everyone[MOST_WORDS]; /* of all parts */
    uint64_t *sets;                /* parts x words; of a flow that is not partial one for all parts */
};

struct root_thread {
    struct engine_thread engine; /* first */
    uint32_t job, epoch, values, workers, words;
    struct root_tree *trees;
    uint32_t tree_count;
    struct root_flow *flows;
    uint32_t flow_count;
    struct label_map labels;
    struct check *check;
    struct label_map sources; /* who may send */
    bool any_source;
    struct inart_packet_stats stats;
};

struct inart_root {
    struct inart_io_config io;
    struct root_thread *threads;
};

#endif

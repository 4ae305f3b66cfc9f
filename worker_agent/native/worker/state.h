/* The state of the worker's engine: trees, their rings of chunks, parts of operations, threads. */
#ifndef INART_WORKER_STATE_H
#define INART_WORKER_STATE_H

#include <math.h>
#include <stdarg.h>

#include "checked_numbers.h"
#include "collectives.h"
#include "direction.h"
#include "engine.h"
#include "fields.h"
#include "gathered.h"
#include "labels.h"
#include "numbering.h"
#include "numbers.h"
#include "pairs.h"
#include "stream.h"
#include "worker/chunk.h"
#include "worker/worker.h"

#define RECENT (500 * INART_MS)
#define NOT_AGREED (-1)
#define OWN_MIXED (-2)

/* Why a chunk is sent. FIRST: for the first time. REPEAT: once more, because the root or the controller has asked for
 * it. LATE: because no answer has come. PROBE: as LATE, but as a RESEND. ALONE, LOST: as a RESEND, past all switches,
 * because the root has asked for that, or because the chunk's result is lost. */
enum sending { SEND_FIRST, SEND_REPEAT, SEND_LATE, SEND_PROBE, SEND_ALONE, SEND_LOST };

struct worker_operation {
    int64_t id;
    const uint8_t *in;
    uint8_t *out;
    uint64_t elements;
    uint32_t tag;
    struct inart_layout layout; /* of its chunks */
    struct inart_layout
        places; /* of its array: other than `layout` where it is gathered, for then its chunks are an all-reduce's */
    struct inart_fields fields;
    struct inart_gathered gathered;
    float *residual;
    int dtype;
    float divisor;
    int32_t status;
    atomic_uint parts_left; /* and one while it is being submitted */
    uint64_t submitted;
    atomic_ullong first_send, last_answer;
    char message[MESSAGE_BYTES];
    struct worker_operation *next,
        *before; /* in the list of those that are under way, or of finished ones, which needs no `before` */
};

/* A thread that waits for one operation: it gets the completion itself; otherwise another thread would hand it on. */
struct worker_waiter {
    int64_t operation;
    struct worker_operation *ended; /* NULL: somebody else has it */
    bool told;
    pthread_cond_t woken;
    struct worker_waiter *next;
};

struct worker_part {
    struct worker_operation *operation;
    uint64_t base, offset, count;
    struct numbering order;
    uint32_t sent[KINDS], answered;
    int16_t *exponents; /* of each data chunk; NOT_AGREED - this worker's own and below: not yet agreed */
    int8_t *mixed;      /* of each group of them: 1: somebody has NaN or Inf there; 0: nobody; below: not yet agreed,
                           OWN_MIXED: this worker has */
    int32_t largest, smallest; /* of all workers' sizes of the operation; for messages */
    struct worker_part *next;
};

struct worker_chunk {
    uint64_t sent_at;
    uint16_t resends;
    uint8_t state, kind; /* state: enum chunk_state */
    uint8_t attempt;     /* that the root has asked for it in; kept also of a chunk that is not sent yet */
};

/* The state of congestion.h. `window` is the most chunks in progress, 0: as many as the plan has. `growth` is the
 * number that it grows by in a round trip without marks, and `least` its lowest value. `round_trip` is the average in
 * ns, with the time in queues; 0: none yet. */
struct congestion {
    double window, growth, least, round_trip;
    uint64_t since;        /* when the present round trip began */
    uint32_t clean, quick; /* round trips without a mark; times that the window grows as quickly because of them */
    bool marked;           /* in the present round trip something was */
};

struct worker_tree {
    struct inart_tree_config config; /* slots: of this direction and lane */
    struct inart_direction direction;
    struct inart_family family;     /* of the first of a tree in its thread */
    uint32_t mask, lane, period;    /* period: one in so many chunks is everybody's */
    struct worker_chunk *ring;      /* slots; [sequence & mask] for base <= sequence < base + slots */
    uint32_t unanswered;            /* chunks that were sent and have no answer */
    uint64_t base, base_since, end; /* oldest unanswered; since when; one past the newest submitted */
    uint64_t complete;              /* all before it are, as the root has said */
    /* Chunks that are to be sent again are from `repeat` to before `repeat_end`, and wait until `repeat_at`. */
    uint64_t repeat, repeat_end, repeat_at;
    uint64_t put_off_at;            /* when timers were last put off, because the tree was led another way */
    uint64_t asked_from, asked_end; /* the last chunks that the root has asked all for, and in which attempt */
    uint8_t asked_attempt;
    /* The most chunks in progress in an all-reduce: few while nothing is known of the tree; twice as many after each
     * round trip up to `window_quick`, then one more after each. `answers_since` counts the answers since it last grew
     * by one, and `window_cut` is when loss last made it smaller. */
    uint32_t window, window_quick, answers_since;
    uint64_t window_cut;
    /* The oldest unanswered chunk's timer: which chunk it is for, whether the chunk's result is known to be lost, and
     * how often the timer has run out. */
    uint64_t timed, due;
    bool timed_lost;
    unsigned waits;
    bool crowded; /* it was led another way, whose links may not carry both directions at once */
    struct worker_part *parts, *last, *cursor[KINDS];
    double packets_per_second, tokens, tokens_most, tokens_wake;
    double burst; /* tokens for what may leave at once: tokens_wake of them, refilled CATCH_UP times as fast */
    uint64_t tokens_at, progress_at, active_since; /* active_since: first send since it had nothing to do; 0: idle */
    double recent, before_recent,
        round_trip; /* ns: the lowest of the last RECENT and of the one before; of both; 0: none yet */
    double rtt_lowest;
    uint64_t recent_since;
    struct check_recent masks[2]; /* of this worker's check words */
    struct check_results results[KINDS];
    unsigned reorder; /* how tolerant of reordering: doubles when a result came by itself that counted as lost, halves
                         when none did for a while */
    uint64_t reorder_since; /* when it last changed */
    struct congestion congestion;
    struct inart_tree_stats stats;
};

struct worker_thread {
    struct engine_thread engine; /* first */
    struct inart_worker *worker;
    struct worker_tree *trees;
    uint32_t tree_count;
    struct label_map labels; /* answer and return labels -> the first of a tree's directions and lanes */
    struct inart_packet_stats stats;
    uint32_t random, rotation;
    uint64_t lingers_until;
    float scratch[INART_MAX_VALUES * INART_MOST_FIELDS];
};

struct inart_worker {
    struct inart_worker_config config;
    struct inart_io_config io;
    struct worker_thread *threads;
    struct check *check;
    struct label_map sources; /* who may send results */
    bool any_source;
    uint32_t data;         /* words of a packet that are data */
    atomic_bool failed;    /* nothing works until the next configuration */
    pthread_mutex_t mutex; /* covers the rest */
    pthread_cond_t finished;
    struct worker_operation *done, *done_last, *open; /* finished and not yet fetched; under way */
    struct worker_waiter *waiters;
    int64_t next_operation;
    char failure[MESSAGE_BYTES];
    int32_t failure_status;
    uint64_t operations_done, operations_failed, bytes_reduced;
    bool closing;
};

#endif

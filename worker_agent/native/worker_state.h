/* What the worker's engine holds: trees, their rings of chunks, parts of operations, threads. Included by worker.c only. */
#ifndef INART_WORKER_STATE_H
#define INART_WORKER_STATE_H

#include <math.h>
#include <stdarg.h>

#include "checked_numbers.h"
#include "collectives.h"
#include "engine.h"
#include "fields.h"
#include "gathered.h"
#include "labels.h"
#include "numbering.h"
#include "numbers.h"
#include "pairs.h"
#include "stream.h"

#define NAME_BYTES 64
#define MESSAGE_BYTES 512
#define MS (INART_NS / 1000)
#define RTO_INITIAL (100 * MS)
#define RTO_LOWEST (20 * MS)
#define RTO_LOWEST_START (50 * MS) /* while nothing has been answered: peers seldom start at once */
#define RTO_LOWEST_LOST (5 * MS)   /* of a result that is lost: waits for no peer */
#define BACKOFF_LONGEST (500 * MS) /* unless the round trip is longer anyway */
#define BACKOFF_LOST (100 * MS)
#define BACKOFF_MOST 6
#define PROBE_AFTER 3              /* times that the oldest chunk was sent again in vain, before the first RESEND of it */
#define LATE_SHARE 0.25            /* of a tree's rate: copies of late chunks that all workers together send, */
#define LATE_MOST 32               /* ... or, of a tree without a rate, so many at a time */
#define SLOW 100                   /* packets a second of a tree: below, timers that double go on doubling */
#define ASKED_IN_VAIN 4            /* of so many questions for a result one is a contribution */
#define PROBES 2                   /* of all workers' repeats after that, about so many at a time are RESENDs */
#define SPREAD_MOST (1000 * MS)    /* of the times at which workers ask for a result that all of them may lack */
#define WINDOW_FIRST 4             /* chunks under way, at least, when nothing is known of the tree */
#define ROUND_TRIP_MOST (250 * MS)
#define RECENT (500 * MS)
#define REORDER_MOST 16
#define REORDER_KEPT (2000 * MS) /* for which packets that overtake each other are remembered */
#define TOKEN_SLEEP (20 * MS)          /* up to here, waiting for tokens does not listen for packets */
#define BURST_SECONDS 0.001            /* of a tree's packets that leave at a time, */
#define BURST_MESSAGES 4               /* ... and super-frames: the 256 KB that a switch's buffers hold of each sender */
#define FEW 8                          /* packets that a slow tree may collect, */
#define FEW_SECONDS 0.004              /* ... if they are no more than all trees send in this time */
#define FEW_SECONDS_SHARED 0.001       /* ... or in this, of a worker that shares its link with a parameter server; */
#define FEW_SHARED 2                   /* ... of such a worker so many in any case */
#define SLACK_SECONDS 0.003            /* being late by this loses nothing */
#define SLACK_SHARED 2                 /* buckets: neither does waiting for so much of a link that is shared with a parameter server */
#define CATCH_UP 2.0                   /* times the tree's rate */
#define ARRAY_FETCH 4096               /* bytes: how far ahead of what is read of an array; more than the processor does by itself */
#define AT_ONCE (64u << 10)            /* bytes: what is no larger, and has nothing before it, the submitting thread sends itself */
#define LINGER (10 * MS)               /* a thread that has just had something to do looks so often again, so that nobody must wake it, */
#define LINGERS (50 * MS)              /* ... for so long */
#define NOT_AGREED (-1)
#define OWN_MIXED (-2)

enum { UNSENT, SENT, ANSWERED };
/* FIRST: for the first time. REPEAT: once more, because the root or the controller has asked for it. LATE: because no answer has
 * come. ALONE, LOST: once more as a RESEND, past all switches: because the root has asked for it so; because its result is lost. */
enum sending { FIRST, REPEAT, LATE, PROBE, ALONE, LOST };
enum inart_status { STATUS_OK = 0, STATUS_MISMATCH = 1, STATUS_TIMEOUT = 2, STATUS_ABORTED = 3, STATUS_PROTOCOL = 4 };

/* ---- shared with worker_agent/native_worker.py (ctypes), which compares the sizes (inart_worker_sizes) ---- */
struct inart_tree_config {
    uint32_t tree, up_label, return_label, answer_label, slots, port, thread;
    uint32_t here;    /* the parameter server is on this host */
    double rate_mbps; /* 0: not paced */
    double gather_speed; /* times that rate, for chunks of an all-gather */
    uint32_t others;     /* labels that more results come with */
    const uint32_t *others_labels;
    char root[NAME_BYTES];
};
struct inart_worker_config {
    uint32_t job, epoch, workers, values, trees, index;
    uint8_t key[CHECK_KEY_BYTES]; /* of the epoch: check.h */
    uint32_t sources;
    const uint32_t *source; /* addresses of the parameter servers, host order; none: any */
    double timeout_seconds;
    const struct inart_tree_config *tree;
};
/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_part_range {
    uint64_t offset, count; /* elements */
};
/* How an operation's values travel: `fields` in a word (fields.h), or as `gathered` says (gathered.h). residual: of a float32 array of the
 * same size, what of each value did not travel; NULL: nobody wants to know. */
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
    uint64_t first_send_ns, last_answer_ns, busy_ns, next_sequence, oldest_unanswered;
    double rtt_seconds, rtt_lowest; /* lowest of the last second; of all */
};
struct inart_worker_stats {
    struct inart_packet_stats packets;
    uint64_t operations_done, operations_failed, bytes_reduced;
};
/* ------------------------------------------------------------------- */

struct operation {
    int64_t id;
    const uint8_t *in;
    uint8_t *out;
    uint64_t elements;
    uint32_t tag;
    struct inart_layout layout; /* of its chunks */
    struct inart_layout places; /* of its array: other than `layout` where it is gathered, for then its chunks are an all-reduce's */
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
    struct operation *next, *before; /* in the list of those that are under way, or of finished ones, which needs no `before` */
};

/* A thread that waits for one operation: it gets the completion itself, where else a thread of its own would hand it on. */
struct waiter {
    int64_t operation;
    struct operation *ended; /* NULL: somebody else has it */
    bool told;
    pthread_cond_t woken;
    struct waiter *next;
};

struct part {
    struct operation *operation;
    uint64_t base, offset, count;
    struct numbering order;
    uint32_t sent[KINDS], answered;
    int16_t *exponents; /* of each data chunk; NOT_AGREED - this worker's own and below: not yet agreed */
    int8_t *mixed; /* of each group of them: 1: somebody has NaN or Inf there; 0: nobody; below: not yet agreed, OWN_MIXED: this worker has */
    int32_t largest, smallest; /* of all workers' sizes of the operation; for messages */
    struct part *next;
};

struct chunk {
    uint64_t sent_at;
    uint16_t resends;
    uint8_t state, kind;
    uint8_t attempt;  /* that the root has asked for it in; kept also of a chunk that is not sent yet */
    bool again;       /* is to be sent once more, in its turn */
    bool alone;       /* ... past all switches */
    bool awaited;     /* another worker's, of a gather */
    bool elsewhere;   /* the result goes to others: that it is complete is heard, and which is the first that is not */
};

struct tree {
    struct inart_tree_config config;
    uint32_t mask, lane, period; /* period: one in so many chunks is everybody's */
    struct chunk *ring; /* slots; [sequence & mask] for base <= sequence < base + slots */
    uint32_t unanswered; /* chunks that were sent and have no answer */
    uint64_t base, base_since, end; /* oldest unanswered; since when; one past the newest submitted */
    uint64_t complete;              /* all before it are, as the root has said */
    /* Chunks that are to be sent `again`, from `repeat` to before `repeat_end`, not before `repeat_at`. */
    uint64_t repeat, repeat_end, repeat_at;
    uint64_t asked_from, asked_end; /* the last chunks that the root has asked all for, and in which attempt */
    uint8_t asked_attempt;
    /* Chunks under way in an all-reduce at most: few while nothing is known of the tree; twice as many in each round trip up to
     * `window_quick`, then one more in each. answers_since: that came since it last grew so. window_cut: when loss last made it less. */
    uint32_t window, window_quick, answers_since;
    uint64_t window_cut;
    /* The oldest unanswered chunk's timer: of which chunk it is, if its result is known to be lost, how often it has run. */
    uint64_t timed, due;
    bool timed_lost;
    unsigned waits;
    struct part *parts, *last, *cursor[KINDS];
    double packets_per_second, tokens, tokens_most, tokens_wake;
    double burst; /* tokens for what may leave at once: tokens_wake of them, refilled CATCH_UP times as fast */
    uint64_t tokens_at, progress_at, active_since; /* active_since: first send since it had nothing to do; 0: idle */
    double recent, before_recent, round_trip; /* ns: the lowest of the last RECENT and of the one before; of both; 0: none yet */
    double rtt_lowest;
    uint64_t recent_since;
    struct check_recent sent_recent[KINDS], received_recent[KINDS];
    unsigned reorder;          /* how tolerant of reordering: doubles when a result came by itself that counted as lost, halves when none did for a while */
    uint64_t reorder_since;    /* when it last changed */
    struct inart_tree_stats stats;
};

struct io_thread {
    struct engine_thread engine; /* first */
    struct inart_worker *worker;
    struct tree *trees;
    uint32_t tree_count;
    struct label_map labels; /* answer and return labels -> tree */
    struct inart_packet_stats stats;
    uint32_t random, rotation;
    uint64_t lingers_until;
    float scratch[INART_MAX_VALUES * INART_MOST_FIELDS];
};

struct inart_worker {
    struct inart_worker_config config;
    struct inart_io_config io;
    struct io_thread *threads;
    struct check *check;
    struct label_map sources; /* who may send results */
    bool any_source;
    uint32_t data; /* words of a packet that are data */
    atomic_bool failed; /* nothing works until the next configuration */
    pthread_mutex_t mutex; /* covers the rest */
    pthread_cond_t finished;
    struct operation *done, *done_last, *open; /* finished and not yet fetched; under way */
    struct waiter *waiters;
    int64_t next_operation;
    char failure[MESSAGE_BYTES];
    int32_t failure_status;
    uint64_t operations_done, operations_failed, bytes_reduced;
    bool closing;
};

static uint32_t random_next(struct io_thread *x) /* xorshift: only spreads timers */
{
    x->random ^= x->random << 13;
    x->random ^= x->random >> 17;
    x->random ^= x->random << 5;
    return x->random;
}

static uint64_t random_below(struct io_thread *x, uint64_t n) { return n ? random_next(x) % n : 0; }

static struct chunk *chunk_of(struct tree *t, uint64_t sequence) { return &t->ring[sequence & t->mask]; }

static uint64_t sequence_of(const struct tree *t, const struct chunk *c)
{
    uint64_t index = (uint64_t)(c - t->ring);
    return t->base + ((index - t->base) & t->mask);
}

#endif

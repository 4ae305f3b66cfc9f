/* The worker's engine: I/O threads that move all-reduces over the trees of one configuration.
 *
 * Sequence numbers. Every operation is cut, at submission, into one part per tree that carries some of it. On its tree a
 * part takes the next E + D sequence numbers, for E exponent chunks and D data chunks (numbering.h). All workers submit the same
 * operations in the same order, so all of them number alike. Sending order within a tree: resends, then any exponent chunk that
 * the window allows (so those of the next operation travel during the last window of the present one), then data chunks whose
 * exponents are known.
 *
 * Loss. Exponent and data chunks are each sent in sequence order by every worker, and an exponent chunk before data of a higher
 * number, so an answer to a chunk sent later means that an earlier one was lost, once packets had time to overtake each other
 * (a gap); it is resent after a short random delay. A chunk that
 * was resent has a timer of its own with back-off. Of the others only the oldest unanswered chunk has a timer: when a peer
 * is late nothing is lost, and one resend (and one flush in the switches) is all that it costs. Once such a resend is
 * answered, and nothing of what was sent once, more was lost (a switch has died): the next 2 follow, then 4, 8 and so on.
 * After a flush every worker's packet travels to the root by itself: W of them on links that the plan gave room for one. So
 * that resends cannot keep a link congested that they congested, those of a tree have a share of its rate, which halves
 * when a resent chunk needs to be sent again, down to 1/W, and grows with each that is answered.
 *
 * Repeating. When the controller has led a tree around what has failed, a switch may add there that has nothing of what is under
 * way. All workers are told, and send it once more, in order and at the tree's rate, without RESEND: to the switches these are
 * copies that the network has made, they are added up, and one sum a chunk goes to the root instead of W packets. Timers hold
 * for what is not answered then, as for what is sent for the first time. Where results may have been lost, the parameter server
 * sends them once more, before workers would ask for them.
 *
 * Pacing. A tree's packets leave at its rate: at most 1 ms worth of them at a time, of a slow one a few, and never more than
 * 4 super-frames. When the machine let the thread wait, it catches up at twice the rate.
 *
 * Threads. Trees are spread over the threads by their ports; a thread's lock covers its trees and its lanes, and it lets go
 * of it while it sleeps. It sleeps until the next event (tokens, timers, packets, a submission), and when tokens are what it
 * waits for it does not wake for each answer. The engine's own lock (taken last) covers what has ended. An operation ends
 * with its last part: after a failure each thread drops its parts, so nobody writes to a tensor that was given back.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdarg.h>

#include "collectives.h"
#include "engine.h"
#include "labels.h"
#include "numbering.h"
#include "numbers.h"
#include "stream.h"

#define NAME_BYTES 64
#define MESSAGE_BYTES 512
#define MS (INART_NS / 1000)
#define RTO_INITIAL (100 * MS)
#define RTO_LOWEST (20 * MS)
#define RTO_LOWEST_START (50 * MS) /* while nothing has been answered: peers seldom start at once */
#define RTO_LOWEST_RESENT (5 * MS) /* of a chunk that was resent: waits for no peer */
#define BACKOFF_LONGEST (250 * MS) /* unless the round trip is longer anyway */
#define ROUND_TRIP_MOST (250 * MS)
#define RECENT (500 * MS)
#define BACKOFF_MOST 6
#define RESEND_BURST 8.0
#define RESEND_SHARE_STEP (1 / 16.0)
#define TOKEN_SLEEP (20 * MS)          /* up to here, waiting for tokens does not listen for packets */
#define BURST_SECONDS 0.001            /* of a tree's packets that leave at a time, */
#define BURST_MESSAGES 4               /* ... and super-frames: the 256 KB that a switch's buffers hold of each sender */
#define FEW 8                          /* packets that a slow tree may collect, */
#define FEW_SECONDS 0.004              /* ... if they are no more than all trees send in this time */
#define SLACK_SECONDS 0.003            /* being late by this loses nothing */
#define CATCH_UP 2.0                   /* times the tree's rate */
#define ARRAY_FETCH 4096               /* bytes: how far ahead of what is read of an array; more than the processor does by itself */
#define NONE UINT32_MAX

enum { UNSENT, SENT, ANSWERED };
enum { LIST_NONE, LIST_FIRST, LIST_RESEND };
enum sending { FIRST, REPEAT, RESEND };
enum inart_status { STATUS_OK = 0, STATUS_MISMATCH = 1, STATUS_TIMEOUT = 2, STATUS_ABORTED = 3, STATUS_PROTOCOL = 4 };

/* ---- shared with worker_agent/engine.py (ctypes), which compares the sizes (inart_worker_sizes) ---- */
struct inart_tree_config {
    uint32_t tree, up_label, return_label, answer_label, slots, port, thread;
    double rate_mbps; /* 0: not paced */
    char root[NAME_BYTES];
};
struct inart_worker_config {
    uint32_t job, epoch, workers, values, trees, index;
    double timeout_seconds;
    const struct inart_tree_config *tree;
};
/* struct inart_io_config, inart_io_stats: engine.h */
struct inart_part_range {
    uint64_t offset, count; /* elements */
};
struct inart_completion {
    int64_t operation;
    int32_t status;
    double seconds, first_send, last_answer; /* first_send, last_answer: CLOCK_MONOTONIC */
    char message[MESSAGE_BYTES];
};
struct inart_tree_stats {
    uint64_t chunks_sent, resent_gap, resent_timeout, resent_recovery, answers, duplicates, refused;
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
    struct inart_layout layout;
    int dtype;
    float divisor;
    int32_t status;
    atomic_uint parts_left; /* and one while it is being submitted */
    uint64_t submitted;
    atomic_ullong first_send, last_answer;
    char message[MESSAGE_BYTES];
    struct operation *next; /* in the list of finished operations */
};

struct part {
    struct operation *operation;
    uint64_t base, offset, count;
    struct numbering order;
    uint32_t sent[KINDS], answered;
    int16_t *exponents; /* of each data chunk; -1: not yet agreed */
    struct part *next;
};

struct chunk {
    uint64_t sent_at, due; /* due: of a chunk in the resend list */
    uint32_t previous, next;
    uint16_t resends;
    uint8_t state, list, kind;
    uint8_t gap, recovery; /* found missing: because a later one was answered; because a resend before it was */
    bool repeated;                  /* ... without RESEND: which copy was answered is not known */
    bool awaited;                   /* another worker's, of a gather: `due` says when it counts as lost */
    bool theirs;                    /* another worker's, of a reduce-scatter: only the first that is missing is known */
};

struct list {
    uint32_t head, tail;
};

/* The newest chunk that was sent once and has its answer: what was sent before it should have been answered, too. */
struct evidence {
    uint64_t sequence, rtt;
    bool any;
};

struct tree {
    struct inart_tree_config config;
    uint32_t mask, lane;
    struct chunk *ring; /* slots; [sequence & mask] for base <= sequence < base + slots */
    uint32_t unanswered; /* chunks that were sent and have no answer */
    uint64_t base, base_since, end; /* oldest unanswered; since when; one past the newest submitted */
    uint64_t complete;              /* all before it are, as the root has said */
    /* What was sent and has no answer is sent once more, from `repeat` to before `repeat_end`, not before `repeat_at`. */
    uint64_t repeat, repeat_end, repeat_at;
    struct part *parts, *last, *cursor[KINDS];
    struct list first[KINDS], resend;
    uint64_t resend_due;       /* no entry of the resend list is due earlier */
    struct evidence evidence[KINDS];
    double packets_per_second, tokens, tokens_most, tokens_wake;
    double burst; /* tokens for what may leave at once: tokens_wake of them, refilled CATCH_UP times as fast */
    uint64_t tokens_at, progress_at, active_since; /* active_since: first send since it had nothing to do; 0: idle */
    double recent, before_recent, round_trip; /* ns: the lowest of the last RECENT and of the one before; of both; 0: none yet */
    double rtt_lowest;
    uint64_t recent_since;
    double resend_share, resend_tokens; /* of the tree's rate, for resends; what is there now */
    uint64_t resend_tokens_at, resend_share_cut;
    uint32_t recovery, recovering; /* chunks that are to be resent together, at recovery_due; of the last such, unanswered */
    uint64_t recovery_due, recovery_since; /* since: what was sent once before it is answered when nothing was lost */
    unsigned reorder;          /* how tolerant of reordering: grows when a gap's resend was needless */
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
    float scratch[INART_MAX_VALUES];
};

struct inart_worker {
    struct inart_worker_config config;
    struct inart_io_config io;
    struct io_thread *threads;
    int fraction_bits;
    atomic_bool failed; /* nothing works until the next configuration */
    pthread_mutex_t mutex; /* covers the rest */
    pthread_cond_t finished;
    struct operation *done, *done_last;
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

/* ---- lists of chunks ---- */

static struct chunk *chunk_of(struct tree *t, uint64_t sequence) { return &t->ring[sequence & t->mask]; }

static struct list *list_of(struct tree *t, struct chunk *c) { return c->list == LIST_RESEND ? &t->resend : &t->first[c->kind]; }

static void list_add(struct tree *t, struct chunk *c, int which)
{
    uint32_t i = (uint32_t)(c - t->ring);
    c->list = (uint8_t)which;
    struct list *l = list_of(t, c);
    c->previous = l->tail;
    c->next = NONE;
    if (l->tail == NONE)
        l->head = i;
    else
        t->ring[l->tail].next = i;
    l->tail = i;
}

static void list_remove(struct tree *t, struct chunk *c)
{
    if (c->list == LIST_NONE)
        return;
    struct list *l = list_of(t, c);
    if (c->previous == NONE)
        l->head = c->next;
    else
        t->ring[c->previous].next = c->next;
    if (c->next == NONE)
        l->tail = c->previous;
    else
        t->ring[c->next].previous = c->previous;
    c->list = LIST_NONE;
}

/* ---- finishing operations ---- */

/* One of its parts has ended, or its submission. */
static void operation_part_ended(struct inart_worker *w, struct operation *o, bool well)
{
    pthread_mutex_lock(&w->mutex);
    if (!well && o->status == STATUS_OK) {
        o->status = w->failure_status;
        memcpy(o->message, w->failure, sizeof o->message);
    }
    if (atomic_fetch_sub(&o->parts_left, 1) == 1) {
        if (w->done)
            w->done_last->next = o;
        else
            w->done = o;
        w->done_last = o;
        if (o->status == STATUS_OK) {
            w->operations_done++;
            w->bytes_reduced += o->elements * inart_dtype_bytes(o->dtype);
        } else
            w->operations_failed++;
        pthread_cond_broadcast(&w->finished);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void part_free(struct part *p)
{
    free(p->exponents);
    free(p);
}

/* After a failure: a thread's parts end with it, and what it has built is not sent. */
static void drop_parts(struct io_thread *x)
{
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct tree *t = &x->trees[i];
        while (t->parts) {
            struct part *p = t->parts;
            t->parts = p->next;
            operation_part_ended(x->worker, p->operation, false);
            part_free(p);
        }
        t->last = t->cursor[EXPONENT] = t->cursor[DATA] = NULL;
    }
    if (x->engine.io)
        io_clear(x->engine.io);
}

/* Everything pending ends, as soon as each thread comes to it; the engine refuses work until it is configured again. */
static void set_failure(struct inart_worker *w, int32_t status, const char *message)
{
    pthread_mutex_lock(&w->mutex);
    if (!atomic_load(&w->failed)) {
        snprintf(w->failure, sizeof w->failure, "%s", message);
        w->failure_status = status;
        atomic_store(&w->failed, true);
    }
    pthread_mutex_unlock(&w->mutex);
}

__attribute__((format(printf, 3, 4))) static void fail(struct io_thread *x, int32_t status, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    set_failure(x->worker, status, message);
    drop_parts(x);
    for (uint32_t i = 0; i < x->worker->io.threads; i++)
        if (&x->worker->threads[i] != x)
            engine_wake(&x->worker->threads[i].engine);
}

/* Not for the threads themselves: when it returns, all operations have ended. */
static void fail_all(struct inart_worker *w, int32_t status, const char *message)
{
    set_failure(w, status, message);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        engine_enter(&w->threads[i].engine);
        drop_parts(&w->threads[i]);
        engine_leave(&w->threads[i].engine);
    }
}

/* ---- sending ---- */

static uint64_t chunks_of(const struct part *p) { return (uint64_t)p->order.exponents + p->order.data; }

static struct part *part_of(struct tree *t, uint64_t sequence)
{
    for (struct part *p = t->parts; p; p = p->next)
        if (sequence - p->base < chunks_of(p))
            return p;
    return NULL;
}

/* Elements of data chunk `index`: at most N, fewer in the last. */
static size_t chunk_elements(const struct part *p, uint32_t index, size_t n)
{
    uint64_t left = p->count - (uint64_t)index * n;
    return left < n ? (size_t)left : n;
}

/* Values in a chunk. */
static size_t chunk_values(const struct io_thread *x, const struct operation *o)
{
    return o->dtype == INART_BYTES ? INART_VALUE_BYTES * (size_t)x->worker->config.values : x->worker->config.values;
}

static uint64_t sequence_in(const struct part *p, int kind, uint32_t index) { return p->base + numbering_place(&p->order, kind, index); }

static uint64_t sequence_of_data(const struct part *p, uint32_t index) { return sequence_in(p, DATA, index); }

/* Where data chunk `index` is in the array, in bytes, and how many values it has. */
static uint64_t data_at(const struct io_thread *x, const struct part *p, uint32_t index, size_t *count)
{
    const struct operation *o = p->operation;
    uint64_t n = chunk_values(x, o), turn = inart_turn(&o->layout, index), at = (p->offset + turn * n) * inart_dtype_bytes(o->dtype);
    *count = chunk_elements(p, (uint32_t)turn, n);
    if (o->layout.kind != INART_ALL_REDUCE)
        at += inart_owner(&o->layout, sequence_of_data(p, index)) * o->layout.stride;
    return at;
}

static const float *load_chunk(struct io_thread *x, const struct part *p, uint32_t index, size_t *count)
{
    const struct operation *o = p->operation;
    const uint8_t *data = o->in + data_at(x, p, index, count);
    for (size_t i = 0; i < *count * inart_dtype_bytes(o->dtype); i += 64)
        __builtin_prefetch(data + ARRAY_FETCH + i);
    return inart_load(data, *count, o->dtype, x->scratch);
}

static bool everybodys(const struct tree *t, const struct part *p, uint32_t index)
{
    return inart_everybodys(sequence_of_data(p, index), index, p->order.data, t->config.slots);
}

/* Is data chunk `index` this worker's own? */
static bool own(const struct part *p, uint32_t index)
{
    const struct inart_layout *l = &p->operation->layout;
    return inart_owner(l, sequence_of_data(p, index)) == l->index;
}

/* What another worker's packet is enough for: this one sends nothing, but asks for it when it does not come. */
static bool awaited(const struct tree *t, const struct part *p, uint32_t index)
{
    return p->operation->layout.kind == INART_GATHER && !own(p, index) && !everybodys(t, p, index);
}

/* The flags of a data chunk beyond those of an all-reduce. */
static uint8_t data_flags(const struct tree *t, const struct part *p, uint32_t index)
{
    if (p->operation->layout.kind == INART_ALL_REDUCE || everybodys(t, p, index))
        return 0;
    if (p->operation->layout.kind == INART_REDUCE_SCATTER)
        return INART_FLAG_SCATTER;
    /* A RESEND waits in no switch for the others. */
    return INART_FLAG_RESEND | (own(p, index) ? INART_FLAG_SINGLE : INART_FLAG_ASK);
}

/* A chunk of a gather: the owner's bytes as they are; from the others zeros. */
static void write_bytes(struct io_thread *x, const struct part *p, uint32_t index, uint8_t *wire)
{
    size_t count = 0, size = chunk_values(x, p->operation);
    if (own(p, index)) {
        uint64_t at = data_at(x, p, index, &count);
        memcpy(wire, p->operation->in + at, count);
    }
    memset(wire + count, 0, size - count);
}

static void write_exponents(struct io_thread *x, const struct part *p, uint32_t chunk, int32_t *wire)
{
    const struct operation *o = p->operation;
    uint32_t n = x->worker->config.values;
    int32_t check[CHECK_VALUES] = {(int32_t)o->elements, -(int32_t)o->elements, (int32_t)o->tag, -(int32_t)o->tag};
    for (uint32_t j = 0; j < n; j++) {
        uint64_t position = (uint64_t)chunk * n + j;
        int32_t value = 0;
        if (position < CHECK_VALUES)
            value = check[position];
        else if (position - CHECK_VALUES < p->order.data && o->layout.kind != INART_GATHER) {
            size_t count;
            const float *values = load_chunk(x, p, (uint32_t)(position - CHECK_VALUES), &count);
            value = inart_exponent(values, count);
        }
        wire[j] = (int32_t)__builtin_bswap32((uint32_t)value);
    }
}

/* Builds the packet of one chunk; there is room. */
static void send_chunk(struct io_thread *x, struct tree *t, struct part *p, uint64_t sequence, enum sending how, uint64_t now)
{
    bool resend = how == RESEND;
    uint32_t index;
    int kind = numbering_chunk(&p->order, (uint32_t)(sequence - p->base), &index);
    struct inart_header h = {
        .flags = (uint8_t)((resend ? INART_FLAG_RESEND : 0) | (kind == EXPONENT ? INART_FLAG_MAXIMUM : 0)),
        .job = (uint16_t)x->worker->config.job, .label = t->config.up_label, .epoch = x->worker->config.epoch, .sequence = (uint32_t)sequence,
    };
    bool sends = resend || kind == EXPONENT || !awaited(t, p, index);
    if (kind == DATA)
        h.flags |= data_flags(t, p, index);
    int32_t *wire = sends ? inart_values(io_build(x->engine.io, t->lane, &h)) : NULL;
    if (kind == EXPONENT)
        write_exponents(x, p, index, wire);
    else if (p->operation->layout.kind != INART_GATHER) {
        size_t count;
        const float *values = load_chunk(x, p, index, &count);
        inart_quantise(values, count, x->worker->config.values, p->exponents[index], x->worker->fraction_bits, (uint32_t *)wire);
    } else if (sends)
        write_bytes(x, p, index, (uint8_t *)wire);
    struct chunk *c = chunk_of(t, sequence);
    c->sent_at = now;
    if (how == FIRST) {
        c->state = SENT;
        c->kind = (uint8_t)kind;
        c->awaited = !sends;
        c->theirs = kind == DATA && p->operation->layout.kind == INART_REDUCE_SCATTER && !own(p, index);
        list_add(t, c, LIST_FIRST);
        t->unanswered++;
        p->sent[kind]++;
        t->stats.chunks_sent += sends;
        unsigned long long never = 0;
        if (!atomic_load_explicit(&p->operation->first_send, memory_order_relaxed))
            atomic_compare_exchange_strong(&p->operation->first_send, &never, now);
        if (!t->stats.first_send_ns)
            t->stats.first_send_ns = now;
        if (!t->active_since)
            t->active_since = now;
    }
    if (io_complete(x->engine.io, t->lane))
        io_flush(x->engine.io, now);
    t->tokens -= 1; /* also for another worker's chunk: all go through the sequence numbers at the tree's rate */
    t->burst -= 1;
    if (sends) {
        x->stats.packets_sent++;
        x->stats.bytes_sent += x->engine.io->frame_bytes;
    }
}

/* Of its chunks of a kind, the number of the next to be sent. */
static uint64_t next_of(const struct part *p, int kind) { return sequence_in(p, kind, p->sent[kind]); }

static uint64_t limit_of(const struct tree *t, const struct part *p)
{
    return t->base + inart_window(&p->operation->layout, t->config.slots);
}

/* Over data chunks of a gather that came before this worker had come to them. */
static void pass_answered(struct tree *t, struct part *p)
{
    for (uint64_t next; p->sent[DATA] < p->order.data; p->sent[DATA]++) {
        next = sequence_of_data(p, p->sent[DATA]);
        if (next >= t->base && (next >= t->base + t->config.slots || chunk_of(t, next)->state != ANSWERED))
            return;
    }
}

/* Sends the next new chunk; false: none may go now. */
static bool send_next(struct io_thread *x, struct tree *t, uint64_t now)
{
    struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents)
        p = p->next;
    t->cursor[EXPONENT] = p;
    if (p && next_of(p, EXPONENT) < limit_of(t, p)) {
        send_chunk(x, t, p, next_of(p, EXPONENT), FIRST, now);
        return true;
    }
    p = t->cursor[DATA];
    while (p && (pass_answered(t, p), p->sent[DATA] == p->order.data))
        p = p->next;
    t->cursor[DATA] = p;
    if (!p || p->exponents[p->sent[DATA]] < 0)
        return false;
    if (next_of(p, DATA) >= limit_of(t, p))
        return false;
    send_chunk(x, t, p, next_of(p, DATA), FIRST, now);
    return true;
}

/* Sends the next chunk that is to be repeated; false: there is none. */
static bool repeat_next(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (now < t->repeat_at)
        return false;
    if (t->repeat < t->base)
        t->repeat = t->base;
    for (; t->repeat < t->repeat_end; t->repeat++) {
        struct chunk *c = chunk_of(t, t->repeat);
        if (c->state == SENT && c->list == LIST_FIRST && c->repeated) {
            send_chunk(x, t, part_of(t, t->repeat), t->repeat, REPEAT, now);
            t->repeat++;
            return true;
        }
    }
    return false;
}

/* How long to wait for an answer: from the quickest of the last round trips. Means say little here: a chunk that a peer lost,
 * or may not send yet, takes as long as the peer's timers, which would grow with them. Early is cheap: few chunks have a timer.
 * At least `least` ns, and the time of `packets` packets at the tree's rate, so that resends are a small part of it. */
static uint64_t timeout_of(const struct tree *t, uint64_t least, int packets)
{
    double wait = t->round_trip > 0 ? 2 * t->round_trip : RTO_INITIAL, lowest = (double)least;
    if (t->packets_per_second > 0 && packets * 1e9 / t->packets_per_second > lowest)
        lowest = packets * 1e9 / t->packets_per_second;
    if (wait < lowest)
        wait = lowest;
    return (uint64_t)wait;
}

/* For a chunk of which nothing says that it was lost: a peer may be late. */
static uint64_t patient_timeout_of(const struct tree *t)
{
    return timeout_of(t, t->stats.last_answer_ns < t->active_since ? RTO_LOWEST_START : RTO_LOWEST, 8);
}

static uint64_t spread(struct io_thread *x, uint64_t t) { return t + random_below(x, t / 4 + 1); }

/* The deadline of the oldest unanswered chunk, when it was sent once and no gap has shown; 0: none. */
static uint64_t oldest_due(struct tree *t)
{
    struct chunk *c = chunk_of(t, t->base);
    if (!t->parts || c->state != SENT || c->list != LIST_FIRST)
        return 0;
    return (c->sent_at > t->base_since ? c->sent_at : t->base_since) + patient_timeout_of(t);
}

static void resend_at(struct tree *t, struct chunk *c, uint64_t due)
{
    list_remove(t, c);
    c->due = due;
    list_add(t, c, LIST_RESEND);
    if (due < t->resend_due)
        t->resend_due = due;
}

/* How long after evidence against it a chunk is given, because packets may overtake each other. */
static uint64_t reorder_window(const struct tree *t)
{
    double window = t->round_trip / 4;
    if (window < MS / 2.0)
        window = MS / 2.0;
    return (uint64_t)(window * t->reorder);
}

static uint64_t sequence_of(const struct tree *t, const struct chunk *c)
{
    uint64_t index = (uint64_t)(c - t->ring);
    return t->base + ((index - t->base) & t->mask);
}

/* When the oldest chunk of a kind that was sent once counts as lost; UINT64_MAX: nothing speaks against it. */
static uint64_t gap_due(struct tree *t, int kind)
{
    const struct evidence *e = &t->evidence[kind], *data = &t->evidence[DATA];
    if (t->first[kind].head == NONE)
        return UINT64_MAX;
    if (data->any && (!e->any || data->sequence > e->sequence))
        e = data;
    struct chunk *c = &t->ring[t->first[kind].head];
    if (c->awaited)
        return c->due ? c->due : UINT64_MAX;
    if (c->theirs && sequence_of(t, c) != t->complete)
        return UINT64_MAX;
    return e->any && sequence_of(t, c) < e->sequence ? c->sent_at + e->rtt + reorder_window(t) : UINT64_MAX;
}

static void find_gaps(struct io_thread *x, struct tree *t, uint64_t now)
{
    for (int kind = 0; kind < KINDS; kind++)
        while (gap_due(t, kind) <= now) {
            struct chunk *c = &t->ring[t->first[kind].head];
            c->gap = 1;
            resend_at(t, c, now + random_below(x, (uint64_t)(t->round_trip / 4) + 1));
        }
}

/* When the next resend may go; `now` or earlier: at once. */
static uint64_t resend_allowed(struct tree *t, uint64_t now)
{
    if (!(t->packets_per_second > 0))
        return now;
    double rate = t->packets_per_second * t->resend_share;
    t->resend_tokens += (double)(now - t->resend_tokens_at) / 1e9 * rate;
    if (t->resend_tokens > RESEND_BURST)
        t->resend_tokens = RESEND_BURST;
    t->resend_tokens_at = now;
    return t->resend_tokens >= 1 ? now : now + 1 + (uint64_t)((1 - t->resend_tokens) / rate * 1e9);
}

/* A resent chunk has got no answer in time: at most once in `wait`, and not below what all workers together may send. */
static void resend_share_cut(struct io_thread *x, struct tree *t, uint64_t wait, uint64_t now)
{
    if (now - t->resend_share_cut < wait)
        return;
    t->resend_share_cut = now;
    t->resend_share /= 2;
    if (t->resend_share < 1.0 / x->worker->config.workers)
        t->resend_share = 1.0 / x->worker->config.workers;
}

/* A resend was answered that nothing but the time had called for, or all of those that followed one: what else was under way then
 * is likely to be lost, too. Answers that are only late come first: those of a peer that sends now are a burst apart. */
static void recovery_go_on(struct tree *t, struct chunk *c, uint64_t now)
{
    if (c->recovery)
        t->recovering--;
    bool of_resend = c->resends && (double)(now - c->sent_at) >= t->rtt_lowest / 2;
    if (!of_resend || (c->gap && !c->recovery)) {
        if (!c->resends && c->sent_at < t->recovery_since)
            t->recovery = 0;
        return;
    }
    t->recovery_since = c->sent_at;
    if (t->recovering)
        return;
    uint64_t wait = reorder_window(t);
    if (t->packets_per_second > 0 && (t->tokens_wake + 1) / t->packets_per_second * INART_NS > (double)wait)
        wait = (uint64_t)((t->tokens_wake + 1) / t->packets_per_second * INART_NS);
    t->recovery = t->recovery ? 2 * t->recovery : 2;
    if (t->recovery > t->config.slots)
        t->recovery = t->config.slots;
    t->recovery_due = now + wait;
}

static void recover(struct tree *t, uint64_t now)
{
    uint64_t last = t->base + t->config.slots < t->end ? t->base + t->config.slots : t->end;
    uint64_t late = (uint64_t)t->round_trip + reorder_window(t);
    t->recovery_due = UINT64_MAX;
    for (uint64_t sequence = t->base; sequence < last && t->recovering < t->recovery; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        if (c->state != SENT || c->list != LIST_FIRST || c->awaited || c->theirs || c->sent_at + late > now)
            continue;
        c->gap = c->recovery = 1;
        t->recovering++;
        resend_at(t, c, now);
    }
    if (!t->recovering)
        t->recovery = 0;
}

/* Sends the resends that are due, as far as their share of the rate, tokens and room allow. */
static void send_resends(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (t->recovery && t->recovery_due <= now)
        recover(t, now);
    uint64_t oldest = oldest_due(t);
    if (oldest && oldest <= now)
        resend_at(t, chunk_of(t, t->base), now);
    if (t->resend_due > now)
        return;
    uint64_t earliest = UINT64_MAX, patient = patient_timeout_of(t), quick = timeout_of(t, RTO_LOWEST_RESENT, 2);
    for (uint32_t i = t->resend.head; i != NONE; i = t->ring[i].next) {
        struct chunk *c = &t->ring[i];
        if (c->due <= now && t->tokens >= 1 && t->burst >= 1 && io_room(x->engine.io, t->lane)) {
            uint64_t allowed = resend_allowed(t, now);
            if (allowed > now) {
                if (allowed < earliest)
                    earliest = allowed;
                continue;
            }
            t->resend_tokens -= 1;
            if (c->resends)
                resend_share_cut(x, t, quick, now);
            uint64_t sequence = sequence_of(t, c), wait = c->gap ? quick : patient;
            if (c->recovery && !c->resends)
                t->stats.resent_recovery++;
            else if (c->gap && !c->resends)
                t->stats.resent_gap++;
            else
                t->stats.resent_timeout++;
            uint64_t most = wait > BACKOFF_LONGEST ? wait : BACKOFF_LONGEST;
            unsigned doublings = c->gap ? c->resends / 2 : c->resends + 1;
            wait <<= doublings < BACKOFF_MOST ? doublings : BACKOFF_MOST;
            if (wait > most)
                wait = most;
            if (c->resends < UINT16_MAX)
                c->resends++;
            send_chunk(x, t, part_of(t, sequence), sequence, RESEND, now);
            c->due = now + spread(x, wait);
        }
        if (c->due < earliest)
            earliest = c->due;
    }
    t->resend_due = earliest;
}

/* ---- receiving ---- */

static void evident(struct tree *t, const struct chunk *c, uint64_t now)
{
    uint64_t sequence = sequence_of(t, c);
    struct evidence *e = &t->evidence[c->kind];
    if (!e->any || sequence > e->sequence)
        *e = (struct evidence){sequence, now - c->sent_at, true};
}

static void measure(struct tree *t, const struct chunk *c, uint64_t now)
{
    if (c->resends) {
        t->resend_share = t->resend_share + RESEND_SHARE_STEP < 1 ? t->resend_share + RESEND_SHARE_STEP : 1;
        /* which copy was answered? Only: much too soon for the resend means that it was needless */
        if (t->rtt_lowest > 0 && (double)(now - c->sent_at) < t->rtt_lowest / 2 && t->reorder < 16)
            t->reorder *= 2;
        return;
    }
    if (c->awaited || c->state == UNSENT)
        return;
    double rtt = (double)(now - c->sent_at);
    if (c->repeated) { /* which copy was answered? */
        if (t->repeat > sequence_of(t, c) && now > c->sent_at && rtt >= t->rtt_lowest)
            evident(t, c, now);
        return;
    }
    if (t->rtt_lowest == 0 || rtt < t->rtt_lowest)
        t->rtt_lowest = rtt;
    if (now - t->recent_since > RECENT) {
        t->before_recent = t->recent;
        t->recent = rtt;
        t->recent_since = now;
    } else if (rtt < t->recent)
        t->recent = rtt;
    t->round_trip = t->before_recent > 0 && t->before_recent < t->recent ? t->before_recent : t->recent;
    /* In a stall even the quickest are slow: beyond any queue it is the stall that they measure. */
    double most = 4 * t->rtt_lowest > ROUND_TRIP_MOST ? 4 * t->rtt_lowest : ROUND_TRIP_MOST;
    if (t->round_trip > most)
        t->round_trip = most;
    evident(t, c, now);
}

/* The agreed exponents (and the check values). False: the engine has failed. */
static bool take_exponents(struct io_thread *x, struct tree *t, struct part *p, uint32_t chunk, const uint32_t *wire)
{
    uint32_t n = x->worker->config.values;
    bool gather = p->operation->layout.kind == INART_GATHER;
    if (gather) /* has none: all are there, and data may go */
        memset(p->exponents, 0, p->order.data * sizeof *p->exponents);
    for (uint32_t j = 0; j < n; j++) {
        uint64_t position = (uint64_t)chunk * n + j;
        int32_t value = (int32_t)__builtin_bswap32(wire[j]);
        if (position == 0 || position == 2) {
            int32_t opposite = (int32_t)__builtin_bswap32(wire[j + 1]);
            if (value != -opposite) {
                if (position == 0)
                    fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in size: the smallest has %d elements, the largest %d, "
                         "this worker's %llu", (long long)p->operation->id, -opposite, value, (unsigned long long)p->operation->elements);
                else
                    fail(x, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in dtype or operation (sum, mean), or their "
                         "agents are of different versions",
                         (long long)p->operation->id);
                return false;
            }
        } else if (position >= CHECK_VALUES && position - CHECK_VALUES < p->order.data && !gather) {
            if (!inart_exponent_valid(value)) {
                fail(x, STATUS_PROTOCOL, "tree %u (root %s): chunk %llu came back with an impossible exponent (%d)", t->config.tree,
                     t->config.root, (unsigned long long)(p->base + chunk), value);
                return false;
            }
            p->exponents[position - CHECK_VALUES] = (int16_t)value;
        }
    }
    return true;
}

static void take_values(struct io_thread *x, struct part *p, uint32_t index, const uint32_t *wire)
{
    struct operation *o = p->operation;
    if (o->layout.kind == INART_REDUCE_SCATTER && !own(p, index))
        return;
    size_t count;
    uint8_t *data = o->out + data_at(x, p, index, &count);
    if (o->layout.kind == INART_GATHER) {
        memcpy(data, wire, count);
        return;
    }
    bool stream = o->dtype == INART_FLOAT32 && o->elements * sizeof(float) >= INART_STREAM_LEAST;
    float *values = o->dtype == INART_FLOAT32 && !stream ? (float *)data : x->scratch;
    inart_dequantise(wire, count, p->exponents[index], x->worker->fraction_bits, o->divisor, values);
    if (stream)
        inart_stream(data, values, count * sizeof(float));
    else if (o->dtype != INART_FLOAT32)
        inart_store(values, count, o->dtype, data);
}

static void part_finish(struct io_thread *x, struct tree *t, struct part *p, uint64_t now)
{
    struct part **link = &t->parts, *before = NULL;
    while (*link != p) {
        before = *link;
        link = &(*link)->next;
    }
    *link = p->next;
    if (t->last == p)
        t->last = before;
    for (int kind = 0; kind < KINDS; kind++)
        if (t->cursor[kind] == p)
            t->cursor[kind] = p->next;
    if (!t->parts) {
        t->stats.busy_ns += now - t->active_since;
        t->active_since = 0;
    }
    struct operation *o = p->operation;
    part_free(p);
    inart_stream_end();
    atomic_store(&o->last_answer, now);
    operation_part_ended(x->worker, o, true);
}

/* Nothing more is to come of the chunk. */
static void answered(struct io_thread *x, struct tree *t, struct part *p, struct chunk *c, uint64_t now)
{
    if (c->state != UNSENT) {
        list_remove(t, c);
        t->unanswered--;
    }
    c->state = ANSWERED;
    t->stats.answers++;
    t->progress_at = now;
    if (++p->answered == chunks_of(p))
        part_finish(x, t, p, now);
}

/* The window moves on from what has been answered. */
static void advance(struct tree *t, uint64_t sequence, uint64_t now)
{
    if (sequence != t->base)
        return;
    while (t->base < t->end && chunk_of(t, t->base)->state == ANSWERED) {
        *chunk_of(t, t->base) = (struct chunk){.state = UNSENT, .list = LIST_NONE};
        t->base++;
    }
    t->base_since = now;
}

/* The root has said that all chunks before `complete` are. What this worker has added to a sum of another is done with; what
 * it has not got of a gather is on its way, or lost. */
static void hear(struct io_thread *x, struct tree *t, uint64_t complete, uint64_t now)
{
    if (complete > t->base + t->config.slots)
        complete = t->base + t->config.slots;
    for (uint64_t sequence = t->complete > t->base ? t->complete : t->base; sequence < complete; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        struct part *p = c->state == SENT && c->kind == DATA ? part_of(t, sequence) : NULL;
        uint32_t index;
        if (!p || p->operation->layout.kind != INART_REDUCE_SCATTER)
            continue;
        numbering_chunk(&p->order, (uint32_t)(sequence - p->base), &index);
        if (own(p, index))
            continue;
        answered(x, t, p, c, now);
        advance(t, sequence, now);
    }
    if (complete > t->complete)
        t->complete = complete;
    struct chunk *c = t->first[DATA].head == NONE ? NULL : &t->ring[t->first[DATA].head];
    if (c && c->awaited && !c->due && sequence_of(t, c) < t->complete)
        c->due = now + reorder_window(t);
}

static void receive(struct io_thread *x, uint8_t *packet, size_t length, uint64_t now)
{
    struct inart_header h;
    x->stats.packets_received++;
    x->stats.bytes_received += INART_OFFSET_HEADER + length;
    if (inart_parse(packet, length, x->engine.io->packet_bytes, &h)) {
        x->stats.malformed++;
        return;
    }
    int32_t number = h.flags & INART_FLAG_RESULT && h.job == x->worker->config.job ? label_map_get(&x->labels, h.label) : -1;
    if (number < 0) {
        x->stats.unknown++;
        return;
    }
    if (h.epoch != x->worker->config.epoch) {
        x->stats.other_epoch++;
        return;
    }
    struct tree *t = &x->trees[number];
    if (h.sequence < t->base) {
        t->stats.duplicates++;
        return;
    }
    struct chunk *c = chunk_of(t, h.sequence);
    if (h.sequence >= t->base + t->config.slots || (uint32_t)h.bitmap != x->worker->config.workers
        || (c->state != UNSENT && !(h.flags & INART_FLAG_MAXIMUM) != (c->kind == DATA))) {
        t->stats.refused++;
        return;
    }
    if (c->state == ANSWERED) {
        t->stats.duplicates++;
        return;
    }
    struct part *p = part_of(t, h.sequence);
    uint32_t index = 0;
    int kind = p ? numbering_chunk(&p->order, (uint32_t)(h.sequence - p->base), &index) : EXPONENT;
    /* Not sent: another worker may be ahead with its chunks of a gather. No part: after a failure. */
    if (!p || (c->state == UNSENT && (kind == EXPONENT || !awaited(t, p, index)))) {
        t->stats.refused++;
        return;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(packet);
    if (kind == DATA)
        take_values(x, p, index, wire);
    else if (!take_exponents(x, t, p, index, wire))
        return;
    measure(t, c, now);
    recovery_go_on(t, c, now);
    t->stats.last_answer_ns = now;
    answered(x, t, p, c, now);
    advance(t, h.sequence, now);
    hear(x, t, h.bitmap >> 32, now);
}

/* ---- the I/O thread ---- */

static void refill(struct tree *t, uint64_t now)
{
    if (t->packets_per_second > 0) {
        double fresh = (double)(now - t->tokens_at) * 1e-9 * t->packets_per_second;
        t->tokens = t->tokens + fresh < t->tokens_most ? t->tokens + fresh : t->tokens_most;
        t->burst = t->burst + CATCH_UP * fresh < t->tokens_wake ? t->burst + CATCH_UP * fresh : t->tokens_wake;
    } else
        t->tokens = t->burst = 1e9;
    t->tokens_at = now;
}

/* When there are tokens for a burst; small ones cost more. `now` or earlier: there are. */
static uint64_t burst_due(const struct tree *t, uint64_t now)
{
    double wanted = t->tokens_wake * 0.75 > 1 ? t->tokens_wake * 0.75 : 1;
    if (t->tokens >= wanted && t->burst >= wanted)
        return now;
    double tokens = (t->tokens_wake - t->tokens) / t->packets_per_second;
    double burst = (t->tokens_wake - t->burst) / (CATCH_UP * t->packets_per_second);
    return now + 1 + (uint64_t)((tokens > burst ? tokens : burst) * 1e9);
}

static bool has_next(const struct tree *t)
{
    const struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->order.exponents)
        p = p->next;
    if (p && next_of(p, EXPONENT) < limit_of(t, p))
        return true;
    p = t->cursor[DATA];
    while (p && p->sent[DATA] == p->order.data)
        p = p->next;
    return p && p->exponents[p->sent[DATA]] >= 0 && next_of(p, DATA) < limit_of(t, p);
}

/* Neither the window nor tokens hold it up: there is nothing to send, or nothing whose exponents are known. */
static bool has_nothing(const struct tree *t)
{
    const struct part *later = t->cursor[EXPONENT], *p = t->cursor[DATA];
    while (later && later->sent[EXPONENT] == later->order.exponents)
        later = later->next;
    if (later && next_of(later, EXPONENT) < limit_of(t, later))
        return false;
    while (p && p->sent[DATA] == p->order.data)
        p = p->next;
    return !p || (p->exponents[p->sent[DATA]] < 0 && (!later || next_of(p, DATA) < limit_of(t, p)));
}

/* Answers open a full window for as many packets again. Where more is under way than the round trip needs, queues hold it, and
 * it does no harm to let some answers come together: a wake-up costs as much as tens of packets. Where it is not the window that
 * holds the tree up, the next answer is waited for: data for its exponents, or the trainer for the last of a tensor. */
static uint64_t answer_spacing(const struct tree *t)
{
    if (!(t->packets_per_second > 0) || has_nothing(t))
        return 0;
    double queued = t->unanswered / t->packets_per_second * INART_NS - t->round_trip;
    double burst = t->tokens_wake / t->packets_per_second, most = (burst < FEW_SECONDS ? burst : FEW_SECONDS) * INART_NS;
    return queued <= 0 ? 0 : (uint64_t)(queued / 2 < most ? queued / 2 : most);
}

static void check_progress(struct io_thread *x, struct tree *t, uint64_t now)
{
    if (x->worker->config.timeout_seconds <= 0 || (double)(now - t->progress_at) < x->worker->config.timeout_seconds * 1e9)
        return;
    struct part *p = part_of(t, t->base);
    fail(x, STATUS_TIMEOUT,
         "operation %lld: no progress for %.1f s on tree %u (root %s): chunk %llu, resent %u times, has no answer%s%s",
         p ? (long long)p->operation->id : -1LL, (double)(now - t->progress_at) / 1e9, t->config.tree, t->config.root,
         (unsigned long long)t->base, chunk_of(t, t->base)->resends, x->engine.io->trouble[0] ? "; last error of the interface: " : "",
         x->engine.io->trouble);
}

static int receive_all(struct io_thread *x, uint64_t now)
{
    struct io *io = x->engine.io;
    int received = 0;
    for (int rounds = 0; rounds < ROUNDS && io->ready; rounds++)
        for (unsigned source = 0; source < io->sources; source++) {
            if (!(io->ready >> source & 1))
                continue;
            int n = io_receive(io, source);
            for (int i = 0; i < n; i++) {
                const struct io_in *in = &io->in[i];
                for (uint32_t at = 0; at < in->bytes || !at; at += in->segment ? in->segment : 1, received++) {
                    io_fetch(in, at);
                    receive(x, in->data + at, in->bytes - at < in->segment ? in->bytes - at : in->segment, now);
                }
            }
        }
    io->ready &= (1u << io->sources) - 1;
    return received;
}

/* One round: what has come, what may go. Says how long nothing will happen by itself. */
static struct engine_sleep work(struct engine_thread *engine)
{
    struct io_thread *x = (struct io_thread *)engine;
    struct inart_worker *w = x->worker;
    struct io *io = engine->io;
    struct engine_sleep sleep = {.until = UINT64_MAX, .listen = true, .spacing = WAKE_SPACING};
    if (!io)
        return sleep;
    uint64_t now = inart_now();
    bool sparse = receive_all(x, now) < SPARSE;
    if (atomic_load(&w->failed)) {
        drop_parts(x);
        return sleep;
    }
    io_flush(io, now);
    x->rotation++;
    for (uint32_t i = 0; i < x->tree_count; i++) {
        struct tree *t = &x->trees[(i + x->rotation) % x->tree_count];
        refill(t, now);
        if (!t->parts)
            continue;
        find_gaps(x, t, now);
        send_resends(x, t, now);
        if (burst_due(t, now) <= now)
            while (t->tokens >= 1 && t->burst >= 1 && io_room(io, t->lane) && (repeat_next(x, t, now) || send_next(x, t, now))) {
            }
        /* Only lateness may be caught up with. */
        if (t->tokens > t->tokens_wake && has_nothing(t))
            t->tokens = t->tokens_wake;
    }
    io_flush(io, now);

    bool listen = false, token_wait = false;
    uint64_t token_until = UINT64_MAX, spacing = UINT64_MAX;
    for (uint32_t i = 0; i < x->tree_count && !atomic_load(&w->failed); i++) {
        struct tree *t = &x->trees[i];
        if (!t->parts)
            continue;
        check_progress(x, t, now);
        uint64_t until = t->progress_at + (uint64_t)(w->config.timeout_seconds * 1e9);
        if (w->config.timeout_seconds > 0 && until < sleep.until)
            sleep.until = until;
        uint64_t oldest = oldest_due(t);
        if (oldest && oldest < sleep.until)
            sleep.until = oldest;
        for (int kind = 0; kind < KINDS; kind++)
            if (gap_due(t, kind) < sleep.until)
                sleep.until = gap_due(t, kind);
        if (t->recovery && t->recovery_due < sleep.until)
            sleep.until = t->recovery_due;
        bool due = t->resend_due <= now;
        if (!due && t->resend_due < sleep.until)
            sleep.until = t->resend_due;
        if (t->repeat < t->repeat_end && t->repeat_at > now && t->repeat_at < sleep.until)
            sleep.until = t->repeat_at;
        if (due || (t->repeat < t->repeat_end && t->repeat_at <= now) || has_next(t)) {
            until = burst_due(t, now);
            if (until <= now) /* only for want of room */
                sleep.until = io->retry ? io->retry : now;
            else {
                token_wait = true;
                if (until < token_until)
                    token_until = until;
            }
        } else {
            listen = true;
            if (answer_spacing(t) < spacing)
                spacing = answer_spacing(t);
        }
    }
    if (io->retry && io->retry < sleep.until)
        sleep.until = io->retry;
    if (token_until < sleep.until)
        sleep.until = token_until;
    sleep.spacing = sparse ? WAKE_SPACING : 0;
    if (listen && spacing > sleep.spacing)
        sleep.spacing = spacing;
    sleep.listen = listen || !token_wait || token_until > now + TOKEN_SLEEP || atomic_load(&w->failed);
    if (io->ready)
        sleep.until = now;
    return sleep;
}

/* ---- configuration ---- */

static void trees_free(struct tree *trees, uint32_t count, struct label_map *labels)
{
    for (uint32_t i = 0; trees && i < count; i++)
        free(trees[i].ring);
    free(trees);
    label_map_free(labels);
}

static double packet_mbits(uint32_t values) { return 8e-6 * INART_FRAME_BYTES((double)values); }

/* For tests. The kind of the chunk with number `place` in a part of an all-reduce with `data` chunks of data, 0: exponents, 1: data;
 * and in *index which of them. */
int inart_worker_chunk(uint32_t data, uint32_t values, uint32_t slots, uint32_t place, uint32_t *index)
{
    struct numbering n = numbering_of(data, values, slots);
    return numbering_chunk(&n, place, index);
}

/* The number in the part of chunk `index` of a kind. */
uint32_t inart_worker_place(uint32_t data, uint32_t values, uint32_t slots, int kind, uint32_t index)
{
    struct numbering n = numbering_of(data, values, slots);
    return numbering_place(&n, kind, index);
}

/* Packets of a tree that may leave at a time (controlplane/plan/pacing.py has the same; a test compares). `total_mbps`: of all
 * trees of the worker. */
double inart_worker_bucket(double rate_mbps, double total_mbps, uint32_t slots, uint32_t values)
{
    double wake = rate_mbps / packet_mbits(values) * BURST_SECONDS, most = (double)io_segments(values) * BURST_MESSAGES;
    /* Many slow trees would wake the thread for every packet. */
    double few = total_mbps / packet_mbits(values) * FEW_SECONDS;
    few = few < FEW ? few : FEW;
    few = few < slots / 4.0 ? few : slots / 4.0;
    wake = wake > few ? wake : few;
    return wake < 1 ? 1 : wake > most ? most : wake;
}

/* `total_mbps`: of all trees of this worker. */
static void tree_setup(struct tree *t, const struct inart_tree_config *config, double total_mbps, uint32_t values, uint64_t now)
{
    t->config = *config;
    t->config.root[NAME_BYTES - 1] = 0;
    t->mask = config->slots - 1;
    for (int kind = 0; kind < KINDS; kind++)
        t->first[kind] = (struct list){NONE, NONE};
    t->resend = (struct list){NONE, NONE};
    t->resend_due = UINT64_MAX;
    t->reorder = 1;
    t->resend_share = 1;
    t->resend_tokens = RESEND_BURST;
    t->resend_tokens_at = now;
    t->tokens_at = t->base_since = now;
    t->packets_per_second = config->rate_mbps / packet_mbits(values);
    double slack = t->packets_per_second * SLACK_SECONDS;
    t->tokens_wake = inart_worker_bucket(config->rate_mbps, total_mbps, config->slots, values);
    t->tokens_most = t->tokens_wake + (slack < 2 ? 2 : slack);
    t->tokens = t->burst = t->tokens_wake;
}

/* What one thread is to have. */
struct share {
    struct io_spec spec;
    struct tree *trees;
    uint32_t tree_count;
    struct label_map labels;
    struct io *io;
};

static int share_make(struct inart_worker *w, const struct inart_worker_config *config, uint32_t thread, struct share *s, char *error,
                      size_t size)
{
    s->spec = spec_of(&w->io, config->values);
    s->trees = calloc(config->trees ? config->trees : 1, sizeof *s->trees);
    bool bad = !s->trees || label_map_make(&s->labels, 2 * config->trees);
    double total_mbps = 0;
    for (uint32_t i = 0; i < config->trees; i++)
        total_mbps += config->tree[i].rate_mbps;
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        const struct inart_tree_config *from = &config->tree[i];
        if (from->thread != thread)
            continue;
        struct tree *t = &s->trees[s->tree_count];
        tree_setup(t, from, total_mbps, config->values, inart_now());
        if (spec_add(&s->spec, from->port, &t->lane)) {
            snprintf(error, size, "the trees of one I/O thread have more than %d ports", INART_MOST_LANES);
            return -1;
        }
        t->ring = calloc(from->slots, sizeof *t->ring);
        bad = !t->ring;
        label_map_set(&s->labels, from->return_label, (int32_t)s->tree_count);
        label_map_set(&s->labels, from->answer_label, (int32_t)s->tree_count++);
    }
    if (bad)
        snprintf(error, size, "out of memory for %u trees", config->trees);
    else
        s->io = engine_open(&w->threads[thread].engine, &s->spec, error, size);
    return bad || !s->io ? -1 : 0;
}

static int configure(struct inart_worker *w, const struct inart_worker_config *config, char *error, size_t size)
{
    if (check_job(config->workers, config->values, config->job, error, size))
        return -1;
    for (uint32_t i = 0; i < config->trees; i++) {
        const struct inart_tree_config *t = &config->tree[i];
        if (check_tree(t->tree, t->slots, t->port, t->thread, w->io.threads, error, size))
            return -1;
    }
    struct share shares[MOST_THREADS];
    memset(shares, 0, sizeof shares);
    int result = 0;
    for (uint32_t i = 0; i < w->io.threads && !result; i++)
        result = share_make(w, config, i, &shares[i], error, size);
    for (uint32_t i = 0; i < w->io.threads; i++)
        engine_enter(&w->threads[i].engine);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        struct share *s = &shares[i];
        if (result) { /* all stays as it was */
            trees_free(s->trees, s->tree_count, &s->labels);
            if (s->io != x->engine.io)
                io_close(s->io);
            continue;
        }
        trees_free(x->trees, x->tree_count, &x->labels);
        x->trees = s->trees;
        x->tree_count = s->tree_count;
        x->labels = s->labels;
        engine_use(&x->engine, s->io);
    }
    if (!result) {
        w->config = *config;
        w->config.tree = NULL;
        w->fraction_bits = inart_fraction_bits((int)config->workers);
        pthread_mutex_lock(&w->mutex);
        w->failure[0] = 0;
        atomic_store(&w->failed, false);
        pthread_mutex_unlock(&w->mutex);
    }
    for (uint32_t i = 0; i < w->io.threads; i++) {
        engine_leave(&w->threads[i].engine);
        engine_wake(&w->threads[i].engine);
    }
    return result;
}

/* ---- the interface for Python. Calls that change something come one at a time ---- */

/* Of the structures shared with Python, in the order in which they are declared. */
const size_t inart_worker_sizes[] = {
    sizeof(struct inart_tree_config), sizeof(struct inart_worker_config), sizeof(struct inart_io_config), sizeof(struct inart_io_stats),
    sizeof(struct inart_part_range), sizeof(struct inart_completion), sizeof(struct inart_tree_stats), sizeof(struct inart_worker_stats), 0,
};

/* Ends what is pending and the I/O threads; completions can still be fetched. */
void inart_worker_stop(struct inart_worker *w)
{
    fail_all(w, STATUS_ABORTED, "the engine was closed");
    for (uint32_t i = 0; i < w->io.threads; i++)
        engine_join(&w->threads[i].engine);
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_broadcast(&w->finished);
    pthread_mutex_unlock(&w->mutex);
}

/* After stop, when no other call is under way. */
void inart_worker_destroy(struct inart_worker *w)
{
    while (w->done) {
        struct operation *o = w->done;
        w->done = o->next;
        free(o);
    }
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_free(&x->engine);
        trees_free(x->trees, x->tree_count, &x->labels);
    }
    free(w->threads);
    free(w);
}

struct inart_worker *inart_worker_create(const struct inart_io_config *io, const struct inart_worker_config *config, char *error, size_t size)
{
    struct inart_worker *w = calloc(1, sizeof *w);
    if (w)
        w->threads = calloc(MOST_THREADS, sizeof *w->threads);
    if (!w || !w->threads || io->threads < 1 || io->threads > MOST_THREADS) {
        snprintf(error, size, "out of memory, or %u I/O threads: 1 to %d", io->threads, MOST_THREADS);
        free(w ? w->threads : NULL);
        free(w);
        return NULL;
    }
    w->io = *io;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->finished, &attributes);
    pthread_condattr_destroy(&attributes);
    int result = 0;
    for (uint32_t i = 0; i < io->threads && !result; i++) {
        struct io_thread *x = &w->threads[i];
        x->worker = w;
        x->random = ((uint32_t)inart_now() + i * 2654435761u) | 1;
        result = engine_start(&x->engine, "inart-worker", io->core[i], work);
        if (result)
            snprintf(error, size, "cannot start the engine's thread: %s", strerror(result));
    }
    if (result || configure(w, config, error, size)) {
        inart_worker_stop(w);
        inart_worker_destroy(w);
        return NULL;
    }
    return w;
}

/* Pending operations end with `reason`; then the new configuration holds. 0 or -1 (the engine is unusable until a good one). */
int inart_worker_reconfigure(struct inart_worker *w, const struct inart_worker_config *config, const char *reason, char *error, size_t size)
{
    fail_all(w, STATUS_ABORTED, reason);
    return configure(w, config, error, size);
}

void inart_worker_abort(struct inart_worker *w, const char *reason) { fail_all(w, STATUS_ABORTED, reason); }

static struct tree *tree_of(struct inart_worker *w, uint32_t number, struct io_thread **thread)
{
    for (uint32_t i = 0; i < w->io.threads; i++)
        for (uint32_t j = 0; j < w->threads[i].tree_count; j++)
            if (w->threads[i].trees[j].config.tree == number) {
                *thread = &w->threads[i];
                return &w->threads[i].trees[j];
            }
    return NULL;
}

#define REPEAT_DELAY (50 * MS) /* the parameter server's copies of results come first */

static void repaired(struct tree *t, double rate_mbps, bool contributions, bool results, uint32_t values, uint64_t now)
{
    refill(t, now);
    if (rate_mbps > 0) {
        t->config.rate_mbps = rate_mbps;
        t->packets_per_second = rate_mbps / packet_mbits(values);
    }
    if ((!contributions && !results) || !t->parts)
        return;
    for (int kind = 0; kind < KINDS; kind++) {
        t->first[kind] = (struct list){NONE, NONE};
        t->evidence[kind].any = false;
    }
    t->resend = (struct list){NONE, NONE};
    t->resend_due = UINT64_MAX;
    t->recovery = t->recovering = 0;
    t->resend_share = 1;
    uint64_t end = t->base + t->config.slots < t->end ? t->base + t->config.slots : t->end;
    t->repeat_at = results ? now + REPEAT_DELAY : now;
    t->repeat = t->base;
    t->repeat_end = contributions ? end : t->base;
    /* Nothing of this is late before it can have been sent at the tree's rate, by this worker or by the parameter server. */
    double each = t->packets_per_second > 0 ? INART_NS / t->packets_per_second : 0, due = (double)t->repeat_at;
    for (uint64_t sequence = t->base; sequence < end; sequence++) {
        struct chunk *c = chunk_of(t, sequence);
        if (c->state != SENT)
            continue;
        *c = (struct chunk){.state = SENT, .kind = c->kind, .awaited = c->awaited, .theirs = c->theirs, .due = c->due, .sent_at = (uint64_t)due,
                            .repeated = !c->awaited};
        list_add(t, c, LIST_FIRST);
        due += each;
    }
}

/* The tree that has `up_label` was led another way: its rate from now on (0: as before). `contributions`: those under way may
 * be lost, and are sent once more. `results`: these, and the parameter server sends them once more. */
void inart_worker_repaired(struct inart_worker *w, uint32_t up_label, double rate_mbps, int contributions, int results)
{
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        for (uint32_t j = 0; j < x->tree_count; j++)
            if (x->trees[j].config.up_label == up_label)
                repaired(&x->trees[j], rate_mbps, contributions, results, w->config.values, inart_now());
        engine_leave(&x->engine);
        engine_wake(&x->engine);
    }
}

/* A part for a tree, numbered from what was submitted last. NULL with the reason in `error`. */
static struct part *part_make(struct inart_worker *w, struct tree *t, struct operation *o, const struct inart_part_range *range, char *error,
                              size_t size)
{
    uint64_t values = w->config.values, n = o->dtype == INART_BYTES ? INART_VALUE_BYTES * values : values;
    uint64_t data = (range->count + n - 1) / n * (inart_takes_turns(&o->layout) ? o->layout.workers : 1);
    if (t->end + data + data / values + 2 > UINT32_MAX) {
        snprintf(error, size, "tree %u (root %s) has used up the sequence numbers of epoch %u: the job needs a new configuration",
                 t->config.tree, t->config.root, w->config.epoch);
        return NULL;
    }
    struct part *p = calloc(1, sizeof *p);
    if (!p || !(p->exponents = malloc(data * sizeof *p->exponents))) {
        snprintf(error, size, "out of memory");
        free(p);
        return NULL;
    }
    memset(p->exponents, 0xff, data * sizeof *p->exponents);
    p->operation = o;
    p->base = t->end;
    p->offset = range->offset;
    p->count = range->count;
    p->order = numbering_of((uint32_t)data, (uint32_t)values, t->config.slots);
    if (o->layout.kind == INART_GATHER)
        p->order.exponents = 1;
    if (o->layout.kind != INART_ALL_REDUCE)
        p->order.ahead = p->order.exponents;
    return p;
}

/* Under its thread's lock. */
static void part_add(struct tree *t, struct part *p, uint64_t now)
{
    t->end += chunks_of(p);
    if (t->parts)
        t->last->next = p;
    else {
        t->parts = p;
        t->progress_at = t->base_since = now;
        /* What idle time saved up must not become a burst. */
        refill(t, now);
        if (t->tokens > t->tokens_wake)
            t->tokens = t->tokens_wake;
    }
    t->last = p;
    for (int kind = 0; kind < KINDS; kind++)
        if (!t->cursor[kind])
            t->cursor[kind] = p;
}

/* kind, source: inart_layout's; the array is one part a worker, or in an all-reduce and a broadcast one. `number`, `range`: the
 * trees, and the elements that each carries, of each part. The number of the operation; or -1 with the reason in
 * `error` and the status in *status. Only this changes `end` of a tree, and only configure() the trees: neither needs a lock. */
int64_t inart_worker_submit(struct inart_worker *w, const void *in, void *out, uint64_t elements, int dtype, int mean, int kind, int source,
                            uint32_t tag, uint32_t trees, const uint32_t *number, const struct inart_part_range *range, int32_t *status, char *error,
                            size_t size)
{
    *status = STATUS_PROTOCOL;
    pthread_mutex_lock(&w->mutex);
    bool failed = atomic_load(&w->failed);
    if (failed) {
        *status = w->failure_status;
        snprintf(error, size, "%s", w->failure);
    }
    pthread_mutex_unlock(&w->mutex);
    if (failed)
        return -1;
    struct operation *o = calloc(1, sizeof *o);
    struct part **parts = calloc(trees ? trees : 1, sizeof *parts);
    bool good = o && parts;
    if (good) {
        o->dtype = dtype; /* what parts depend on */
        o->layout = (struct inart_layout){kind, source, w->config.index, w->config.workers, 0};
        if (inart_takes_turns(&o->layout))
            o->layout.stride = elements / w->config.workers * inart_dtype_bytes(dtype);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < trees && good; i++) {
        struct io_thread *x;
        struct tree *t = tree_of(w, number[i], &x);
        if (!range[i].count)
            continue;
        if (t)
            parts[i] = part_make(w, t, o, &range[i], error, size);
        else
            snprintf(error, size, "there is no tree %u", number[i]);
        good = parts[i];
        count++;
    }
    if (!good) {
        for (uint32_t i = 0; parts && i < trees; i++)
            if (parts[i])
                part_free(parts[i]);
        free(o);
        free(parts);
        return -1;
    }
    uint64_t now = inart_now();
    int64_t id = o->id = w->next_operation++;
    o->in = in;
    o->out = out;
    o->elements = elements;
    o->divisor = mean ? (float)w->config.workers : 1.0f;
    o->tag = tag;
    o->submitted = now;
    atomic_store(&o->parts_left, count + 1);
    for (uint32_t i = 0; i < trees; i++) {
        struct io_thread *x;
        if (!parts[i])
            continue;
        struct tree *t = tree_of(w, number[i], &x);
        engine_enter(&x->engine);
        part_add(t, parts[i], now);
        engine_leave(&x->engine);
    }
    for (uint32_t i = 0; i < w->io.threads; i++)
        engine_wake(&w->threads[i].engine);
    free(parts);
    operation_part_ended(w, o, true);
    return id;
}

/* 1: `completion` is filled; 0: nothing within `seconds` (< 0: no limit); -1: the engine is closing and nothing is left. */
int inart_worker_next_completion(struct inart_worker *w, double seconds, struct inart_completion *completion)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (seconds >= 0) {
        double whole = floor(seconds);
        until.tv_sec += (time_t)whole;
        until.tv_nsec += (long)((seconds - whole) * 1e9);
        if (until.tv_nsec >= (long)INART_NS) {
            until.tv_sec++;
            until.tv_nsec -= (long)INART_NS;
        }
    }
    pthread_mutex_lock(&w->mutex);
    int wait = 0;
    while (!w->done && !w->closing && !wait)
        wait = seconds < 0 ? pthread_cond_wait(&w->finished, &w->mutex) : pthread_cond_timedwait(&w->finished, &w->mutex, &until);
    struct operation *o = w->done;
    int result = o ? 1 : w->closing ? -1 : 0;
    if (o)
        w->done = o->next;
    pthread_mutex_unlock(&w->mutex);
    if (o) {
        uint64_t last = atomic_load(&o->last_answer);
        completion->operation = o->id;
        completion->status = o->status;
        completion->first_send = (double)atomic_load(&o->first_send) / 1e9;
        completion->last_answer = (double)last / 1e9;
        completion->seconds = (double)((last ? last : inart_now()) - o->submitted) / 1e9;
        memcpy(completion->message, o->message, sizeof completion->message);
        free(o);
    }
    return result;
}

/* `trees` has room for `count` entries, of the trees `number`. */
void inart_worker_statistics(struct inart_worker *w, struct inart_worker_stats *stats, struct inart_io_stats *io, const uint32_t *number,
                             struct inart_tree_stats *trees, uint32_t count)
{
    memset(stats, 0, sizeof *stats);
    memset(io, 0, sizeof *io);
    memset(trees, 0, count * sizeof *trees);
    for (uint32_t i = 0; i < w->io.threads; i++) {
        struct io_thread *x = &w->threads[i];
        engine_enter(&x->engine);
        engine_packets(&x->engine, &x->stats, &stats->packets);
        engine_statistics(&x->engine, io);
        uint64_t now = inart_now();
        for (uint32_t j = 0; j < x->tree_count; j++) {
            struct tree *t = &x->trees[j];
            uint32_t at = 0;
            while (at < count && number[at] != t->config.tree)
                at++;
            if (at == count)
                continue;
            trees[at] = t->stats;
            trees[at].next_sequence = t->end;
            trees[at].oldest_unanswered = t->base;
            trees[at].rtt_seconds = t->round_trip / 1e9;
            trees[at].rtt_lowest = t->rtt_lowest / 1e9;
            if (t->active_since)
                trees[at].busy_ns += now - t->active_since;
        }
        engine_leave(&x->engine);
    }
    pthread_mutex_lock(&w->mutex);
    stats->operations_done = w->operations_done;
    stats->operations_failed = w->operations_failed;
    stats->bytes_reduced = w->bytes_reduced;
    pthread_mutex_unlock(&w->mutex);
}

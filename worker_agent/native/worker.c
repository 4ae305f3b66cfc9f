/* The worker's engine: one I/O thread that moves all-reduces over the trees of one configuration.
 *
 * Sequence numbers. Every operation is cut, at submission, into one part per tree that carries some of it. On its tree a
 * part takes the next E + D sequence numbers: E exponent chunks, then D data chunks. All workers submit the same operations
 * in the same order, so all of them number alike. Sending order within a tree: resends, then any exponent chunk that the
 * window allows (so those of the next operation travel during the last window of the present one), then data chunks whose
 * exponents are known.
 *
 * Loss. Exponent and data chunks are each sent in sequence order by every worker, so within a kind an answer to a chunk
 * sent later means that an earlier one was lost, once packets had time to overtake each other (a gap); it is resent
 * after a short random delay. A chunk that
 * was resent has a timer of its own with back-off. Of the others only the oldest unanswered chunk has a timer: when a peer
 * is late nothing is lost, and one resend (and one flush in the switches) is all that it costs.
 * After a flush every worker's packet travels to the root by itself: W of them on links that the plan gave room for one. So
 * that resends cannot keep a link congested that they congested, those of a tree have a share of its rate, which halves
 * when a resent chunk needs to be sent again, down to 1/W, and grows with each that is answered.
 *
 * Threads. One lock covers everything; the I/O thread lets go of it while it sleeps. It sleeps until the next event
 * (tokens, timers, packets, a submission), and when tokens are what it waits for it does not wake for each answer.
 */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdarg.h>

#include "engine.h"
#include "labels.h"
#include "numbers.h"

#define CHECK_VALUES 4 /* at the start of a part: n, -n, tag, -tag */
#define NAME_BYTES 64
#define MESSAGE_BYTES 512
#define MS (INART_NS / 1000)
#define RTO_INITIAL (100 * MS)
#define RTO_LOWEST (20 * MS)
#define RTO_LOWEST_START (50 * MS) /* while nothing has been answered: peers seldom start at once */
#define RTO_LOWEST_RESENT (5 * MS) /* of a chunk that was resent: waits for no peer */
#define BACKOFF_LONGEST_GAP (250 * MS) /* back-off goes up to here, */
#define BACKOFF_LONGEST (500 * MS)     /* unless the round trip is longer anyway */
#define ROUND_TRIP_MOST (250 * MS)
#define RECENT (500 * MS)
#define BACKOFF_MOST 6
#define RESEND_BURST 8.0
#define RESEND_SHARE_STEP (1 / 16.0)
#define TOKEN_SLEEP (20 * MS)          /* up to here, waiting for tokens does not listen for packets */
#define NONE UINT32_MAX

enum { UNSENT, SENT, ANSWERED };
enum { EXPONENT, DATA, KINDS };
enum { LIST_NONE, LIST_FIRST, LIST_RESEND };
enum inart_status { STATUS_OK = 0, STATUS_MISMATCH = 1, STATUS_TIMEOUT = 2, STATUS_ABORTED = 3, STATUS_PROTOCOL = 4 };

/* ---- shared with worker_agent/engine.py (ctypes), which compares the sizes (inart_worker_sizes) ---- */
struct inart_tree_config {
    uint32_t tree, up_label, return_label, answer_label, slots;
    double rate_mbps; /* 0: not paced */
    char root[NAME_BYTES];
};
struct inart_worker_config {
    uint32_t job, epoch, workers, values, trees;
    double timeout_seconds;
    const struct inart_tree_config *tree;
};
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
    uint64_t chunks_sent, resent_gap, resent_timeout, answers, duplicates, refused;
    uint64_t first_send_ns, last_answer_ns, busy_ns, next_sequence, oldest_unanswered;
    double rtt_seconds, rtt_lowest; /* lowest of the last second; of all */
};
struct inart_worker_stats {
    uint64_t packets_sent, packets_received, bytes_sent, bytes_received, malformed, unknown, other_epoch, send_errors, kernel_drops;
    uint64_t operations_done, operations_failed, bytes_reduced, wakeups, cpu_ns;
};
/* ------------------------------------------------------------------- */

struct operation {
    int64_t id;
    const uint8_t *in;
    uint8_t *out;
    uint64_t elements;
    uint32_t tag, parts_left;
    int dtype;
    float divisor;
    int32_t status;
    uint64_t submitted, first_send, last_answer;
    char message[MESSAGE_BYTES];
    struct operation *next; /* in the list of pending or of finished operations */
};

struct part {
    struct operation *operation;
    uint64_t base, offset, count;
    uint32_t exponent_chunks, data_chunks;
    uint32_t sent[KINDS], answered;
    int16_t *exponents; /* of each data chunk; -1: not yet agreed */
    struct part *next;
};

struct chunk {
    uint64_t sent_at, due; /* due: of a chunk in the resend list */
    uint32_t previous, next;
    uint16_t resends;
    uint8_t state, list, kind, gap; /* gap: found missing because a later one was answered */
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
    uint32_t mask;
    struct chunk *ring; /* slots; [sequence & mask] for base <= sequence < base + slots */
    uint64_t base, base_since, end; /* oldest unanswered; since when; one past the newest submitted */
    struct part *parts, *last, *cursor[KINDS];
    struct list first[KINDS], resend;
    uint64_t resend_due;       /* no entry of the resend list is due earlier */
    struct evidence evidence[KINDS];
    double packets_per_second, tokens, tokens_most, tokens_wake;
    uint64_t tokens_at, progress_at, active_since; /* active_since: first send since it had nothing to do; 0: idle */
    double recent, before_recent, round_trip; /* ns: the lowest of the last RECENT and of the one before; of both; 0: none yet */
    double rtt_lowest;
    uint64_t recent_since;
    double resend_share, resend_tokens; /* of the tree's rate, for resends; what is there now */
    uint64_t resend_tokens_at, resend_share_cut;
    unsigned reorder;          /* how tolerant of reordering: grows when a gap's resend was needless */
    struct inart_tree_stats stats;
};

struct inart_worker {
    struct packet_io io;
    struct inart_worker_config config;
    struct tree *trees;
    uint32_t tree_count;
    struct label_map labels; /* answer and return labels -> tree */
    uint64_t all;            /* bitmap of all workers */
    int fraction_bits;
    struct operation *pending, *pending_last, *done, *done_last;
    int64_t next_operation;
    char failure[MESSAGE_BYTES]; /* not empty: nothing works until the next configuration */
    int32_t failure_status;
    struct inart_worker_stats stats;
    uint32_t random, rotation;
    struct engine_lock lock;
    pthread_cond_t finished;
    pthread_t thread;
    bool closing;
    float scratch[INART_MAX_VALUES];
};

static uint32_t random_next(struct inart_worker *w) /* xorshift: only spreads timers */
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 17;
    w->random ^= w->random << 5;
    return w->random;
}

static uint64_t random_below(struct inart_worker *w, uint64_t n) { return n ? random_next(w) % n : 0; }

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

static void operation_finish(struct inart_worker *w, struct operation *o, int32_t status, const char *message)
{
    struct operation **link = &w->pending, *before = NULL;
    while (*link != o) {
        before = *link;
        link = &(*link)->next;
    }
    *link = o->next;
    if (w->pending_last == o)
        w->pending_last = before;
    o->next = NULL;
    o->status = status;
    snprintf(o->message, sizeof o->message, "%s", message);
    if (w->done)
        w->done_last->next = o;
    else
        w->done = o;
    w->done_last = o;
    if (status == STATUS_OK) {
        w->stats.operations_done++;
        w->stats.bytes_reduced += o->elements * inart_dtype_bytes(o->dtype);
    } else
        w->stats.operations_failed++;
    pthread_cond_broadcast(&w->finished);
}

static void part_free(struct part *p)
{
    free(p->exponents);
    free(p);
}

/* Ends every pending operation; the engine refuses new ones until it is configured again. */
__attribute__((format(printf, 3, 4))) static void fail(struct inart_worker *w, int32_t status, const char *format, ...)
{
    if (w->failure[0])
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->failure, sizeof w->failure, format, arguments);
    va_end(arguments);
    w->failure_status = status;
    for (uint32_t i = 0; i < w->tree_count; i++) {
        struct tree *t = &w->trees[i];
        while (t->parts) {
            struct part *p = t->parts;
            t->parts = p->next;
            part_free(p);
        }
        t->last = t->cursor[EXPONENT] = t->cursor[DATA] = NULL;
    }
    while (w->pending)
        operation_finish(w, w->pending, status, w->failure);
    w->io.tx_head = w->io.tx_count = 0;
}

/* ---- sending ---- */

static struct part *part_of(struct tree *t, uint64_t sequence)
{
    for (struct part *p = t->parts; p; p = p->next)
        if (sequence - p->base < (uint64_t)p->exponent_chunks + p->data_chunks)
            return p;
    return NULL;
}

/* Elements of data chunk `index`: at most N, fewer in the last. */
static size_t chunk_elements(const struct part *p, uint32_t index, size_t n)
{
    uint64_t left = p->count - (uint64_t)index * n;
    return left < n ? (size_t)left : n;
}

static const float *load_chunk(struct inart_worker *w, const struct part *p, uint32_t index, size_t *count)
{
    const struct operation *o = p->operation;
    size_t n = w->config.values;
    *count = chunk_elements(p, index, n);
    const uint8_t *data = o->in + (p->offset + (uint64_t)index * n) * inart_dtype_bytes(o->dtype);
    return inart_load(data, *count, o->dtype, w->scratch);
}

static void write_exponents(struct inart_worker *w, const struct part *p, uint32_t chunk, int32_t *wire)
{
    const struct operation *o = p->operation;
    uint32_t n = w->config.values;
    int32_t check[CHECK_VALUES] = {(int32_t)o->elements, -(int32_t)o->elements, (int32_t)o->tag, -(int32_t)o->tag};
    for (uint32_t j = 0; j < n; j++) {
        uint64_t position = (uint64_t)chunk * n + j;
        int32_t value = 0;
        if (position < CHECK_VALUES)
            value = check[position];
        else if (position - CHECK_VALUES < p->data_chunks) {
            size_t count;
            const float *x = load_chunk(w, p, (uint32_t)(position - CHECK_VALUES), &count);
            value = inart_exponent(x, count);
        }
        wire[j] = (int32_t)__builtin_bswap32((uint32_t)value);
    }
}

/* Builds the packet of one chunk; there is room. */
static void send_chunk(struct inart_worker *w, struct tree *t, struct part *p, uint64_t sequence, bool resend, uint64_t now)
{
    uint32_t index = (uint32_t)(sequence - p->base);
    int kind = index < p->exponent_chunks ? EXPONENT : DATA;
    struct inart_header h = {
        .flags = (uint8_t)((resend ? INART_FLAG_RESEND : 0) | (kind == EXPONENT ? INART_FLAG_MAXIMUM : 0)),
        .job = (uint16_t)w->config.job, .label = t->config.up_label, .epoch = w->config.epoch, .sequence = (uint32_t)sequence,
    };
    int32_t *wire = inart_values(packet_io_build(&w->io, &h));
    if (kind == EXPONENT)
        write_exponents(w, p, index, wire);
    else {
        size_t count;
        index -= p->exponent_chunks;
        const float *x = load_chunk(w, p, index, &count);
        inart_quantise(x, count, w->config.values, p->exponents[index], w->fraction_bits, (uint32_t *)wire);
    }
    struct chunk *c = chunk_of(t, sequence);
    c->sent_at = now;
    if (!resend) {
        c->state = SENT;
        c->kind = (uint8_t)kind;
        list_add(t, c, LIST_FIRST);
        p->sent[kind]++;
        t->stats.chunks_sent++;
        if (!p->operation->first_send)
            p->operation->first_send = now;
        if (!t->stats.first_send_ns)
            t->stats.first_send_ns = now;
        if (!t->active_since)
            t->active_since = now;
    }
    t->tokens -= 1;
    w->stats.packets_sent++;
    w->stats.bytes_sent += w->io.frame_bytes;
}

/* Sends the next new chunk; false: none may go now. */
static bool send_next(struct inart_worker *w, struct tree *t, uint64_t now)
{
    uint64_t limit = t->base + t->config.slots;
    struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->exponent_chunks)
        p = p->next;
    t->cursor[EXPONENT] = p;
    if (p && p->base + p->sent[EXPONENT] < limit) {
        send_chunk(w, t, p, p->base + p->sent[EXPONENT], false, now);
        return true;
    }
    p = t->cursor[DATA];
    while (p && p->sent[DATA] == p->data_chunks)
        p = p->next;
    t->cursor[DATA] = p;
    if (!p || p->exponents[p->sent[DATA]] < 0)
        return false;
    uint64_t sequence = p->base + p->exponent_chunks + p->sent[DATA];
    if (sequence >= limit)
        return false;
    send_chunk(w, t, p, sequence, false, now);
    return true;
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

static uint64_t spread(struct inart_worker *w, uint64_t t) { return t + random_below(w, t / 4 + 1); }

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
    const struct evidence *e = &t->evidence[kind];
    if (t->first[kind].head == NONE || !e->any)
        return UINT64_MAX;
    struct chunk *c = &t->ring[t->first[kind].head];
    return sequence_of(t, c) < e->sequence ? c->sent_at + e->rtt + reorder_window(t) : UINT64_MAX;
}

static void find_gaps(struct inart_worker *w, struct tree *t, uint64_t now)
{
    for (int kind = 0; kind < KINDS; kind++)
        while (gap_due(t, kind) <= now) {
            struct chunk *c = &t->ring[t->first[kind].head];
            c->gap = 1;
            resend_at(t, c, now + random_below(w, (uint64_t)(t->round_trip / 4) + 1));
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
static void resend_share_cut(struct inart_worker *w, struct tree *t, uint64_t wait, uint64_t now)
{
    if (now - t->resend_share_cut < wait)
        return;
    t->resend_share_cut = now;
    t->resend_share /= 2;
    if (t->resend_share < 1.0 / w->config.workers)
        t->resend_share = 1.0 / w->config.workers;
}

/* Sends the resends that are due, as far as their share of the rate, tokens and room allow. */
static void send_resends(struct inart_worker *w, struct tree *t, uint64_t now)
{
    uint64_t oldest = oldest_due(t);
    if (oldest && oldest <= now)
        resend_at(t, chunk_of(t, t->base), now);
    if (t->resend_due > now)
        return;
    uint64_t earliest = UINT64_MAX, patient = patient_timeout_of(t), quick = timeout_of(t, RTO_LOWEST_RESENT, 2);
    for (uint32_t i = t->resend.head; i != NONE; i = t->ring[i].next) {
        struct chunk *c = &t->ring[i];
        if (c->due <= now && t->tokens >= 1 && packet_io_room(&w->io)) {
            uint64_t allowed = resend_allowed(t, now);
            if (allowed > now) {
                if (allowed < earliest)
                    earliest = allowed;
                continue;
            }
            t->resend_tokens -= 1;
            if (c->resends)
                resend_share_cut(w, t, quick, now);
            uint64_t sequence = sequence_of(t, c), wait = c->gap ? quick : patient;
            if (c->gap && !c->resends)
                t->stats.resent_gap++;
            else
                t->stats.resent_timeout++;
            uint64_t most = c->gap ? BACKOFF_LONGEST_GAP : BACKOFF_LONGEST;
            most = wait > most ? wait : most;
            unsigned doublings = c->gap ? c->resends / 2 : c->resends + 1;
            wait <<= doublings < BACKOFF_MOST ? doublings : BACKOFF_MOST;
            if (wait > most)
                wait = most;
            if (c->resends < UINT16_MAX)
                c->resends++;
            send_chunk(w, t, part_of(t, sequence), sequence, true, now);
            c->due = now + spread(w, wait);
        }
        if (c->due < earliest)
            earliest = c->due;
    }
    t->resend_due = earliest;
}

/* ---- receiving ---- */

static void measure(struct tree *t, const struct chunk *c, uint64_t now)
{
    if (c->resends) {
        t->resend_share = t->resend_share + RESEND_SHARE_STEP < 1 ? t->resend_share + RESEND_SHARE_STEP : 1;
        /* which copy was answered? Only: much too soon for the resend means that it was needless */
        if (t->rtt_lowest > 0 && (double)(now - c->sent_at) < t->rtt_lowest / 2 && t->reorder < 16)
            t->reorder *= 2;
        return;
    }
    double rtt = (double)(now - c->sent_at);
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
    uint64_t sequence = sequence_of(t, c);
    struct evidence *e = &t->evidence[c->kind];
    if (!e->any || sequence > e->sequence)
        *e = (struct evidence){sequence, now - c->sent_at, true};
}

/* The agreed exponents (and the check values). False: the engine has failed. */
static bool take_exponents(struct inart_worker *w, struct tree *t, struct part *p, uint32_t chunk, const uint32_t *wire)
{
    uint32_t n = w->config.values;
    for (uint32_t j = 0; j < n; j++) {
        uint64_t position = (uint64_t)chunk * n + j;
        int32_t value = (int32_t)__builtin_bswap32(wire[j]);
        if (position == 0 || position == 2) {
            int32_t opposite = (int32_t)__builtin_bswap32(wire[j + 1]);
            if (value != -opposite) {
                if (position == 0)
                    fail(w, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in size: the smallest has %d elements, the largest %d, "
                         "this worker's %llu", (long long)p->operation->id, -opposite, value, (unsigned long long)p->operation->elements);
                else
                    fail(w, STATUS_MISMATCH, "operation %lld: the workers' tensors differ in dtype or operation (sum, mean)",
                         (long long)p->operation->id);
                return false;
            }
        } else if (position >= CHECK_VALUES && position - CHECK_VALUES < p->data_chunks) {
            if (!inart_exponent_valid(value)) {
                fail(w, STATUS_PROTOCOL, "tree %u (root %s): chunk %llu came back with an impossible exponent (%d)", t->config.tree,
                     t->config.root, (unsigned long long)(p->base + chunk), value);
                return false;
            }
            p->exponents[position - CHECK_VALUES] = (int16_t)value;
        }
    }
    return true;
}

static void take_values(struct inart_worker *w, struct part *p, uint32_t index, const uint32_t *wire)
{
    struct operation *o = p->operation;
    size_t n = w->config.values, count = chunk_elements(p, index, n);
    uint8_t *data = o->out + (p->offset + (uint64_t)index * n) * inart_dtype_bytes(o->dtype);
    float *x = o->dtype == INART_FLOAT32 ? (float *)data : w->scratch;
    inart_dequantise(wire, count, p->exponents[index], w->fraction_bits, o->divisor, x);
    if (o->dtype != INART_FLOAT32)
        inart_store(x, count, o->dtype, data);
}

static void part_finish(struct inart_worker *w, struct tree *t, struct part *p, uint64_t now)
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
    o->last_answer = now;
    if (--o->parts_left == 0)
        operation_finish(w, o, STATUS_OK, "");
}

static void receive(struct inart_worker *w, uint8_t *frame, size_t length, uint64_t now)
{
    struct inart_header h;
    w->stats.packets_received++;
    w->stats.bytes_received += length;
    if (inart_parse(frame, length, w->io.frame_bytes, &h)) {
        w->stats.malformed++;
        return;
    }
    int32_t number = h.flags & INART_FLAG_RESULT && h.job == w->config.job ? label_map_get(&w->labels, h.label) : -1;
    if (number < 0) {
        w->stats.unknown++;
        return;
    }
    if (h.epoch != w->config.epoch) {
        w->stats.other_epoch++;
        return;
    }
    struct tree *t = &w->trees[number];
    if (h.sequence < t->base) {
        t->stats.duplicates++;
        return;
    }
    struct chunk *c = chunk_of(t, h.sequence);
    if (h.sequence >= t->base + t->config.slots || c->state == UNSENT || h.bitmap != w->all
        || !(h.flags & INART_FLAG_MAXIMUM) != (c->kind == DATA)) {
        t->stats.refused++;
        return;
    }
    if (c->state == ANSWERED) {
        t->stats.duplicates++;
        return;
    }
    struct part *p = part_of(t, h.sequence);
    if (!p) { /* after a failure */
        t->stats.refused++;
        return;
    }
    const uint32_t *wire = (const uint32_t *)inart_values(frame);
    uint32_t index = (uint32_t)(h.sequence - p->base);
    if (c->kind == DATA)
        take_values(w, p, index - p->exponent_chunks, wire);
    else if (!take_exponents(w, t, p, index, wire))
        return;
    measure(t, c, now);
    list_remove(t, c);
    c->state = ANSWERED;
    t->stats.answers++;
    t->stats.last_answer_ns = now;
    t->progress_at = now;
    if (++p->answered == p->exponent_chunks + p->data_chunks)
        part_finish(w, t, p, now);
    if (h.sequence == t->base) {
        while (t->base < t->end && chunk_of(t, t->base)->state == ANSWERED) {
            *chunk_of(t, t->base) = (struct chunk){.state = UNSENT, .list = LIST_NONE};
            t->base++;
        }
        t->base_since = now;
    }
}

/* ---- the I/O thread ---- */

static void refill(struct tree *t, uint64_t now)
{
    if (t->packets_per_second > 0) {
        t->tokens += (double)(now - t->tokens_at) * 1e-9 * t->packets_per_second;
        if (t->tokens > t->tokens_most)
            t->tokens = t->tokens_most;
    } else
        t->tokens = 1e9;
    t->tokens_at = now;
}

static bool has_next(const struct tree *t)
{
    uint64_t limit = t->base + t->config.slots;
    const struct part *p = t->cursor[EXPONENT];
    while (p && p->sent[EXPONENT] == p->exponent_chunks)
        p = p->next;
    if (p && p->base + p->sent[EXPONENT] < limit)
        return true;
    p = t->cursor[DATA];
    while (p && p->sent[DATA] == p->data_chunks)
        p = p->next;
    return p && p->exponents[p->sent[DATA]] >= 0 && p->base + p->exponent_chunks + p->sent[DATA] < limit;
}

static void check_progress(struct inart_worker *w, struct tree *t, uint64_t now)
{
    if (w->config.timeout_seconds <= 0 || (double)(now - t->progress_at) < w->config.timeout_seconds * 1e9)
        return;
    struct part *p = part_of(t, t->base);
    fail(w, STATUS_TIMEOUT,
         "operation %lld: no progress for %.1f s on tree %u (root %s): chunk %llu, resent %u times, has no answer%s%s",
         p ? (long long)p->operation->id : -1LL, (double)(now - t->progress_at) / 1e9, t->config.tree, t->config.root,
         (unsigned long long)t->base, chunk_of(t, t->base)->resends, w->io.last_errno ? "; last error of the interface: " : "",
         w->io.last_errno ? strerror(w->io.last_errno) : "");
}

struct sleep {
    uint64_t until;
    bool listen; /* wake for packets */
    bool sparse; /* packets come few at a time */
};

/* One round: what has come, what may go. Says how long nothing will happen by itself. */
static struct sleep work(struct inart_worker *w)
{
    uint64_t now = inart_now();
    int n, received = 0;
    for (int rounds = 0; rounds < 8; rounds++) {
        received += n = packet_io_receive(&w->io);
        for (int i = 0; i < n; i++)
            receive(w, inart_rx_frame(&w->io, i), w->io.rx[i].msg_len, now);
        if (n < INART_BATCH)
            break;
    }
    struct sleep sleep = {.until = UINT64_MAX, .listen = true, .sparse = received < SPARSE};
    if (w->failure[0])
        return sleep;
    packet_io_flush(&w->io, now);
    w->rotation++;
    for (uint32_t i = 0; i < w->tree_count; i++) {
        struct tree *t = &w->trees[(i + w->rotation) % w->tree_count];
        refill(t, now);
        if (!t->parts)
            continue;
        find_gaps(w, t, now);
        send_resends(w, t, now);
        while (t->tokens >= 1 && packet_io_room(&w->io) && send_next(w, t, now)) {
        }
    }
    packet_io_flush(&w->io, now);

    bool listen = false, token_wait = false;
    uint64_t token_until = UINT64_MAX;
    for (uint32_t i = 0; i < w->tree_count && !w->failure[0]; i++) {
        struct tree *t = &w->trees[i];
        if (!t->parts)
            continue;
        check_progress(w, t, now);
        uint64_t until = t->progress_at + (uint64_t)(w->config.timeout_seconds * 1e9);
        if (w->config.timeout_seconds > 0 && until < sleep.until)
            sleep.until = until;
        uint64_t oldest = oldest_due(t);
        if (oldest && oldest < sleep.until)
            sleep.until = oldest;
        for (int kind = 0; kind < KINDS; kind++)
            if (gap_due(t, kind) < sleep.until)
                sleep.until = gap_due(t, kind);
        bool due = t->resend_due <= now;
        if (!due && t->resend_due < sleep.until)
            sleep.until = t->resend_due;
        if (due || has_next(t)) {
            if (t->tokens >= 1) /* only for want of room */
                sleep.until = w->io.tx_retry ? w->io.tx_retry : now;
            else {
                token_wait = true;
                until = now + (uint64_t)((t->tokens_wake - t->tokens) / t->packets_per_second * 1e9);
                if (until < token_until)
                    token_until = until;
            }
        } else
            listen = true;
    }
    if (w->io.tx_retry && w->io.tx_retry < sleep.until)
        sleep.until = w->io.tx_retry;
    if (token_until < sleep.until)
        sleep.until = token_until;
    sleep.listen = listen || !token_wait || token_until > now + TOKEN_SLEEP || w->failure[0];
    if (n == INART_BATCH)
        sleep.until = now;
    return sleep;
}

static void *run(void *argument)
{
    struct inart_worker *w = argument;
    uint64_t woken = 0;
    fesetenv(FE_DFL_ENV); /* the creating thread may flush subnormals to zero */
    pthread_setname_np(pthread_self(), "inart-worker");
    pthread_mutex_lock(&w->lock.mutex);
    while (!w->closing) {
        struct sleep sleep = work(w);
        w->stats.wakeups++;
        engine_leave(&w->lock);
        struct pollfd descriptors[2] = {{.fd = w->lock.event, .events = POLLIN}, {.fd = w->io.fd, .events = POLLIN}};
        uint64_t now = inart_now();
        if (sleep.until > now) {
            /* Answers come one by one at low rates: take a few at a time. */
            if (sleep.listen && sleep.sparse && woken + WAKE_SPACING > now) {
                uint64_t until = woken + WAKE_SPACING;
                pause_until(descriptors, 1, until < sleep.until ? until : sleep.until);
            }
            if (!(descriptors[0].revents & POLLIN))
                pause_until(descriptors, sleep.listen ? 2 : 1, sleep.until);
        }
        woken = inart_now();
        if (descriptors[0].revents & POLLIN)
            engine_woken(&w->lock);
        engine_return(&w->lock);
    }
    engine_leave(&w->lock);
    return NULL;
}

/* ---- configuration ---- */

static void trees_free(struct inart_worker *w)
{
    for (uint32_t i = 0; i < w->tree_count; i++)
        free(w->trees[i].ring);
    free(w->trees);
    w->trees = NULL;
    w->tree_count = 0;
    label_map_free(&w->labels);
}

static void tree_setup(struct tree *t, const struct inart_tree_config *config, size_t frame_bytes, uint64_t now)
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
    t->packets_per_second = config->rate_mbps * 1e6 / 8 / (double)frame_bytes;
    /* Wake for 2 ms worth of packets (1 to 32); being late by 3 ms (2 to 64 packets) loses nothing. */
    double wake = t->packets_per_second * 0.002, slack = t->packets_per_second * 0.003;
    t->tokens_wake = wake < 1 ? 1 : wake > 32 ? 32 : wake;
    t->tokens_most = t->tokens_wake + (slack < 2 ? 2 : slack > 64 ? 64 : slack);
    t->tokens = t->tokens_wake;
}

static int configure(struct inart_worker *w, const struct inart_worker_config *config, char *error, size_t size)
{
    if (check_job(config->workers, config->values, config->job, error, size))
        return -1;
    for (uint32_t i = 0; i < config->trees; i++)
        if (check_slots(config->tree[i].tree, config->tree[i].slots, error, size))
            return -1;
    struct tree *trees = calloc(config->trees ? config->trees : 1, sizeof *trees);
    struct label_map labels = {0};
    int bad = !trees || label_map_make(&labels, 2 * config->trees);
    for (uint32_t i = 0; i < config->trees && !bad; i++) {
        tree_setup(&trees[i], &config->tree[i], INART_FRAME_BYTES(config->values), inart_now());
        trees[i].ring = calloc(config->tree[i].slots, sizeof *trees[i].ring);
        bad = !trees[i].ring;
        label_map_set(&labels, config->tree[i].return_label, (int32_t)i);
        label_map_set(&labels, config->tree[i].answer_label, (int32_t)i);
    }
    if (bad || (w->config.values != config->values && packet_io_size(&w->io, config->values))) {
        snprintf(error, size, "out of memory for %u trees", config->trees);
        for (uint32_t i = 0; trees && i < config->trees; i++)
            free(trees[i].ring);
        free(trees);
        label_map_free(&labels);
        return -1;
    }
    trees_free(w);
    w->trees = trees;
    w->tree_count = config->trees;
    w->labels = labels;
    w->config = *config;
    w->config.tree = NULL;
    w->all = config->workers == 64 ? UINT64_MAX : (1ull << config->workers) - 1;
    w->fraction_bits = inart_fraction_bits((int)config->workers);
    w->io.tx_head = w->io.tx_count = 0;
    w->io.last_errno = 0;
    w->failure[0] = 0;
    return 0;
}

/* ---- the interface for Python ---- */

/* Of the structures shared with Python, in the order in which they are declared. */
const size_t inart_worker_sizes[] = {
    sizeof(struct inart_tree_config), sizeof(struct inart_worker_config), sizeof(struct inart_part_range),
    sizeof(struct inart_completion), sizeof(struct inart_tree_stats), sizeof(struct inart_worker_stats), 0,
};

/* Ends what is pending and the I/O thread; completions can still be fetched. */
void inart_worker_stop(struct inart_worker *w)
{
    engine_enter(&w->lock);
    fail(w, STATUS_ABORTED, "the engine was closed");
    w->closing = true;
    pthread_cond_broadcast(&w->finished);
    engine_leave(&w->lock);
    engine_wake(&w->lock);
    pthread_join(w->thread, NULL);
}

/* After stop, when no other call is under way. */
void inart_worker_destroy(struct inart_worker *w)
{
    while (w->done) {
        struct operation *o = w->done;
        w->done = o->next;
        free(o);
    }
    trees_free(w);
    packet_io_close(&w->io);
    engine_lock_free(&w->lock);
    free(w);
}

struct inart_worker *inart_worker_create(const char *interface, const struct inart_worker_config *config, char *error, size_t size)
{
    struct inart_worker *w = calloc(1, sizeof *w);
    if (!w) {
        snprintf(error, size, "out of memory");
        return NULL;
    }
    w->io.fd = -1;
    w->random = (uint32_t)inart_now() | 1;
    int broken = engine_lock_make(&w->lock);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->finished, &attributes);
    pthread_condattr_destroy(&attributes);
    if (packet_io_open(&w->io, interface, config->values, error, size) || configure(w, config, error, size)) {
        inart_worker_destroy(w);
        return NULL;
    }
    if (broken || inart_thread_start(&w->thread, run, w)) {
        snprintf(error, size, "cannot start the engine's thread: %s", strerror(errno));
        inart_worker_destroy(w);
        return NULL;
    }
    return w;
}

/* Pending operations end with `reason`; then the new configuration holds. 0 or -1 (the engine is unusable until a good one). */
int inart_worker_reconfigure(struct inart_worker *w, const struct inart_worker_config *config, const char *reason, char *error, size_t size)
{
    engine_enter(&w->lock);
    fail(w, STATUS_ABORTED, "%s", reason);
    int result = configure(w, config, error, size);
    engine_leave(&w->lock);
    engine_wake(&w->lock);
    return result;
}

void inart_worker_abort(struct inart_worker *w, const char *reason)
{
    engine_enter(&w->lock);
    fail(w, STATUS_ABORTED, "%s", reason);
    engine_leave(&w->lock);
}

/* `range`: the elements that each tree carries. The number of the operation; or -1 with the reason in `error` and the
 * status in *status. */
int64_t inart_worker_submit(struct inart_worker *w, const void *in, void *out, uint64_t elements, int dtype, int mean, uint32_t tag,
                            const struct inart_part_range *range, int32_t *status, char *error, size_t size)
{
    engine_enter(&w->lock);
    int64_t id = -1;
    uint32_t n = w->config.values;
    *status = STATUS_PROTOCOL;
    if (w->failure[0]) {
        *status = w->failure_status;
        snprintf(error, size, "%s", w->failure);
        goto out;
    }
    struct operation *o = calloc(1, sizeof *o);
    struct part **parts = calloc(w->tree_count ? w->tree_count : 1, sizeof *parts);
    bool good = o && parts;
    for (uint32_t i = 0; i < w->tree_count && good; i++) {
        if (!range[i].count)
            continue;
        uint64_t data = (range[i].count + n - 1) / n, exponents = (data + CHECK_VALUES + n - 1) / n;
        if (w->trees[i].end + data + exponents > UINT32_MAX) {
            snprintf(error, size, "tree %u (root %s) has used up the sequence numbers of epoch %u: the job needs a new configuration",
                     w->trees[i].config.tree, w->trees[i].config.root, w->config.epoch);
            good = false;
            break;
        }
        struct part *p = parts[i] = calloc(1, sizeof *p);
        good = p && (p->exponents = malloc(data * sizeof *p->exponents));
        if (good) {
            *p = (struct part){.operation = o, .base = w->trees[i].end, .offset = range[i].offset, .count = range[i].count,
                               .exponent_chunks = (uint32_t)exponents, .data_chunks = (uint32_t)data, .exponents = p->exponents};
            memset(p->exponents, 0xff, data * sizeof *p->exponents);
            o->parts_left++;
        }
        if (!good)
            snprintf(error, size, "out of memory");
    }
    if (!good) {
        for (uint32_t i = 0; parts && i < w->tree_count; i++)
            if (parts[i])
                part_free(parts[i]);
        free(o);
        free(parts);
        goto out;
    }
    uint64_t now = inart_now();
    o->id = id = w->next_operation++;
    o->in = in;
    o->out = out;
    o->elements = elements;
    o->dtype = dtype;
    o->divisor = mean ? (float)w->config.workers : 1.0f;
    o->tag = tag;
    o->submitted = now;
    if (w->pending)
        w->pending_last->next = o;
    else
        w->pending = o;
    w->pending_last = o;
    for (uint32_t i = 0; i < w->tree_count; i++) {
        struct tree *t = &w->trees[i];
        struct part *p = parts[i];
        if (!p)
            continue;
        t->end += p->exponent_chunks + p->data_chunks;
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
    free(parts);
    if (!o->parts_left)
        operation_finish(w, o, STATUS_OK, "");
out:
    engine_leave(&w->lock);
    engine_wake(&w->lock);
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
    engine_enter(&w->lock);
    int wait = 0;
    while (!w->done && !w->closing && !wait)
        wait = seconds < 0 ? pthread_cond_wait(&w->finished, &w->lock.mutex) : pthread_cond_timedwait(&w->finished, &w->lock.mutex, &until);
    struct operation *o = w->done;
    int result = o ? 1 : w->closing ? -1 : 0;
    if (o) {
        w->done = o->next;
        completion->operation = o->id;
        completion->status = o->status;
        completion->first_send = (double)o->first_send / 1e9;
        completion->last_answer = (double)o->last_answer / 1e9;
        completion->seconds = (double)((o->last_answer ? o->last_answer : inart_now()) - o->submitted) / 1e9;
        memcpy(completion->message, o->message, sizeof completion->message);
        free(o);
    }
    engine_leave(&w->lock);
    return result;
}

/* `trees` has room for `count` entries; returns the number of trees. */
uint32_t inart_worker_statistics(struct inart_worker *w, struct inart_worker_stats *stats, struct inart_tree_stats *trees, uint32_t count)
{
    engine_enter(&w->lock);
    *stats = w->stats;
    stats->send_errors = w->io.send_errors;
    stats->kernel_drops = packet_io_drops(&w->io);
    stats->cpu_ns = inart_thread_cpu(w->thread);
    uint64_t now = inart_now();
    for (uint32_t i = 0; i < w->tree_count && i < count; i++) {
        struct tree *t = &w->trees[i];
        trees[i] = t->stats;
        trees[i].next_sequence = t->end;
        trees[i].oldest_unanswered = t->base;
        trees[i].rtt_seconds = t->round_trip / 1e9;
        trees[i].rtt_lowest = t->rtt_lowest / 1e9;
        if (t->active_since)
            trees[i].busy_ns += now - t->active_since;
    }
    uint32_t result = w->tree_count;
    engine_leave(&w->lock);
    return result;
}

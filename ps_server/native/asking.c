#include "asking.h"
#include "chunks.h"
#include "configure.h"
#include "results.h"

#define MOST_QUESTION 1024 /* chunks */
#define GUARD_MOST (64 * INART_MS)
#define RETRY_FIRST (20 * INART_MS) /* until a chunk that was asked for is asked for again; then doubled, */
#define RETRY_MOST (200 * INART_MS)
#define UNSEEN_RETRY_MOST (400 * INART_MS) /* when no chunk says that they were sent: a peer may be late */
#define RETRY_DOUBLINGS 5
#define RETRY_PACKETS 8  /* ... and at least the time of so many */
#define UNSEEN_ONE 8     /* of so many questions one is for all, the others for the oldest */
#define UNSEEN_SLOW 4    /* questions, after which the time between them doubles */
#define UNSEEN_MOST 20   /* times that all is asked for in vain, of which nothing says that it was sent */
#define FEW_MISSING 8    /* workers, whose contributions are cheaper by themselves than all once more */
#define OFTEN 2          /* times that a chunk was asked for with many others, before it is asked for alone */
#define MOST_UNADDED 256 /* packets that may come by themselves, because they were asked for, in RETRY_FIRST */
#define MOST_ALONE 64    /* workers that are asked for single contributions at a time */
#define FEW_CHUNKS 4     /* that are asked for one by one; more by one question */
#define ARRIVAL_TIME (50 * INART_MS)   /* that a result may be under way, */
#define ARRIVAL_PACKETS 12             /* ... and at least the time of so many at the tree's rate */
#define QUESTION_MOST (120 * INART_MS) /* that a question is expected to take: much may have been lost lately */
#define RATE_TIME (20 * INART_MS)
#define GUARD_KEPT (2000 * INART_MS) /* for which packets that overtake each other are remembered */
#define ROUND 16                     /* questions, after which it begins again */

/* What to do about a chunk that has been asked for so often: ask for it in a new attempt (ANEW); ask in the same
 * attempt again, which fills up the sums in the switches (AGAIN); or ask for single contributions (ALONE). */
enum question { ANEW, AGAIN, ALONE };

static enum question question_of(const struct root_thread *x, const struct root_cell *c) {
    unsigned at = c->asks % ROUND;
    bool few = c->missing < x->workers && c->missing <= FEW_MISSING && c->asks;
    return cell_verifies(c->state) || few || at >= ROUND / 2 ? ALONE : at < OFTEN ? ANEW : AGAIN;
}

void root_cell_begin(struct root_thread *x, struct root_tree *t, uint64_t sequence) {
    *root_cell_of(t, sequence) = (struct root_cell){.owner = sequence + 1, .missing = x->workers};
    memset(root_workers_of(x, t, sequence), 0, x->words * sizeof(uint64_t));
}

/* Returns whether the root has some but not all contributions that a flow brings together, so that it could not add
 * that flow's sum to them. */
static bool is_cut(const struct root_thread *x, const struct root_tree *t, const uint64_t *there) {
    for (uint32_t i = 0; i < x->flow_count; i++) {
        const struct root_flow *f = &x->flows[i];
        if (f->tree != t->first || !f->partial) continue;
        bool some = false, all = true;
        for (uint32_t j = 0; j < x->words; j++) {
            some |= there[j] & f->everyone[j];
            all &= !(f->everyone[j] & ~there[j]);
        }
        if (some && !all) return true;
    }
    return false;
}

void root_cell_forget(struct root_thread *x, struct root_tree *t, uint64_t sequence) {
    struct root_cell *c = root_cell_of(t, sequence);
    uint64_t *there = root_workers_of(x, t, sequence);
    if (sequence == t->oldest && c->missing < x->workers) {
        memcpy(t->heard, there, x->words * sizeof *there);
        t->heard_of = sequence;
    }
    memset(there, 0, x->words * sizeof *there);
    c->missing = x->workers;
}

/* Sends one question to all workers. `set` is the set of workers that are asked, or of chunks that the root has (the
 * count in inart_header's bitmap says which). */
static bool send_question(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint32_t count,
                          uint8_t attempt, bool alone, const uint64_t *set, uint64_t now) {
    struct io *io = x->engine.io;
    if (!io_room(io, t->lane)) io_flush(io, now);
    if (!io_room(io, t->lane)) return false;
    struct inart_header h = {
        .flags = (uint8_t)(INART_FLAG_RESULT | INART_FLAG_ASK | (alone ? INART_FLAG_RESEND : 0)),
        .job = (uint16_t)x->job,
        .label = t->return_label,
        .epoch = inart_attempt_epoch(x->epoch, attempt),
        .sequence = (uint32_t)sequence,
        .bitmap = t->oldest << 32 | count,
    };
    struct inart_header wire = h;
    wire.sequence = inart_on_wire(&t->direction, sequence);
    uint32_t *words = (uint32_t *)inart_values(io_build(io, t->lane, &wire)), bits = count == 1 ? x->workers : count;
    for (uint32_t i = 0; i < x->values; i++)
        words[i] = 32 * i < bits ? __builtin_bswap32((uint32_t)(set[i / 2] >> 32 * (i % 2))) : 0;
    uint32_t tree = inart_checked_tree(&t->direction, t->number);
    words[x->values - 1] = __builtin_bswap32(check_question(x->check, words, &h, tree, attempt));
    if (io_complete(io, t->lane)) io_flush(io, now);
    x->stats.packets_sent++;
    x->stats.bytes_sent += io->frame_bytes;
    uplink_take(x->engine.uplink, io->frame_bytes, now);
    t->stats.questions++;
    root_take_token(t);
    return true;
}

static uint8_t next_attempt(struct root_tree *t, uint64_t now) {
    t->attempt = (uint8_t)(t->attempt + 1);
    if (!t->attempt) t->attempt = 1; /* 0 is that of what is sent for the first time */
    t->attempt_at[t->attempt % RECENT_ATTEMPTS] = now;
    return t->attempt;
}

/* Takes note that the first chunk of an attempt is complete, which measures how long a question takes, at the slowest
 * lately. An attempt counts also when the next one has been asked for meanwhile; otherwise each question would make the
 * one before it futile. */
static void question_answered(struct root_tree *t, uint32_t attempt, uint64_t now) {
    uint64_t *at = &t->attempt_at[attempt % RECENT_ATTEMPTS];
    if (!*at || (uint8_t)(t->attempt - attempt) >= RECENT_ATTEMPTS) return;
    uint64_t took = now - *at;
    *at = 0;
    t->question_rtt = took > t->question_rtt ? took : t->question_rtt - (t->question_rtt - took) / 4;
    if (t->question_rtt > QUESTION_MOST) t->question_rtt = QUESTION_MOST;
}

/* Asks for all chunks that the root lacks, from `first` to before `end`, in one new attempt; without `often`, chunks
 * that have often been asked for are left out. */
static void ask_for_all(struct root_thread *x, struct root_tree *t, uint64_t first, uint64_t end, bool often,
                        uint64_t now) {
    uint64_t most = 32ull * (x->values - 1) < MOST_QUESTION ? 32ull * (x->values - 1) : MOST_QUESTION;
    while (first < end) {
        uint64_t complete[MOST_QUESTION / 64 + 1] = {0}, count = end - first < most ? end - first : most;
        uint8_t attempt = next_attempt(t, now);
        for (uint64_t i = 0; i < count; i++) {
            uint64_t sequence = first + i;
            struct root_cell *c = root_cell_of(t, sequence);
            if (root_is_complete(t, sequence) || (c->owner == sequence + 1 && c->asks >= OFTEN && !often)) {
                complete[i / 64] |= 1ull << i % 64;
                continue;
            }
            if (c->owner != sequence + 1) root_cell_begin(x, t, sequence);
            root_cell_change(c, is_cut(x, t, root_workers_of(x, t, sequence)) ? CELL_ASKED_ANEW : CELL_ASKED);
            c->attempt = attempt;
            c->asked_at = now;
            if (c->asks < OFTEN) /* whether this one comes nobody knows: it may not have been sent yet */
                c->asks++;
        }
        if (!send_question(x, t, first, count < 2 ? 2 : (uint32_t)count, attempt, false, complete, now)) return;
        first += count;
    }
}

/* Asks for chunk `sequence`: the workers that the root lacks, or all workers where the root has a part of a flow's sum.
 */
static void ask_for_one(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint64_t now) {
    struct root_cell *c = root_cell_of(t, sequence);
    uint64_t *there = root_workers_of(x, t, sequence), asked[MOST_WORDS] = {0};
    if (c->owner != sequence + 1) root_cell_begin(x, t, sequence);
    enum question question = question_of(x, c);
    if (question == AGAIN &&
        is_cut(
            x, t,
            there)) /* those who are there would be asked for nothing, and nobody could add up the others' to theirs */
        question = ANEW;
    root_cell_change(c, CELL_ASKED);
    uint32_t unadded = question == ANEW ? 0 : question == ALONE && x->workers > MOST_ALONE ? MOST_ALONE : x->workers;
    if (now - t->unadded_since >= RETRY_FIRST) {
        t->unadded_since = now;
        t->unadded = 0;
    }
    if (t->unadded && t->unadded + unadded > MOST_UNADDED) return; /* what comes by itself is what the link carries */
    t->unadded += unadded;
    if (question == ANEW && is_cut(x, t, there)) root_cell_change(c, CELL_ASKED_ANEW);
    uint32_t left = question == ALONE ? MOST_ALONE : x->workers;
    for (uint32_t i = 0; i < x->words && left; i++) {
        uint64_t all = i + 1 < x->words || x->workers % 64 == 0 ? UINT64_MAX : (1ull << x->workers % 64) - 1;
        for (uint64_t bits = all & ~(cell_begins_anew(c->state) ? 0 : there[i]); bits && left; bits &= bits - 1, left--)
            asked[i] |= bits & -bits;
    }
    if (question == ANEW) c->attempt = next_attempt(t, now);
    c->asked_at = now;
    if (send_question(x, t, sequence, 1, c->attempt, question == ALONE, asked, now) && c->asks < UINT8_MAX) c->asks++;
}

/* Returns how long the workers are given for what was asked for, from the last time that some of it came. */
static uint64_t retry_time(const struct root_tree *t, unsigned doublings, uint64_t longest) {
    uint64_t least = 2 * t->question_rtt > RETRY_FIRST ? 2 * t->question_rtt : RETRY_FIRST;
    /* Workers send what is asked for at the tree's rate; as long as some of it comes, the rest is waited for. */
    double turn = engine_turn(t->planned, RETRY_PACKETS);
    if (turn > (double)least) least = (uint64_t)turn;
    uint64_t wait = least << (doublings < RETRY_DOUBLINGS ? doublings : RETRY_DOUBLINGS),
             most = 2 * least > longest ? 2 * least : longest;
    return wait < most ? wait : most;
}

uint64_t root_arrival_time(const struct root_tree *t) {
    double packets = engine_turn(t->planned, ARRIVAL_PACKETS);
    return packets > (double)ARRIVAL_TIME ? (uint64_t)packets : ARRIVAL_TIME;
}

/* Marks the result of a complete chunk to be sent once more, in its turn: to one worker (its index + 1), or to
 * EVERYBODY, but not twice in a short time. */
static void result_again(struct root_tree *t, uint64_t sequence, uint16_t asker, uint64_t now) {
    struct root_cell *c = root_cell_of(t, sequence);
    if (c->owner != sequence + 1 || !cell_is_complete(c->state)) return;
    if (c->asked_at && now - c->asked_at < root_arrival_time(t)) {
        if (c->state == CELL_REPEATED) return; /* all have it, or it is on its way */
        asker = EVERYBODY;
    }
    c->asker = c->asker && c->asker != asker ? EVERYBODY : asker;
    if (t->repeat >= t->repeat_end) {
        t->repeat = sequence;
        t->repeat_end = sequence + 1;
    }
    t->repeat = sequence < t->repeat ? sequence : t->repeat;
    t->repeat_end = sequence + 1 > t->repeat_end ? sequence + 1 : t->repeat_end;
}

void root_results_again(struct root_tree *t, uint64_t first, uint64_t end, uint64_t now) {
    for (uint64_t sequence = first; sequence < end; sequence++) result_again(t, sequence, EVERYBODY, now);
}

/* Asks, where a worker waits for a chunk and no complete chunk shows that others are lost, for all that the root lacks,
 * as far as windows reach. It does so again while asked-for chunks come, and while the root has a part of the chunk. It
 * stops when nothing comes for long; a worker that still waits says so again. Returns when there may be something to
 * ask for next. */
static uint64_t ask_unseen(struct root_thread *x, struct root_tree *t, uint64_t now) {
    if (t->wanted && t->wanted <= t->oldest) {
        const struct root_cell *c = root_cell_of(t, t->oldest);
        t->wanted = c->owner == t->oldest + 1 && c->asked_at ? t->oldest + 1 : 0;
    }
    if (!t->wanted) return UINT64_MAX;
    uint64_t since = t->wanted_asked > t->asked_came ? t->wanted_asked : t->asked_came;
    uint64_t due = since ? since + retry_time(t, t->wanted_slow / UNSEEN_SLOW, UNSEEN_RETRY_MOST) : now;
    if (due > now) return due;
    const struct root_cell *waits = root_cell_of(t, t->oldest);
    bool begun = waits->owner == t->oldest + 1 && waits->missing < x->workers;
    if (!t->wanted_left && !begun) {
        t->wanted = 0;
        return UINT64_MAX;
    }
    t->wanted_left -= t->wanted_left > 0;
    t->wanted_asks++;
    if (t->wanted_slow < UINT8_MAX) t->wanted_slow++;
    t->wanted_asked = now;
    uint64_t from = t->evident > t->oldest ? t->evident : t->oldest;
    if (t->wanted_asks % UNSEEN_ONE != 1) { /* not all of it may have been sent; the oldest was */
        ask_for_one(x, t, t->oldest, now);
        return now + retry_time(t, t->wanted_slow / UNSEEN_SLOW, UNSEEN_RETRY_MOST);
    }
    ask_for_all(x, t, from, t->oldest + t->slots, true, now);
    if (t->repeat >= t->repeat_end &&
        t->wanted_asks < 2 * UNSEEN_ONE) /* whoever lacks results before could send nothing of that */
        root_results_again(t, t->oldest > t->slots ? t->oldest - t->slots : 0, t->oldest, now);
    return now + retry_time(t, t->wanted_slow / UNSEEN_SLOW, UNSEEN_RETRY_MOST);
}

uint64_t root_ask(struct root_thread *x, struct root_tree *t, uint64_t now) {
    uint64_t unseen = ask_unseen(x, t, now);
    if (t->evident > t->oldest && now >= t->look_at) {
        /* These are the chunks that were evidently lost a guard time ago. Of those that were asked for, they are the
         * ones that have not come while nothing else that was asked for came either. */
        uint64_t end = t->evident_before < t->evident ? t->evident_before : t->evident, lost = 0, first = 0, last = 0;
        for (int round = 0; round < 2; round++) {
            if (round && lost > FEW_CHUNKS) ask_for_all(x, t, first, last + 1, false, now);
            for (uint64_t sequence = t->oldest; sequence < end; sequence++) {
                struct root_cell *c = root_cell_of(t, sequence);
                if (root_is_complete(t, sequence)) continue;
                uint64_t since = c->owner == sequence + 1 ? c->asked_at : 0;
                if (since && since < t->asked_came) since = t->asked_came;
                if (since && now - since < retry_time(t, c->asks / ROUND, RETRY_MOST)) continue;
                if (since && c->asked_at < t->asked_came && c->asks >= OFTEN && !cell_verifies(c->state))
                    c->asks = 0; /* questions are answered again: it is asked for with all the others */
                bool often = c->owner == sequence + 1 && (c->asks >= OFTEN || cell_verifies(c->state));
                if (round && (often || lost <= FEW_CHUNKS))
                    ask_for_one(x, t, sequence, now);
                else if (!round && !often) {
                    first = lost++ ? first : sequence;
                    last = sequence;
                }
            }
        }
        t->evident_before = t->evident;
        t->look_at = now + t->guard;
    }
    uint64_t until = t->evident > t->oldest ? t->look_at : UINT64_MAX;
    return unseen < until ? unseen : until;
}

/* Takes note that a worker waits for a chunk. */
static void want(struct root_tree *t, uint64_t sequence) {
    if (t->wanted) return;
    t->wanted = sequence + 1;
    t->wanted_left = UNSEEN_MOST;
}

void root_take_hint(struct root_thread *x, struct root_tree *t, const struct root_flow *flow,
                    const struct inart_header *h, uint32_t workers, uint64_t now) {
    if ((!flow->partial || workers >= flow->workers) && !(h->flags & INART_FLAG_LATE)) return;
    if (h->flags & INART_FLAG_RESEND) { /* says who is there: it was added up, and would be again */
        struct root_cell *c = root_cell_of(t, h->sequence);
        if (cell_verifies(c->state) || h->sequence < t->evident || now - t->probed_at < RETRY_MOST) return;
        t->probed_at = now;
        t->probed = h->sequence + 1ull;
        if (c->asked_at) /* and something is amiss */
            want(t, t->oldest);
        else
            ask_for_one(x, t, h->sequence, now);
    } else if (h->flags & INART_FLAG_LATE)
        want(t, t->oldest);
}

void root_take_complete(struct root_tree *t, const struct inart_header *h, uint8_t kind, uint32_t attempt,
                        uint64_t now) {
    struct root_cell *c = root_cell_of(t, h->sequence);
    if (!(kind & (INART_FLAG_SINGLE | INART_FLAG_MAXIMUM)) && t->evident < h->sequence + 1ull) {
        t->evident = h->sequence + 1ull;
        if (t->look_at <= now) t->look_at = now + t->guard;
    }
    if (c->asked_at) {
        if (attempt != c->attempt && t->guard < GUARD_MOST) {
            t->guard *= 2; /* it was only late */
            t->guard_since = now;
        }
        if (attempt) { /* not: somebody's late copy of what was sent for the first time */
            t->asked_came = now;
            question_answered(t, attempt, now);
        }
    }
    if (t->guard > GUARD_FIRST && now > t->guard_since + GUARD_KEPT) {
        t->guard /= 2;
        t->guard_since = now;
    }
    t->wanted_asks = t->wanted_slow = 0;
    if (h->flags & INART_FLAG_LATE || (attempt && t->probed == h->sequence + 1ull)) /* it was lost, and nobody late */
        want(t, h->sequence + 1ull);                                                /* what is behind it */
    /* The rate of results per second is measured here, for results that are sent once more. */
    if (now - t->rate_since >= RATE_TIME) {
        double rate = t->rate_count * 1e9 / (double)(now - t->rate_since);
        t->rate = rate > t->rate ? rate : t->rate;
        t->rate_since = now;
        t->rate_count = 0;
    }
    t->rate_count++;
}

void root_take_request(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                       uint64_t now) {
    result_again(t, sequence,
                 root_set_size(set, x->words) == 1 ? (uint16_t)(root_set_first(set, x->words) + 1) : EVERYBODY, now);
}

void root_take_requests(struct root_thread *x, struct root_tree *t, uint64_t sequence, const uint64_t *set,
                        const uint32_t *words, uint64_t now) {
    root_take_request(x, t, sequence, set, now);
    uint32_t count = __builtin_bswap32(words[0]), most = 32 * (x->values - 2);
    if (root_set_size(set, x->words) != 1) return;
    for (uint32_t i = 1; i < count && i < most && i < t->slots; i++)
        if (__builtin_bswap32(words[1 + i / 32]) >> i % 32 & 1) root_take_request(x, t, sequence + i, set, now);
}

void root_ask_alone(struct root_tree *t, uint64_t sequence) {
    if (t->evident < sequence + 1) t->evident = sequence + 1;
    if (t->evident_before < sequence + 1) t->evident_before = sequence + 1;
    t->look_at = 0;
}

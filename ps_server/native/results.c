#include "results.h"
#include "chunks.h"
#include "verify.h"

#define REPEAT_PAUSE (INART_NS / 1000)
#define TOKENS_LEAST (-4.0)
#define TOKENS_MOST 16.0
#define SPEED 1.125      /* of the planned rate: so much more may be sent to the workers while something is lost */
#define RATE_LEAST 200.0 /* packets a second, when nothing is known */

/* Returns the packets per second to the workers, new results and others. */
static double pace_of(const struct root_tree *t) {
    return SPEED * (t->planned > 0 ? t->planned : t->rate > RATE_LEAST ? t->rate : RATE_LEAST);
}

void root_take_token(struct root_tree *t) {
    if (t->tokens > TOKENS_LEAST) t->tokens -= 1;
}

/* Returns when something may be sent once more; `now` or earlier: at once. */
static uint64_t root_token_due(struct root_tree *t, uint64_t now) {
    double pace = pace_of(t),
           tokens = t->tokens + (now > t->tokens_at ? (double)(now - t->tokens_at) * 1e-9 * pace : 0);
    t->tokens = tokens < TOKENS_MOST ? tokens : TOKENS_MOST;
    t->tokens_at = now;
    return t->tokens >= 1 ? now : now + 1 + (uint64_t)((1 - t->tokens) / pace * 1e9);
}

bool root_send_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, const void *values, uint32_t label,
                      uint64_t now) {
    struct io *io = x->engine.io;
    if (!io_room(io, t->lane)) io_flush(io, now);
    if (!io_room(io, t->lane)) {
        t->stats.results_dropped++;
        return false;
    }
    struct root_cell *c = root_cell_of(t, sequence);
    struct inart_header h = {
        .flags = (uint8_t)(INART_FLAG_RESULT | (c->congested ? INART_FLAG_CONGESTED : 0) | c->flags),
        .job = (uint16_t)x->job,
        .label = label,
        .epoch = x->epoch,
        .sequence = inart_on_wire(&t->direction, sequence),
        .bitmap = t->oldest << 32 | x->workers,
    };
    uint32_t *words = (uint32_t *)inart_values(io_build(io, t->lane, &h));
    memcpy(words, values, x->values * sizeof(uint32_t));
    verify_seal_result(x, t, sequence, c->flags, (uint32_t)t->oldest, words);
    if (io_complete(io, t->lane)) io_flush(io, now);
    x->stats.packets_sent++;
    x->stats.bytes_sent += io->frame_bytes;
    uplink_take(x->engine.uplink, io->frame_bytes, now);
    root_take_token(t);
    return true;
}

uint64_t root_repeat_results(struct root_thread *x, struct root_tree *t, uint64_t now) {
    for (; t->repeat < t->repeat_end; t->repeat++) {
        struct root_cell *c = root_cell_of(t, t->repeat);
        if (c->owner != t->repeat + 1 || !cell_is_complete(c->state) || !c->asker) continue;
        uint64_t due = root_token_due(t, now), link = uplink_due(x->engine.uplink, x->engine.io->frame_bytes, now);
        due = link > due ? link : due;
        if (due > now || !io_room(x->engine.io, t->lane)) return due > now ? due : now + REPEAT_PAUSE;
        uint32_t label = c->asker == EVERYBODY ? t->return_label : t->answer_labels[c->asker - 1];
        t->stats.answers += root_send_result(x, t, t->repeat, root_values_of(x, t, t->repeat), label, now);
        root_cell_change(c, c->asker == EVERYBODY ? CELL_SENT_TO_ALL : CELL_SENT_TO_ONE);
        c->asked_at = now;
        if (c->asker == EVERYBODY) c->sent_at = now;
        c->asker = 0;
    }
    return UINT64_MAX;
}

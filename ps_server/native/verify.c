#include "verify.h"
#include "asking.h"
#include "checked_stream.h"
#include "chunks.h"

#define WARY (10 * INART_NS)

static uint32_t checked_tree(const struct root_tree *t) { return inart_checked_tree(&t->direction, t->number); }

/* Returns the mask of the check words of a set of workers (check.h). */
static uint32_t mask_of(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence,
                        const uint64_t *set) {
    return check_mask(x->check, t->masks, checked_tree(t), kind, sequence, set, x->words);
}

bool verify_words(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                  const uint32_t *words) {
    if (kind & INART_FLAG_MAXIMUM) return check_maximum_right(x->check, words, checked_tree(t), sequence);
    return check_right(x->check, words, check_sum(x->check, words), mask_of(x, t, kind, sequence, set));
}

bool verify_streamed(struct root_thread *x, struct root_tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set,
                     const uint32_t *words, uint32_t *to) {
    if (kind & INART_FLAG_MAXIMUM) {
        inart_stream(to, words, x->values * sizeof *words);
        return verify_words(x, t, kind, sequence, set, words);
    }
    uint64_t sum = checked_stream(x->check, words, to);
    return check_right(x->check, words, sum, mask_of(x, t, kind, sequence, set));
}

/* Counts one more wrong packet with this label, of these workers. When all entries are taken it is not counted. */
static void suspect(struct root_thread *x, struct root_tree *t, uint32_t label, const uint64_t *set) {
    struct inart_root_tree_stats *s = &t->stats;
    uint32_t worker = 0; /* its index + 1; 0: several */
    for (uint32_t i = 0; i < x->words && root_set_size(set, x->words) == 1; i++)
        if (set[i]) worker = 64 * i + (uint32_t)__builtin_ctzll(set[i]) + 1;
    for (int i = 0; i < INART_SUSPECTS; i++)
        if (!s->suspects[i] || ((uint32_t)(s->suspects[i] >> 32) == label && s->suspect_workers[i] == worker)) {
            s->suspects[i] = (uint64_t)label << 32 | ((uint32_t)s->suspects[i] + 1);
            s->suspect_workers[i] = worker;
            return;
        }
}

void root_forget_chunk(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind) {
    struct root_cell *c = root_cell_of(t, sequence);
    uint8_t state = (uint8_t)cell_after(c->state, CELL_WRONG);
    *c = (struct root_cell){.owner = sequence + 1, .missing = x->workers, .flags = kind, .state = state};
    memset(root_workers_of(x, t, sequence), 0, x->words * sizeof(uint64_t));
}

void verify_sum_wrong(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                      const uint32_t *words, uint32_t label, uint64_t now) {
    t->stats.check_failures++;
    t->wary_until = now + WARY;
    if (!verify_words(x, t, kind, sequence, set, words)) suspect(x, t, label, set);
    root_forget_chunk(x, t, sequence, kind);
    root_ask_alone(t, sequence);
}

bool verify_packet(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set,
                   const uint32_t *words, uint32_t label, uint64_t now) {
    if (verify_words(x, t, kind, sequence, set, words)) return true;
    t->stats.check_failures++;
    t->wary_until = now + WARY;
    suspect(x, t, label, set);
    const struct root_cell *c = root_cell_of(t, sequence);
    if (!cell_verifies(c->state) && root_set_size(set, x->words) == c->missing) {
        root_forget_chunk(x, t, sequence, kind);
        root_ask_alone(t, sequence);
    }
    return false;
}

void verify_seal_result(struct root_thread *x, struct root_tree *t, uint64_t sequence, uint8_t kind, uint32_t complete,
                        uint32_t *words) {
    bool maximum = kind & INART_FLAG_MAXIMUM;
    uint32_t sum =
        maximum ? 0 : check_written(x->check, words) - mask_of(x, t, kind, sequence, root_workers_of(x, t, sequence));
    words[x->values - 1] =
        __builtin_bswap32(check_result(x->check, &t->results[maximum], sum, checked_tree(t), kind, sequence, complete));
}

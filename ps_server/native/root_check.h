/* Is what a chunk adds up to what the workers have sent? (worker_agent/native/check.h.) Included by root.c only.
 *
 * A chunk is verified once, when it is complete, before its result leaves. One that is wrong is forgotten and comes once more; then
 * each packet is verified before it is added, so that what somebody changes or forges stays out. After a wrong chunk each packet
 * of its tree is verified for WARY seconds: of a sum of several packets that is wrong nobody can say later which of them it was.
 * The labels that wrong packets had are counted, and whose they are where they are of one worker: controlplane/service/culprits.py
 * finds out from them which host, link or switch it is.
 */
#ifndef INART_ROOT_CHECK_H
#define INART_ROOT_CHECK_H

static uint32_t number_of(struct io_thread *x, struct tree *t, uint8_t kind, uint64_t sequence)
{
    return check_number(x->check, &t->recent[kind & INART_FLAG_MAXIMUM ? 1 : 0], t->number, kind, sequence);
}

/* Are these words the sum (or maximum) of what this set of workers has sent for the chunk? */
static bool words_right(struct io_thread *x, struct tree *t, uint8_t kind, uint64_t sequence, const uint64_t *set, const uint32_t *words)
{
    uint32_t number = number_of(x, t, kind, sequence);
    if (kind & INART_FLAG_MAXIMUM)
        return check_maximum_right(x->check, words, number);
    bool all = size_of(set, x->words) == x->workers;
    return check_right(x->check, words, all ? x->check->everyone : check_of_set(x->check, set, x->words), number);
}

#define WARY (10 * INART_NS)

/* One more wrong packet with this label, of these workers. When all entries are taken it is not counted. */
static void suspect(struct io_thread *x, struct tree *t, uint32_t label, const uint64_t *set)
{
    struct inart_root_tree_stats *s = &t->stats;
    uint32_t worker = 0; /* its index + 1; 0: several */
    for (uint32_t i = 0; i < x->words && size_of(set, x->words) == 1; i++)
        if (set[i])
            worker = 64 * i + (uint32_t)__builtin_ctzll(set[i]) + 1;
    for (int i = 0; i < INART_SUSPECTS; i++)
        if (!s->suspects[i] || ((uint32_t)(s->suspects[i] >> 32) == label && s->suspect_workers[i] == worker)) {
            s->suspects[i] = (uint64_t)label << 32 | ((uint32_t)s->suspects[i] + 1);
            s->suspect_workers[i] = worker;
            return;
        }
}

/* What has come of the chunk is forgotten; from now on each of its packets is verified. */
static void forget_chunk(struct io_thread *x, struct tree *t, uint64_t sequence, uint8_t kind)
{
    *cell_of(t, sequence) = (struct cell){.owner = sequence + 1, .missing = x->workers, .flags = kind, .alone = true};
    memset(workers_of(x, t, sequence), 0, x->words * sizeof(uint64_t));
}

/* The complete chunk is wrong, and the packet with `label`, of these workers, came last. */
static void sum_wrong(struct io_thread *x, struct tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set, const uint32_t *words,
                      uint32_t label, uint64_t now)
{
    t->stats.check_failures++;
    t->wary_until = now + WARY;
    if (!words_right(x, t, kind, sequence, set, words))
        suspect(x, t, label, set);
    forget_chunk(x, t, sequence, kind);
    ask_alone(t, sequence);
}

/* Nothing of a packet counts that is wrong by itself. What else has come of its chunk stays, unless only this was missing: then all have
 * sent theirs, and all are asked. */
static bool packet_right(struct io_thread *x, struct tree *t, uint64_t sequence, uint8_t kind, const uint64_t *set, const uint32_t *words,
                         uint32_t label, uint64_t now)
{
    if (words_right(x, t, kind, sequence, set, words))
        return true;
    t->stats.check_failures++;
    t->wary_until = now + WARY;
    suspect(x, t, label, set);
    const struct cell *c = cell_of(t, sequence);
    if (!c->alone && size_of(set, x->words) == c->missing) {
        forget_chunk(x, t, sequence, kind);
        ask_alone(t, sequence);
    }
    return false;
}

/* A result's check word, in the packet that is to leave: it also covers the number of complete chunks. */
static void seal_result(struct io_thread *x, struct tree *t, uint64_t sequence, uint8_t kind, uint32_t complete, uint32_t *words)
{
    const struct check *k = x->check;
    uint32_t word = kind & INART_FLAG_MAXIMUM ? check_seal(k, complete, number_of(x, t, kind, sequence))
                                              : check_plus(k, check_modulo(k, check_written(k, words)), check_header(k, complete));
    words[x->values - 1] = __builtin_bswap32(word);
}

#endif

/* Doors to worker_agent/native/check.h for tests and measurements (evaluation/hosts/checks.py). */
#include "check.h"

struct check *checks_make(const uint8_t *key, uint32_t workers, uint32_t values) { return check_make(key, workers, values); }

void checks_free(struct check *k) { check_free(k); }

uint32_t checks_prime(const struct check *k) { return k->prime; }

static uint64_t sum_of(const struct check *k, const uint32_t *workers, uint32_t count)
{
    uint64_t set[(INART_MAX_WORKERS + 63) / 64 + 1] = {0}, sum = 0;
    for (uint32_t i = 0; i < count; i++)
        set[workers[i] / 64] |= 1ull << workers[i] % 64;
    sum = check_of_set(k, set, sizeof set / sizeof *set);
    return count == k->workers && sum != k->everyone ? UINT64_MAX : sum;
}

/* Writes the check word of the sum of these workers' contributions (a set) into a packet's words, as they are on the wire. */
void checks_write(const struct check *k, uint32_t *wire, const uint32_t *workers, uint32_t count, uint32_t tree, uint32_t kind, uint64_t sequence)
{
    struct check_recent recent = {0};
    check_write(k, wire, sum_of(k, workers, count), check_number(k, &recent, tree, kind, sequence));
}

int checks_right(const struct check *k, const uint32_t *wire, const uint32_t *workers, uint32_t count, uint32_t tree, uint32_t kind, uint64_t sequence)
{
    struct check_recent recent = {0};
    return check_right(k, wire, sum_of(k, workers, count), check_number(k, &recent, tree, kind, sequence));
}

uint32_t checks_result(const struct check *k, const uint32_t *wire, const uint32_t *workers, uint32_t count, uint32_t tree, uint32_t kind,
                       uint64_t sequence, uint32_t complete)
{
    struct check_recent recent = {0};
    return check_plus(k, check_word(k, wire, sum_of(k, workers, count), check_number(k, &recent, tree, kind, sequence)), check_header(k, complete));
}

uint32_t checks_seal(const struct check *k, uint32_t tree, uint64_t sequence, uint32_t complete)
{
    struct check_recent recent = {0};
    return check_seal(k, complete, check_number(k, &recent, tree, INART_FLAG_MAXIMUM, sequence));
}

uint32_t checks_exponent(const struct check *k, uint32_t tree, uint64_t sequence, uint32_t position, uint32_t exponent)
{
    struct check_recent recent = {0};
    return check_exponent(k, check_number(k, &recent, tree, INART_FLAG_MAXIMUM, sequence), position, exponent);
}

int checks_maximum_right(const struct check *k, const uint32_t *wire, uint32_t tree, uint64_t sequence)
{
    struct check_recent recent = {0};
    return check_maximum_right(k, wire, check_number(k, &recent, tree, INART_FLAG_MAXIMUM, sequence));
}

/* The check words of `packets` packets one after another, as a worker sends them; for its speed. */
uint32_t checks_write_all(const struct check *k, uint32_t *wire, uint32_t packets)
{
    struct check_recent recent = {0};
    for (uint32_t i = 0; i < packets; i++)
        check_write(k, wire + (uint64_t)i * k->values, k->worker[0], check_number(k, &recent, 1, 0, i));
    return wire[k->values - 1];
}

/* The check word of every packet (docs/protocol.md, "Every sum is checked"; tests/model/checkword.py is the reference
 * in numpy, which must give the same bits).
 *
 * The last value of a packet is its check word; switches add it like any other value. With p a secret prime and W
 * workers, W * p <= 2^32, worker w's check word of data words v_j (signed 32-bit integers) is
 *
 *     t_w = (sum_j c_j * v_j) mod p  +  m_w   (mod 2^32),    m_w = P_w - P_(w+1)
 *
 * The masks m_w hide the rest as a one-time pad does: P_0 .. P_W are W + 1 independent streams of 32-bit numbers, with
 * a number for each chunk (tree, kind and sequence). A reader of packets sees uniform numbers, and learns neither the
 * c_j nor p. The sum of the words before the masks is below W * p and never wraps, and the masks of neighbours cancel
 * each other. The sum S_j of a set of workers with check word T is therefore right if and only if (but by chance)
 *
 *     (T - sum of m_w over the set) mod p  ==  (sum_j c_j * S_j) mod p,
 *
 * and the masks of all workers are P_0 - P_W, whatever W is. The coefficients c_j (26 bits with a sign) show changed
 * bits; the masks show a worker that is twice or not at all in a sum, and a chunk in another place. A result has a
 * stream of its own as its mask, and its check word also covers the number of complete chunks in its header, times
 * another stream.
 *
 * Words of MAXIMUM chunks are not added, so each proves itself: 13 bits of exponent above an 18-bit code of tree,
 * sequence, position and exponent. A switch that loses one of them leaves the maximum of the others, which proves
 * itself too; so each exponent is in a packet twice, and what is lost in one word is still in the other.
 *
 * All numbers come from the epoch's key by ChaCha with 8 rounds (RFC 8439 has its block).
 */
#ifndef INART_CHECK_H
#define INART_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check_vectors.h"
#include "packet.h"

#define CHECK_KEY_BYTES 16
#define CHECK_PRIME_MOST \
    ((1ull << 31) - 1)              /* exclusive: 2^31 - 1 divides 2^32 - 2, so a flip of bit 1 could be unseen */
#define CHECK_SUM_MOST (1ull << 60) /* of the products of a packet's words, as they are added (check_vectors.h) */
#define CHECK_LANES 16              /* blocks of ChaCha at once: as many as a vector has lanes */
#define CHECK_RECENT (16 * CHECK_LANES)
#define CHECK_MASKS 32 /* streams of masks that a root keeps numbers of (check_mask) */
#define CHECK_CODE_BITS 18
#define CHECK_CODE ((1u << CHECK_CODE_BITS) - 1)
#define CHECK_EXPONENTS (1u << (31 - CHECK_CODE_BITS))
#define CHECK_MARK 6144 /* exponents from here on are no exponents, but say what an operation is */
/* The flags that are the same in all packets of a chunk, and so in its check words. */
#define CHECK_KINDS (INART_FLAG_MAXIMUM | INART_FLAG_SCATTER | INART_FLAG_SINGLE)

enum {
    CHECK_FOR_COEFFICIENTS = 1,
    CHECK_FOR_PRIME,
    CHECK_FOR_EXPONENTS,
    CHECK_FOR_QUESTIONS,
    CHECK_FOR_QUESTION_PLACES,
    CHECK_FOR_CHUNKS /* the lowest byte; the stream is above it */
};

/* All values that follow from a key. `low` and `high` are the coefficients as check_vectors.h multiplies them. With
 * digits, each of their words has a digit of x in its lower half and one of y in its upper half; otherwise `low` has x,
 * and `high` the next word's x. The coefficient of the check word itself, and those beyond it, are 0. */
struct check {
    uint32_t key[4], values, workers, prime;
    uint32_t narrow;     /* a number shifted right by so many bits is below prime - 1 */
    uint64_t reciprocal; /* of prime: 2^64 / prime */
    uint64_t positive;   /* a multiple of prime that no sum of products is below */
    uint64_t wide;       /* 2^CHECK_WIDE modulo prime */
    uint64_t offset;     /* what is added to the sum that check_pass finds (check_vectors.h); with `positive` */
    uint32_t *low, *high;
};

/* The numbers of CHECK_RECENT chunks that follow each other, of one stream; they are kept because packets come nearly
 * in order. */
struct check_recent {
    uint64_t blocks;                                /* the first one's sequence / CHECK_RECENT, + 1; 0: none yet */
    uint32_t stream, kind, number[16][CHECK_LANES]; /* by sequence % 16, and by block */
};

static inline uint32_t check_rotate(uint32_t x, int n) { return x << n | x >> (32 - n); }

#define CHECK_QUARTER(a, b, c, d)                                                                                  \
    (a += b, d = check_rotate(d ^ a, 16), c += d, b = check_rotate(b ^ c, 12), a += b, d = check_rotate(d ^ a, 8), \
     c += d, b = check_rotate(b ^ c, 7))

#define CHECK_QUARTERS(a, b, c, d) \
    for (int lane = 0; lane < CHECK_LANES; lane++) CHECK_QUARTER(x[a][lane], x[b][lane], x[c][lane], x[d][lane])

/* Computes CHECK_LANES blocks of ChaCha8 with a 128-bit key, whose first words are those of `counter`: 16 numbers each,
 * in out[number][block]. */
/* This function is seldom called. Inlined it would take registers from the code that runs for every packet. */
__attribute__((noinline, unused)) static void check_blocks(const uint32_t key[4], const uint32_t counter[CHECK_LANES],
                                                           uint32_t purpose, uint32_t a, uint32_t b,
                                                           uint32_t out[16][CHECK_LANES]) {
    const uint32_t start[16] = {0x61707865, 0x3120646e, 0x79622d36, 0x6b206574, key[0], key[1],  key[2], key[3],
                                key[0],     key[1],     key[2],     key[3],     0,      purpose, a,      b};
    uint32_t x[16][CHECK_LANES];
    for (int i = 0; i < 16; i++)
        for (int lane = 0; lane < CHECK_LANES; lane++) x[i][lane] = i == 12 ? counter[lane] : start[i];
    for (int i = 0; i < 4; i++) {
        CHECK_QUARTERS(0, 4, 8, 12);
        CHECK_QUARTERS(1, 5, 9, 13);
        CHECK_QUARTERS(2, 6, 10, 14);
        CHECK_QUARTERS(3, 7, 11, 15);
        CHECK_QUARTERS(0, 5, 10, 15);
        CHECK_QUARTERS(1, 6, 11, 12);
        CHECK_QUARTERS(2, 7, 8, 13);
        CHECK_QUARTERS(3, 4, 9, 14);
    }
    for (int i = 0; i < 16; i++)
        for (int lane = 0; lane < CHECK_LANES; lane++) out[i][lane] = x[i][lane] + (i == 12 ? counter[lane] : start[i]);
}

/* Computes CHECK_LANES blocks that follow each other, from block `first` on. */
static inline void check_blocks_from(const uint32_t key[4], uint32_t first, uint32_t purpose, uint32_t a, uint32_t b,
                                     uint32_t out[16][CHECK_LANES]) {
    uint32_t counter[CHECK_LANES];
    for (uint32_t lane = 0; lane < CHECK_LANES; lane++) counter[lane] = first + lane;
    check_blocks(key, counter, purpose, a, b, out);
}

/* ---- streams ---- */

/* Returns the number of one chunk in a stream. Streams 0 to W are those of masks. */
static inline uint32_t check_number(const struct check *k, struct check_recent *recent, uint32_t stream, uint32_t tree,
                                    uint32_t kind, uint64_t sequence) {
    uint64_t blocks = sequence / CHECK_RECENT + 1;
    if (recent->blocks != blocks || recent->kind != kind || recent->stream != stream) {
        check_blocks_from(k->key, (uint32_t)(sequence / CHECK_RECENT * CHECK_LANES), CHECK_FOR_CHUNKS | stream << 8,
                          tree, kind, recent->number);
        recent->blocks = blocks;
        recent->kind = kind;
        recent->stream = stream;
    }
    return recent->number[sequence % 16][sequence / 16 % CHECK_LANES];
}

/* Returns the place of a stream of masks among CHECK_MASKS. The first and the last stream, which every full sum needs,
 * share theirs with no other. */
static inline struct check_recent *check_place(const struct check *k, struct check_recent *masks, uint32_t stream) {
    return masks + (stream == 0 ? 0 : stream == k->workers ? 1 : 2 + stream % (CHECK_MASKS - 2));
}

/* Returns the mask of one worker. `masks` has numbers of its own stream and of the next one. */
static inline uint32_t check_own_mask(const struct check *k, struct check_recent masks[2], uint32_t worker,
                                      uint32_t tree, uint32_t kind, uint64_t sequence) {
    return check_number(k, masks, worker, tree, kind, sequence) -
           check_number(k, masks + 1, worker + 1, tree, kind, sequence);
}

/* Returns the sum of the masks of a set of workers, which has a bit for each: two numbers per run of neighbours. */
static inline uint32_t check_mask(const struct check *k, struct check_recent masks[CHECK_MASKS], uint32_t tree,
                                  uint32_t kind, uint64_t sequence, const uint64_t *set, uint32_t words) {
    uint32_t mask = 0;
    uint64_t last = 0; /* 1: the worker before this word's first one is in the set */
    for (uint32_t i = 0; i <= words; i++) {
        uint64_t bits = i < words ? set[i] : 0;
        for (uint64_t edges = bits ^ (bits << 1 | last); edges; edges &= edges - 1) {
            uint32_t bit = (uint32_t)__builtin_ctzll(edges), stream = 64 * i + bit;
            uint32_t number = check_number(k, check_place(k, masks, stream), stream, tree, kind, sequence);
            mask += bits >> bit & 1 ? number : -number;
        }
        last = bits >> 63;
    }
    return mask;
}

/* Returns x modulo p. x / p exceeds x * reciprocal / 2^64 by less than 1, so the multiple of p that is subtracted is
 * the right one or the one below it. */
static inline uint32_t check_modulo(const struct check *k, uint64_t x) {
    uint64_t rest = x - (uint64_t)((unsigned __int128)x * k->reciprocal >> 64) * k->prime;
    return (uint32_t)(rest >= k->prime ? rest - k->prime : rest);
}

static inline uint32_t check_plus(const struct check *k, uint32_t a, uint32_t b) {
    uint64_t sum = (uint64_t)a + b;
    return (uint32_t)(sum >= k->prime ? sum - k->prime : sum);
}

/* ---- sum_j c_j * v_j over the words as they are on the wire ---- */

/* Returns the coefficient of word j: of its 16 lower bits, or with `upper` of the bits above them. */
static inline int64_t check_coefficient(const struct check *k, uint32_t j, bool upper) {
#ifdef CHECK_DIGITS
    uint32_t shift = upper ? 16 : 0;
    return (int16_t)(k->low[j] >> shift) + (int64_t)(int16_t)(k->high[j] >> shift) * (1 << CHECK_DIGIT);
#else
    return (int64_t)(int32_t)k->low[j] * (upper ? 1 << 16 : 1);
#endif
}

#ifdef CHECK_VECTORS
CHECK_INLINE void check_step_sum(check_sums *s, const uint32_t *low, const uint32_t *high, size_t j, bool last,
                                 const void *wire) {
    (void)last; /* the check word's coefficient is 0 */
    check_take(s, low, high, check_swap(check_load((const uint32_t *)wire + j)), j);
}
#endif

/* Returns a number that equals sum_j c_j * v_j of a packet's words modulo p, without the check word itself. It is so
 * much less than 2^63 that a product of two numbers modulo p may be added (check_whole). */
static inline uint64_t check_sum(const struct check *restrict k, const uint32_t *restrict wire) {
    uint32_t j = 0;
    uint64_t sum = k->positive;
#ifdef CHECK_VECTORS
    j = k->values & ~(CHECK_WIDTH - 1u);
    sum = (uint64_t)check_pass(k->low, k->high, k->wide, j, check_step_sum, wire) + k->offset;
#endif
    for (; j + INART_CHECK_WORDS < k->values; j++) {
        uint32_t v = __builtin_bswap32(wire[j]);
        int64_t lower = v & 0xffff, upper = (int16_t)(v >> 16);
        sum += (uint64_t)(check_coefficient(k, j, false) * lower + check_coefficient(k, j, true) * upper);
    }
    return sum;
}

static inline uint32_t check_written(const struct check *k, const uint32_t *wire) {
    return __builtin_bswap32(wire[k->values - 1]);
}

/* Returns the check word of a packet, given check_sum of its words and the mask of its contributors. */
static inline uint32_t check_word(const struct check *k, uint64_t sum, uint32_t mask) {
    return check_modulo(k, sum) + mask;
}

/* Returns whether a packet's check word is that of its words; `sum` is check_sum of them. */
static inline bool check_right(const struct check *k, const uint32_t *wire, uint64_t sum, uint32_t mask) {
    return check_modulo(k, check_written(k, wire) - mask) == check_modulo(k, sum);
}

/* ---- results ---- */

/* The streams of results: their mask, and what their header's number of complete chunks is multiplied by. */
struct check_results {
    struct check_recent mask, factor;
};

/* Returns the check word of a result, given check_sum of its words (0 for a MAXIMUM chunk's, whose words prove
 * themselves) and the number of complete chunks in its header. */
static inline uint32_t check_result(const struct check *k, struct check_results *results, uint64_t sum, uint32_t tree,
                                    uint32_t kind, uint64_t sequence, uint32_t complete) {
    uint32_t mask = check_number(k, &results->mask, k->workers + 1, tree, kind, sequence);
    uint64_t factor = 1 + (check_number(k, &results->factor, k->workers + 2, tree, kind, sequence) >> k->narrow);
    return check_plus(k, check_modulo(k, sum), check_modulo(k, factor * complete)) + mask;
}

static inline bool check_result_right(const struct check *k, struct check_results *results, const uint32_t *wire,
                                      uint64_t sum, uint32_t tree, uint32_t kind, uint64_t sequence,
                                      uint32_t complete) {
    return check_written(k, wire) == check_result(k, results, sum, tree, kind, sequence, complete);
}

/* ---- questions ---- */

#define CHECK_QUESTION_MOST 0xffffu /* chunks */

/* Returns the check word of the root's question with this header. It covers the question's words and the header: the
 * chunks that are asked for, the attempt (`attempt` is that of the header's epoch), and the number below which all
 * chunks are complete. Switches do not add it, so it is the output of a pseudo-random function. */
static inline uint32_t check_question(const struct check *k, const uint32_t *wire, const struct inart_header *h,
                                      uint32_t tree, uint32_t attempt) {
    uint32_t kind = h->flags | attempt << 8 | (uint32_t)h->bitmap << 16, out[16][CHECK_LANES];
    check_blocks_from(k->key, check_modulo(k, check_sum(k, wire)), CHECK_FOR_QUESTIONS, tree, kind, out);
    check_blocks_from(k->key, (uint32_t)h->sequence, CHECK_FOR_QUESTION_PLACES, out[0][0], (uint32_t)(h->bitmap >> 32),
                      out);
    return out[0][0];
}

static inline bool check_question_right(const struct check *k, const uint32_t *wire, const struct inart_header *h,
                                        uint32_t tree, uint32_t attempt) {
    return (uint32_t)h->bitmap <= CHECK_QUESTION_MOST &&
           check_written(k, wire) == check_question(k, wire, h, tree, attempt);
}

/* ---- words of MAXIMUM chunks ---- */

/* Turns `count` exponents (13 bits) at positions from `first` on into the words that packets carry, as host integers:
 * each exponent with its code, and the same with another code for its second word. There is room for whole vectors. */
static inline void check_code_words(const struct check *k, uint32_t tree, uint64_t sequence, uint32_t first,
                                    uint32_t count, const uint32_t *exponents, uint32_t *words, uint32_t *again) {
    uint32_t counter[CHECK_LANES], out[16][CHECK_LANES];
    for (uint32_t j = 0; j < count; j += CHECK_LANES) {
        for (uint32_t lane = 0; lane < CHECK_LANES; lane++)
            counter[lane] = (first + j + lane) * CHECK_EXPONENTS | exponents[j + lane];
        check_blocks(k->key, counter, CHECK_FOR_EXPONENTS, tree, (uint32_t)sequence, out);
        for (uint32_t lane = 0; lane < CHECK_LANES; lane++) {
            words[j + lane] = exponents[j + lane] << CHECK_CODE_BITS | out[0][lane] >> (32 - CHECK_CODE_BITS);
            again[j + lane] = exponents[j + lane] << CHECK_CODE_BITS | out[1][lane] >> (32 - CHECK_CODE_BITS);
        }
    }
}

/* The exponents of a packet and their two words, in whole vectors. */
struct check_exponents {
    uint32_t exponent[INART_MAX_VALUES / 2 + CHECK_LANES], word[INART_MAX_VALUES / 2 + CHECK_LANES],
        again[INART_MAX_VALUES / 2 + CHECK_LANES];
};

/* Turns the exponents of a MAXIMUM chunk, at positions from `first` to INART_EXPONENT_WORDS, into words of the packet:
 * each exponent twice, with its codes. */
static inline void check_seal_exponents(const struct check *k, uint32_t tree, uint64_t sequence, uint32_t first,
                                        uint32_t *wire) {
    struct check_exponents e;
    uint32_t n = INART_EXPONENT_WORDS(k->values), count = n > first ? n - first : 0;
    memcpy(e.exponent, wire + first, count * sizeof *wire);
    memset(e.exponent + count, 0, CHECK_LANES * sizeof *wire);
    check_code_words(k, tree, sequence, first, count, e.exponent, e.word, e.again);
    for (uint32_t j = 0; j < count; j++) {
        wire[first + j] = __builtin_bswap32(e.word[j]);
        wire[first + n + j] = __builtin_bswap32(e.again[j]);
    }
}

/* Returns whether all words of a MAXIMUM chunk are right, and each exponent is the same in both of its words. The first
 * two words of an operation are sizes that only messages use: they are negative and have no code. */
static inline bool check_maximum_right(const struct check *k, const uint32_t *wire, uint32_t tree, uint64_t sequence) {
    struct check_exponents e;
    uint32_t n = INART_EXPONENT_WORDS(k->values), wrong = 0;
    for (uint32_t j = 0; j < n; j++)
        e.exponent[j] = __builtin_bswap32(wire[j]) >> CHECK_CODE_BITS & (CHECK_EXPONENTS - 1);
    memset(e.exponent + n, 0, CHECK_LANES * sizeof *wire);
    check_code_words(k, tree, sequence, 0, n, e.exponent, e.word, e.again);
    bool marked = n > 2 && __builtin_bswap32(wire[2]) == e.word[2] && e.exponent[2] >= CHECK_MARK;
    for (uint32_t j = 0; j < n; j++)
        if (j >= 2 || !marked || !(__builtin_bswap32(wire[j]) >> 31))
            wrong |= (__builtin_bswap32(wire[j]) ^ e.word[j]) | (__builtin_bswap32(wire[j + n]) ^ e.again[j]);
    return !wrong;
}

/* ---- making ---- */

static inline bool check_is_prime(uint32_t n) {
    if (n < 4 || n % 2 == 0) return n == 2 || n == 3;
    for (uint32_t d = 3; (uint64_t)d * d <= n; d += 2)
        if (n % d == 0) return false;
    return true;
}

/* Returns a prime between half of 2^32 / W and 2^32 / W. It is secret, because a change by a multiple of p is not seen.
 */
static inline uint32_t check_prime(uint32_t workers, uint32_t random) {
    uint64_t most = (1ull << 32) / workers, least;
    most = most < CHECK_PRIME_MOST ? most : CHECK_PRIME_MOST;
    least = most / 2;
    uint32_t n = (uint32_t)(least + random % (most - least));
    while (!check_is_prime(n)) n--;
    return n;
}

static inline void check_free(struct check *k) {
    if (!k) return;
    free(k->low);
    free(k->high);
    free(k);
}

/* Splits a coefficient into its two digits; returns false where it is too large for two digits. */
static inline bool check_digits(int64_t number, int32_t digit[2]) {
    digit[0] = (int32_t)((number + (1 << CHECK_DIGIT) / 2) & ((1 << CHECK_DIGIT) - 1)) - (1 << CHECK_DIGIT) / 2;
    int64_t left = (number - digit[0]) >> CHECK_DIGIT;
    digit[1] = (int32_t)left;
    return digit[0] >= -CHECK_DIGIT_MOST && left >= -CHECK_DIGIT_MOST && left <= CHECK_DIGIT_MOST;
}

/* Computes `offset`; `all` is the sum of the coefficients of words that are in whole vectors. */
static inline void check_find_offset(struct check *k, int64_t all) {
    k->wide = (1ull << CHECK_WIDE) % k->prime;
    k->offset = k->positive;
#ifndef CHECK_DIGITS
    (void)all;
    const uint64_t sums = (k->values & ~(CHECK_WIDTH - 1u)) <= CHECK_TOGETHER ? 1 : 4;
    k->offset += k->prime - sums * CHECK_LANES_BIAS * k->wide % k->prime;
#elif defined(CHECK_VECTORS)
    const uint64_t groups = ((k->values & ~(CHECK_WIDTH - 1u)) + CHECK_GROUP - 1) / CHECK_GROUP;
    k->offset += (uint64_t)(all * 32768) - groups * (uint64_t)CHECK_GROUP_BIAS;
#else
    (void)all;
#endif
}

/* Draws the coefficients. A number of 26 bits is taken if it is not 0 modulo p, and both it and its product with 2^16
 * modulo p have two digits. With p above 2^26 that holds for one number in p / 2^26, so 2^20 W or more are left to
 * choose from. */
static inline void check_draw_coefficients(struct check *k) {
    uint32_t drawn[16][CHECK_LANES], found = 0;
    int64_t all = 0;
    for (uint32_t i = 0; found + INART_CHECK_WORDS < k->values; i++) {
        if (i % CHECK_RECENT == 0) check_blocks_from(k->key, i / 16, CHECK_FOR_COEFFICIENTS, 0, 0, drawn);
        int64_t prime = k->prime, x = (int64_t)(drawn[i % 16][i / 16 % CHECK_LANES] >> (32 - 2 * CHECK_DIGIT)) -
                                      (1 << (2 * CHECK_DIGIT - 1));
        int64_t y = (x % prime + prime) % prime * 65536 % prime;
        int32_t a[2], b[2];
        if (y > prime / 2) y -= prime;
        if (!y || !check_digits(x, a) || !check_digits(y, b)) continue;
#ifdef CHECK_DIGITS
        k->low[found] = (uint16_t)a[0] | (uint32_t)(uint16_t)b[0] << 16;
        k->high[found] = (uint16_t)a[1] | (uint32_t)(uint16_t)b[1] << 16;
#else
        k->low[found] = (uint32_t)x;
        if (found) k->high[found - 1] = (uint32_t)x;
#endif
        found++;
        all += found <= (k->values & ~(CHECK_WIDTH - 1u)) ? x : 0;
    }
    check_find_offset(k, all);
}

/* Returns the check of an epoch's key; NULL: out of memory. */
static inline struct check *check_make(const uint8_t key[CHECK_KEY_BYTES], uint32_t workers, uint32_t values) {
    struct check *k = calloc(1, sizeof *k);
    uint32_t random[16][CHECK_LANES];
    if (!k) return NULL;
    memcpy(k->key, key, sizeof k->key);
    k->values = values;
    k->workers = workers;
    check_blocks_from(k->key, 0, CHECK_FOR_PRIME, 0, 0, random);
    k->prime = check_prime(workers, random[0][0]);
    k->narrow = (uint32_t)__builtin_clz(k->prime) + 1;
    k->reciprocal = UINT64_MAX / k->prime;
    k->positive = (CHECK_SUM_MOST / k->prime + 1) * k->prime;
    size_t bytes = (values * sizeof(uint32_t) + 63) & ~(size_t)63;
    k->low = aligned_alloc(64, bytes);
    k->high = aligned_alloc(64, bytes);
    if (!k->low || !k->high) {
        check_free(k);
        return NULL;
    }
    memset(k->low, 0, bytes);
    memset(k->high, 0, bytes);
    check_draw_coefficients(k);
    return k;
}

#endif

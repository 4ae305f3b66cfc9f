/* Bit fields of any width in network order, wide integers, and the hash algorithms of v1model.
 *
 * Header instances are kept as the raw bytes of the packet, each followed by at least 16 bytes of slack, so a field of
 * up to 64 bits may be read and written through an aligned-to-byte 8-byte window even at the end of a header.
 */
#ifndef SS_BITS_H
#define SS_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 u128;
typedef __int128 i128;

#define SS_INLINE static inline __attribute__((always_inline, unused))

#define SS_MASK64(w) ((w) >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << ((w) & 63)) - 1)
#define SS_MASK128(w) ((w) >= 128 ? ~(u128)0 : ((u128)1 << ((w) & 127)) - 1)

SS_INLINE uint16_t ss_load16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
SS_INLINE uint32_t ss_load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
SS_INLINE uint64_t ss_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
SS_INLINE void ss_store16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
SS_INLINE void ss_store32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
SS_INLINE void ss_store64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

/* Returns a field of `width` <= 64 bits that starts `bit` (0..7) bits into *p. */
SS_INLINE uint64_t ss_get64(const uint8_t *p, unsigned bit, unsigned width) {
    uint64_t v = ss_load64(p) << bit;
    if (bit + width > 64) v |= p[8] >> (8 - bit);
    return v >> (64 - width);
}
SS_INLINE void ss_put64(uint8_t *p, unsigned bit, unsigned width, uint64_t value) {
    unsigned n = (bit + width + 7) / 8, spare = n * 8 - bit - width;
    u128 window = 0, mask = (((u128)1 << width) - 1) << spare;
    for (unsigned i = 0; i < n; i++) window = window << 8 | p[i];
    window = (window & ~mask) | (((u128)value << spare) & mask);
    for (unsigned i = n; i-- > 0; window >>= 8) p[i] = (uint8_t)window;
}

/* Returns a field of `width` <= 128 bits. */
SS_INLINE u128 ss_get128(const uint8_t *p, unsigned bit, unsigned width) {
    u128 v = 0;
    unsigned high = width > 64 ? width - 64 : 0;
    if (high) {
        v = ss_get64(p, bit, high);
        bit += high;
        p += bit / 8;
        bit %= 8;
        width = 64;
    }
    return v << 64 | ss_get64(p, bit, width);
}
SS_INLINE void ss_put128(uint8_t *p, unsigned bit, unsigned width, u128 value) {
    if (width > 64) {
        ss_put64(p, bit, width - 64, (uint64_t)(value >> 64));
        bit += width - 64;
        p += bit / 8;
        bit %= 8;
        width = 64;
    }
    ss_put64(p, bit, width, (uint64_t)value);
}

/* Shifts by any amount, division that yields 0 for a zero divisor (bmv2 aborts there), and clamps. */
SS_INLINE uint32_t ss_shl32(uint32_t v, uint64_t n) { return n < 32 ? v << n : 0; }
SS_INLINE uint64_t ss_shl64(uint64_t v, uint64_t n) { return n < 64 ? v << n : 0; }
SS_INLINE u128 ss_shl128(u128 v, uint64_t n) { return n < 128 ? v << n : 0; }
SS_INLINE uint32_t ss_shr_u32(uint32_t v, uint64_t n) { return n < 32 ? v >> n : 0; }
SS_INLINE uint64_t ss_shr_u64(uint64_t v, uint64_t n) { return n < 64 ? v >> n : 0; }
SS_INLINE int64_t ss_shr_i64(int64_t v, uint64_t n) { return v >> (n < 64 ? n : 63); }
SS_INLINE u128 ss_shr_u128(u128 v, uint64_t n) { return n < 128 ? v >> n : 0; }
SS_INLINE i128 ss_shr_i128(i128 v, uint64_t n) { return v >> (n < 128 ? n : 127); }
#define SS_ARITH(kind, type)                                               \
    SS_INLINE type ss_div_##kind(type a, type b) { return b ? a / b : 0; } \
    SS_INLINE type ss_mod_##kind(type a, type b) { return b ? a % b : 0; } \
    SS_INLINE type ss_clamp_##kind(type v, type lo, type hi) { return v < lo ? lo : v > hi ? hi : v; }
SS_ARITH(u32, uint32_t)
SS_ARITH(u64, uint64_t)
SS_ARITH(i64, int64_t)
SS_ARITH(u128, u128)
SS_ARITH(i128, i128)
SS_INLINE int64_t ss_sext64(uint64_t v, unsigned width) { return (int64_t)(v << (64 - width)) >> (64 - width); }
SS_INLINE i128 ss_sext128(u128 v, unsigned width) { return (i128)(v << (128 - width)) >> (128 - width); }
#define SS_U128(high, low) ((u128)(high) << 64 | (low))

/* Wide integers: SS_LIMBS 64-bit limbs, least significant first, two's complement. Each program defines SS_LIMBS so
 * that none of its intermediate results overflows. */
#ifdef SS_LIMBS
typedef struct {
    uint64_t limb[SS_LIMBS];
} ss_wide;

SS_INLINE ss_wide ss_w_from_u64(uint64_t v) {
    ss_wide r = {{0}};
    r.limb[0] = v;
    return r;
}
SS_INLINE ss_wide ss_w_from_u128(u128 v) {
    ss_wide r = {{0}};
    r.limb[0] = (uint64_t)v;
    r.limb[1] = (uint64_t)(v >> 64);
    return r;
}
SS_INLINE ss_wide ss_w_from_i128(i128 v) {
    ss_wide r;
    for (int i = 2; i < SS_LIMBS; i++) r.limb[i] = v < 0 ? ~(uint64_t)0 : 0;
    r.limb[0] = (uint64_t)(u128)v;
    r.limb[1] = (uint64_t)((u128)v >> 64);
    return r;
}
SS_INLINE u128 ss_w_low(ss_wide a) { return (u128)a.limb[1] << 64 | a.limb[0]; }
SS_INLINE bool ss_w_negative(ss_wide a) { return a.limb[SS_LIMBS - 1] >> 63; }
static inline __attribute__((unused)) ss_wide ss_w_add(ss_wide a, ss_wide b) {
    u128 carry = 0;
    for (int i = 0; i < SS_LIMBS; i++) {
        carry += (u128)a.limb[i] + b.limb[i];
        a.limb[i] = (uint64_t)carry;
        carry >>= 64;
    }
    return a;
}
static inline __attribute__((unused)) ss_wide ss_w_not(ss_wide a) {
    for (int i = 0; i < SS_LIMBS; i++) a.limb[i] = ~a.limb[i];
    return a;
}
SS_INLINE ss_wide ss_w_sub(ss_wide a, ss_wide b) { return ss_w_add(ss_w_add(a, ss_w_not(b)), ss_w_from_u64(1)); }
static inline __attribute__((unused)) ss_wide ss_w_mul(ss_wide a, ss_wide b) {
    ss_wide r = {{0}};
    for (int i = 0; i < SS_LIMBS; i++) {
        u128 carry = 0;
        for (int j = 0; i + j < SS_LIMBS; j++) {
            carry += (u128)a.limb[i] * b.limb[j] + r.limb[i + j];
            r.limb[i + j] = (uint64_t)carry;
            carry >>= 64;
        }
    }
    return r;
}
#define SS_W_BITWISE(name, op)                                                        \
    static inline __attribute__((unused)) ss_wide ss_w_##name(ss_wide a, ss_wide b) { \
        for (int i = 0; i < SS_LIMBS; i++) a.limb[i] = a.limb[i] op b.limb[i];        \
        return a;                                                                     \
    }
SS_W_BITWISE(and, &)
SS_W_BITWISE(or, |)
SS_W_BITWISE(xor, ^)
static inline __attribute__((unused)) ss_wide ss_w_shl(ss_wide a, uint64_t n) {
    ss_wide r = {{0}};
    if (n >= 64 * SS_LIMBS) return r;
    int limbs = (int)(n / 64), bits = (int)(n % 64);
    for (int i = SS_LIMBS - 1; i >= limbs; i--) {
        r.limb[i] = a.limb[i - limbs] << bits;
        if (bits && i > limbs) r.limb[i] |= a.limb[i - limbs - 1] >> (64 - bits);
    }
    return r;
}
static inline __attribute__((unused)) ss_wide ss_w_shr(ss_wide a, uint64_t n) { /* arithmetic */
    uint64_t fill = ss_w_negative(a) ? ~(uint64_t)0 : 0;
    ss_wide r;
    if (n >= 64 * SS_LIMBS) n = 64 * SS_LIMBS - 1;
    int limbs = (int)(n / 64), bits = (int)(n % 64);
    for (int i = 0; i < SS_LIMBS; i++) {
        uint64_t low = i + limbs < SS_LIMBS ? a.limb[i + limbs] : fill;
        uint64_t high = i + limbs + 1 < SS_LIMBS ? a.limb[i + limbs + 1] : fill;
        r.limb[i] = bits ? low >> bits | high << (64 - bits) : low;
    }
    return r;
}
static inline __attribute__((unused)) int ss_w_cmp(ss_wide a, ss_wide b) { /* signed */
    if (ss_w_negative(a) != ss_w_negative(b)) return ss_w_negative(a) ? -1 : 1;
    for (int i = SS_LIMBS - 1; i >= 0; i--)
        if (a.limb[i] != b.limb[i]) return a.limb[i] < b.limb[i] ? -1 : 1;
    return 0;
}
static inline __attribute__((unused)) ss_wide ss_w_clamp(ss_wide v, ss_wide lo, ss_wide hi) {
    return ss_w_cmp(v, lo) < 0 ? lo : ss_w_cmp(v, hi) > 0 ? hi : v;
}
static inline __attribute__((unused)) ss_wide ss_w_get(const uint8_t *p, unsigned bit, unsigned width) {
    ss_wide r = {{0}};
    unsigned end = bit + width;
    for (unsigned i = 0; width > 0; i++) {
        unsigned n = width < 64 ? width : 64;
        end -= n;
        r.limb[i] = ss_get64(p + end / 8, end % 8, n);
        width -= n;
    }
    return r;
}
static inline __attribute__((unused)) void ss_w_put(uint8_t *p, unsigned bit, unsigned width, ss_wide v) {
    unsigned end = bit + width;
    for (unsigned i = 0; width > 0; i++) {
        unsigned n = width < 64 ? width : 64;
        end -= n;
        ss_put64(p + end / 8, end % 8, n, v.limb[i]);
        width -= n;
    }
}
/* Sign-extends from `width` bits; with the unsigned variant below it reduces a value modulo 2^width. */
static inline __attribute__((unused)) ss_wide ss_w_zext(ss_wide a, unsigned width) {
    for (unsigned i = 0; i < SS_LIMBS; i++) {
        if (width <= 64 * i)
            a.limb[i] = 0;
        else if (width < 64 * (i + 1))
            a.limb[i] &= SS_MASK64(width - 64 * i);
    }
    return a;
}
static inline __attribute__((unused)) ss_wide ss_w_sext(ss_wide a, unsigned width) {
    a = ss_w_zext(a, width);
    if (a.limb[(width - 1) / 64] >> ((width - 1) % 64) & 1) {
        for (unsigned i = 0; i < SS_LIMBS; i++) {
            if (width <= 64 * i)
                a.limb[i] = ~(uint64_t)0;
            else if (width < 64 * (i + 1))
                a.limb[i] |= ~SS_MASK64(width - 64 * i);
        }
    }
    return a;
}
#endif

/* Appends `width` bits at bit position `at` of a zeroed buffer. */
static inline __attribute__((unused)) void ss_append_bits(uint8_t *buf, unsigned at, const uint8_t *src, unsigned bit,
                                                          unsigned width) {
    while (width > 0) {
        unsigned n = width < 56 ? width : 56;
        ss_put64(buf + at / 8, at % 8, n, ss_get64(src + bit / 8, bit % 8, n));
        at += n;
        bit += n;
        width -= n;
    }
}

/* Computes the checksum of RFC 1071 over bytes; returns it in host order. */
static inline __attribute__((unused)) uint16_t ss_csum16(const uint8_t *p, uint32_t len) {
    uint64_t sum = 0;
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t v = ss_load64(p);
        sum += (v >> 32) + (v & 0xffffffffu);
    }
    for (; len >= 2; p += 2, len -= 2) sum += ss_load16(p);
    if (len) sum += (uint32_t)p[0] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}
static inline __attribute__((unused)) uint16_t ss_xor16(const uint8_t *p, uint32_t len) {
    uint16_t x = 0;
    for (; len >= 2; p += 2, len -= 2) x ^= ss_load16(p);
    if (len) x ^= (uint16_t)(p[0] << 8);
    return x;
}
/* Returns the first 8 bytes, or all of a shorter input, as a number. */
static inline __attribute__((unused)) uint64_t ss_identity(const uint8_t *p, uint32_t len) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < 8 && i < len; i++) v = v << 8 | p[i];
    return v;
}

/* Returns an index into a header stack of `depth` elements, limited to the last one. */
SS_INLINE unsigned ss_bound(uint64_t index, unsigned depth) { return index < depth ? (unsigned)index : depth - 1; }

static inline __attribute__((unused)) void ss_stack_push(uint8_t *h, uint8_t *valid, uint8_t *next, unsigned size,
                                                         unsigned depth, unsigned n) {
    memmove(h + n * size, h, (depth - n) * size);
    memmove(valid + n, valid, depth - n);
    memset(h, 0, n * size);
    memset(valid, 0, n);
    *next = (uint8_t)(*next + n < depth ? *next + n : depth);
}
static inline __attribute__((unused)) void ss_stack_pop(uint8_t *h, uint8_t *valid, uint8_t *next, unsigned size,
                                                        unsigned depth, unsigned n) {
    memmove(h, h + n * size, (depth - n) * size);
    memmove(valid, valid + n, depth - n);
    memset(valid + depth - n, 0, n);
    *next = (uint8_t)(*next > n ? *next - n : 0);
}

#endif

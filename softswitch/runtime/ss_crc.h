/* Cyclic redundancy checks of v1model's hashes: eight bytes at a time, by tables ("slicing by 8", Kounavis and Berry,
 * "A Systematic Approach to Building High Performance Software-based CRC Generators", 2005).
 *
 * table[k][b] is the effect of byte b on the check when k more bytes of zeros follow it. The check of eight bytes is
 * the exclusive or of eight such entries, which do not depend on each other. Tables are made when a program is loaded.
 */
#ifndef SS_CRC_H
#define SS_CRC_H

#include <stdbool.h>
#include <stdint.h>

#define SS_CRC_SLICES 8

/* A check whose parameters the host chooses (crc.c). Its register has `width` bits: at the low end, reversed, where the
 * data are reflected, and at the high end otherwise. */
struct ss_crc {
    uint32_t table[SS_CRC_SLICES][256];
    uint32_t initial, final_xor;
    uint32_t width; /* 16 or 32 */
    bool reflect_data, reflect_remainder;
};

/* Tables of the checks that process the lowest bit first: 16 and 32 bits differ only in the polynomial. */
static uint32_t ss_crc16_table[SS_CRC_SLICES][256], ss_crc32_table[SS_CRC_SLICES][256];
/* Table of the check that processes the highest bit first. */
static uint16_t ss_crc_ccitt_table[SS_CRC_SLICES][256];

static void ss_crc_reflected_table(uint32_t table[SS_CRC_SLICES][256], uint32_t polynomial) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        table[0][byte] = crc;
    }
    for (int k = 1; k < SS_CRC_SLICES; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = table[k - 1][byte];
            table[k][byte] = before >> 8 ^ table[0][before & 0xff];
        }
}

static __attribute__((constructor)) void ss_crc_tables(void) {
    ss_crc_reflected_table(ss_crc16_table, 0xa001);
    ss_crc_reflected_table(ss_crc32_table, 0xedb88320u);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint16_t crc = (uint16_t)(byte << 8);
        for (int i = 0; i < 8; i++) crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0));
        ss_crc_ccitt_table[0][byte] = crc;
    }
    for (int k = 1; k < SS_CRC_SLICES; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint16_t before = ss_crc_ccitt_table[k - 1][byte];
            ss_crc_ccitt_table[k][byte] = (uint16_t)(before << 8 ^ ss_crc_ccitt_table[0][before >> 8]);
        }
}

static inline __attribute__((unused)) uint32_t ss_crc_reflected(const uint32_t table[SS_CRC_SLICES][256], uint32_t crc,
                                                                const uint8_t *p, uint32_t len) {
    for (; len >= 8; p += 8, len -= 8)
        crc = table[7][(crc ^ p[0]) & 0xff] ^ table[6][(crc >> 8 ^ p[1]) & 0xff] ^ table[5][(crc >> 16 ^ p[2]) & 0xff] ^
              table[4][(crc >> 24 ^ p[3]) & 0xff] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    while (len--) crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xff];
    return crc;
}

static inline __attribute__((unused)) uint16_t ss_crc16(const uint8_t *p, uint32_t len) { /* ARC */
    return (uint16_t)ss_crc_reflected(ss_crc16_table, 0, p, len);
}

static inline __attribute__((unused)) uint32_t ss_crc32(const uint8_t *p, uint32_t len) { /* IEEE 802.3 */
    return ~ss_crc_reflected(ss_crc32_table, 0xffffffffu, p, len);
}

static inline __attribute__((unused)) uint16_t ss_crc_ccitt(const uint8_t *p, uint32_t len) { /* CCITT-FALSE */
    const uint16_t(*table)[256] = (const uint16_t(*)[256])ss_crc_ccitt_table;
    uint16_t crc = 0xffff;
    for (; len >= 8; p += 8, len -= 8)
        crc = table[7][(crc >> 8 ^ p[0]) & 0xff] ^ table[6][(crc ^ p[1]) & 0xff] ^ table[5][p[2]] ^ table[4][p[3]] ^
              table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    while (len--) crc = (uint16_t)(crc << 8 ^ table[0][crc >> 8 ^ *p++]);
    return crc;
}

static inline __attribute__((unused)) uint32_t ss_crc_reverse(uint32_t value, uint32_t width) {
    uint32_t reversed = 0;
    for (uint32_t i = 0; i < width; i++) reversed |= (value >> i & 1) << (width - 1 - i);
    return reversed;
}

static inline __attribute__((unused)) void ss_crc_make(struct ss_crc *c, uint32_t width, uint32_t polynomial,
                                                       uint32_t initial, uint32_t final_xor, bool reflect_data,
                                                       bool reflect_remainder) {
    uint32_t shift = 32 - width, top = polynomial << shift;
    c->width = width;
    c->final_xor = final_xor;
    c->reflect_data = reflect_data;
    c->reflect_remainder = reflect_remainder;
    c->initial = reflect_data ? ss_crc_reverse(initial, width) : initial << shift;
    if (reflect_data) {
        ss_crc_reflected_table(c->table, ss_crc_reverse(polynomial, width));
        return;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte << 24;
        for (int i = 0; i < 8; i++) crc = crc << 1 ^ (crc >> 31 ? top : 0);
        c->table[0][byte] = crc;
    }
    for (int k = 1; k < SS_CRC_SLICES; k++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = c->table[k - 1][byte];
            c->table[k][byte] = before << 8 ^ c->table[0][before >> 24];
        }
}

static inline __attribute__((unused)) uint32_t ss_crc_custom(const struct ss_crc *c, const uint8_t *p, uint32_t len) {
    const uint32_t(*table)[256] = (const uint32_t(*)[256])c->table;
    uint32_t crc = c->initial;
    if (c->reflect_data) {
        crc = ss_crc_reflected(table, crc, p, len);
    } else {
        for (; len >= 8; p += 8, len -= 8)
            crc = table[7][crc >> 24 ^ p[0]] ^ table[6][(crc >> 16 ^ p[1]) & 0xff] ^
                  table[5][(crc >> 8 ^ p[2]) & 0xff] ^ table[4][(crc ^ p[3]) & 0xff] ^ table[3][p[4]] ^ table[2][p[5]] ^
                  table[1][p[6]] ^ table[0][p[7]];
        while (len--) crc = crc << 8 ^ table[0][crc >> 24 ^ *p++];
        crc >>= 32 - c->width;
    }
    if (c->reflect_data != c->reflect_remainder) crc = ss_crc_reverse(crc, c->width);
    return crc ^ c->final_xor;
}

#endif

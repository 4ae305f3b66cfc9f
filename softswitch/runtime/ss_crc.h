/* Cyclic redundancy checks of v1model's hashes: eight bytes at a time, by tables ("slicing by 8", Kounavis and Berry,
 * "A Systematic Approach to Building High Performance Software-based CRC Generators", 2005).
 *
 * table[k][b] is the effect of byte b on the check when k more bytes of zeros follow it. The check of eight bytes is
 * the exclusive or of eight such entries, which do not depend on each other. Tables are made when a program is loaded.
 */
#ifndef SS_CRC_H
#define SS_CRC_H

#include <stdint.h>

#define SS_CRC_SLICES 8

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

#endif

/* One packet as UDP carries it: the aggregation header and the values, big-endian (p4src/protocol.json). */
#ifndef INART_PACKET_H
#define INART_PACKET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "protocol.h"

#define INART_MIN_VALUES 8
#define INART_MAX_VALUES 2048

/* The number of exponents in a packet, which has each of them twice, in different words (check.h, check_maximum_right).
 */
#define INART_EXPONENT_WORDS(values) (INART_DATA_VALUES(values) / 2)

/* ECN, RFC 3168: the lowest bits of IPv4's type of service. Packets leave as ones that switches may mark. */
#define INART_ECN_BITS 3
#define INART_ECN_CAPABLE 2
#define INART_ECN_CONGESTED 3

/* The offset of a field in UDP's payload, given its offset in the frame. */
#define INART_AT(offset) ((offset) - INART_OFFSET_HEADER)

/* A chunk that the root asks for is sent in another attempt: with an epoch of its own, which takes the chunk's slots
 * over in all switches, so that lost contributions are added up again. A contribution is the same in every attempt, and
 * the root takes it from any. */
#define INART_ATTEMPT_SHIFT 24
#define INART_ATTEMPTS 256

static inline uint32_t inart_attempt_epoch(uint32_t epoch, uint32_t attempt) {
    return epoch ^ attempt << INART_ATTEMPT_SHIFT;
}

static inline int inart_same_epoch(uint32_t wire, uint32_t epoch) {
    return !((wire ^ epoch) & ((1u << INART_ATTEMPT_SHIFT) - 1));
}

static inline uint32_t inart_attempt(uint32_t wire, uint32_t epoch) { return (wire ^ epoch) >> INART_ATTEMPT_SHIFT; }

/* The header's fields in host order. */
struct inart_header {
    uint8_t flags;
    uint16_t job;
    uint32_t label, epoch, sequence;
    uint64_t bitmap;
};

static inline uint16_t inart_get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t inart_get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t inart_get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline void inart_put16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void inart_put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void inart_put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the agents' C engine is for little-endian machines");

/* Reads the header; returns 0, or -1 when the packet is malformed: not `packet_bytes` long, or of another version. All
 * bits of the flags have a meaning. */
static inline int inart_parse(const uint8_t *packet, size_t length, size_t packet_bytes, struct inart_header *h) {
    if (length != packet_bytes || packet[INART_AT(INART_OFFSET_VERSION)] != INART_VERSION) return -1;
    h->flags = packet[INART_AT(INART_OFFSET_FLAGS)];
    h->job = inart_get16(packet + INART_AT(INART_OFFSET_JOB));
    h->label = inart_get32(packet + INART_AT(INART_OFFSET_LABEL));
    h->epoch = inart_get32(packet + INART_AT(INART_OFFSET_EPOCH));
    h->sequence = inart_get32(packet + INART_AT(INART_OFFSET_SEQUENCE));
    h->bitmap = inart_get64(packet + INART_AT(INART_OFFSET_BITMAP));
    return 0;
}

static inline void inart_write_header(uint8_t *packet, const struct inart_header *h) {
    packet[INART_AT(INART_OFFSET_VERSION)] = INART_VERSION;
    packet[INART_AT(INART_OFFSET_FLAGS)] = h->flags;
    inart_put16(packet + INART_AT(INART_OFFSET_JOB), h->job);
    inart_put32(packet + INART_AT(INART_OFFSET_LABEL), h->label);
    inart_put32(packet + INART_AT(INART_OFFSET_EPOCH), h->epoch);
    inart_put32(packet + INART_AT(INART_OFFSET_SEQUENCE), h->sequence);
    inart_put64(packet + INART_AT(INART_OFFSET_BITMAP), h->bitmap);
}

/* Returns the packet's values, which are 4-byte aligned wherever the packet is, because the sizes of all fields before
 * them are. */
static inline int32_t *inart_values(uint8_t *packet) { return (int32_t *)(packet + INART_AT(INART_OFFSET_VALUES)); }

#endif

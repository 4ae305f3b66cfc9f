/* Finishes what senders on this machine leave to the network card that is not there.
 *
 * The kernel hands TCP frames over with a checksum to fill in, and up to 64 KiB long to be cut into segments. A P4
 * program expects what would be on a wire, so both are done here when such a frame arrives.
 */
#include <netinet/in.h>

#include "runtime.h"

#define GSO_TCPV4 1
#define GSO_TCPV6 4
#define GSO_UDP_L4 5
#define GSO_ECN 0x80

static uint16_t load16(const uint8_t *p) {
    return (uint16_t)(p[0] << 8 | p[1]);
}
static void store16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static uint32_t load32(const uint8_t *p) {
    return (uint32_t)load16(p) << 16 | load16(p + 2);
}
static void store32(uint8_t *p, uint32_t v) {
    store16(p, v >> 16);
    store16(p + 2, v & 0xffff);
}

static uint64_t sum16(const uint8_t *p, uint32_t len, uint64_t sum) {
    for (; len >= 4; p += 4, len -= 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        sum += __builtin_bswap32(v);
    }
    if (len >= 2) {
        sum += load16(p);
        p += 2;
        len -= 2;
    }
    if (len) sum += (uint32_t)p[0] << 8;
    return sum;
}
static uint16_t fold(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* The field at start + offset holds the pseudo-header's sum; replace it by the checksum of all from `start`. */
bool ss_complete_checksum(uint8_t *data, uint32_t len, uint16_t start, uint16_t offset) {
    if ((uint32_t)start + offset + 2 > len || start >= len) return false;
    uint16_t sum = fold(sum16(data + start, len - start, 0));
    store16(data + start + offset, sum ? sum : 0xffff);
    return true;
}

static uint64_t pseudo_header(const uint8_t *ip, bool v6, uint8_t protocol, uint32_t len) {
    uint64_t sum = v6 ? sum16(ip + 8, 32, 0) : sum16(ip + 12, 8, 0);
    return sum + protocol + len;
}

/* Cut a frame into segments of vnet->gso_size payload bytes each; false if it is not what it claims to be. */
bool ss_segment(const uint8_t *data, uint32_t len, const struct ss_vnet *vnet, struct ss_list *out) {
    uint8_t type = vnet->gso_type & (uint8_t)~GSO_ECN;
    bool udp = type == GSO_UDP_L4;
    if ((type != GSO_TCPV4 && type != GSO_TCPV6 && !udp) || vnet->gso_size == 0) return false;
    uint32_t l3 = 14;
    while (l3 + 4 <= len && (load16(data + l3 - 2) == 0x8100 || load16(data + l3 - 2) == 0x88a8)) l3 += 4;
    uint32_t l4 = vnet->csum_start;
    if (l4 < l3 + 20 || l4 + (udp ? 8u : 20u) > len) return false;
    bool v6 = data[l3] >> 4 == 6;
    if (v6 ? l4 < l3 + 40 : (data[l3] >> 4 != 4 || l3 + 4u * (data[l3] & 15) != l4)) return false;
    uint32_t header = l4 + (udp ? 8u : 4u * (data[l4 + 12] >> 4));
    if (header > len || (!udp && header < l4 + 20)) return false;
    uint8_t protocol = udp ? IPPROTO_UDP : IPPROTO_TCP;
    uint32_t sequence = udp ? 0 : load32(data + l4 + 4);
    uint16_t id = v6 ? 0 : load16(data + l3 + 4);
    uint32_t count = 0;
    for (uint32_t at = header; at < len || count == 0; at += vnet->gso_size, count++) {
        uint32_t n = len - at < vnet->gso_size ? len - at : vnet->gso_size;
        bool last = at + n >= len;
        struct ss_buf *buf = ss_buf_new(header + n);
        if (!buf) return false;
        uint8_t *ip = buf->data + l3, *tp = buf->data + l4;
        memcpy(buf->data, data, header);
        memcpy(buf->data + header, data + at, n);
        uint32_t l4_len = header - l4 + n;
        if (v6) {
            store16(ip + 4, header - l3 - 40 + n);
        } else {
            store16(ip + 2, header - l3 + n);
            store16(ip + 4, (uint16_t)(id + count));
            store16(ip + 10, 0);
            store16(ip + 10, fold(sum16(ip, l4 - l3, 0)));
        }
        uint32_t checksum = udp ? 6 : 16;
        if (udp) {
            store16(tp + 4, l4_len);
        } else {
            store32(tp + 4, sequence + (at - header));
            if (!last) tp[13] &= (uint8_t)~0x09; /* FIN and PSH belong to the last */
            if (count) tp[13] &= 0x7f;           /* CWR to the first */
        }
        store16(tp + checksum, 0);
        uint16_t sum = fold(sum16(tp, l4_len, pseudo_header(ip, v6, protocol, l4_len)));
        store16(tp + checksum, udp && sum == 0 ? 0xffff : sum);
        ss_push(out, buf);
    }
    return true;
}

/* Super-frames: many packets of one flow as one frame, which the kernel passes on instead of cutting it.
 *
 * The kernel delivers frames with a checksum to fill in, and up to 64 KiB long to be cut into segments (TCP, and UDP by
 * UDP_SEGMENT or UDP_GRO). A P4 program expects frames as they are on a wire, so both are done here when such a frame
 * arrives. In the other direction, datagrams of a UDP flow, or segments of a TCP connection, that leave one after the
 * other are sent as one frame. */
#include <netinet/in.h>

#include "runtime.h"

#define GSO_TCPV4 1
#define GSO_TCPV6 4
#define GSO_UDP_L4 5
#define GSO_ECN 0x80
#define NEEDS_CSUM 1
#define IP 14 /* offsets in an Ethernet frame with IPv4 without options */
#define L4 34

static uint16_t load16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static void store16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static uint32_t load32(const uint8_t *p) { return (uint32_t)load16(p) << 16 | load16(p + 2); }
static void store32(uint8_t *p, uint32_t v) {
    store16(p, v >> 16);
    store16(p + 2, v & 0xffff);
}

static uint32_t carry(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)sum;
}

/* Returns the ones' complement sum of 16-bit big-endian numbers. It does not depend on the byte order, so it is
 * computed in the machine's, 32 bits at a time in a loop that compilers vectorise, and swapped at the end. */
static uint32_t sum16(const uint8_t *p, uint32_t len) {
    uint64_t sum = 0;
    uint32_t words = len / 4, tail = 0;
    for (uint32_t i = 0; i < words; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * (size_t)i, 4);
        sum += v;
    }
    memcpy(&tail, p + 4 * (size_t)words, len & 3);
    sum = carry(sum + tail);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    sum = __builtin_bswap16((uint16_t)sum);
#endif
    return (uint32_t)sum;
}
static uint16_t fold(uint64_t sum) { return (uint16_t)~carry(sum); }

/* Replaces the pseudo-header's sum in the field at start + offset by the checksum of everything from `start` on. */
bool ss_complete_checksum(uint8_t *data, uint32_t len, uint16_t start, uint16_t offset) {
    if ((uint32_t)start + offset + 2 > len || start >= len) return false;
    uint16_t sum = fold(sum16(data + start, len - start));
    store16(data + start + offset, sum ? sum : 0xffff);
    return true;
}

static uint64_t pseudo_header(const uint8_t *ip, bool v6, uint8_t protocol, uint32_t len) {
    return (v6 ? sum16(ip + 8, 32) : sum16(ip + 12, 8)) + (uint64_t)protocol + len;
}

/* ---- what comes in ---- */

struct cut {
    uint32_t l3, l4, header, sequence;
    uint16_t id;
    bool v6, udp, sums; /* whether UDP datagrams have checksums */
    uint64_t ip_sum;    /* sum over an IPv4 header without length, identification and checksum */
    uint64_t addresses; /* the part of the pseudo-header's sum that all segments share */
};

static bool cut_init(struct cut *c, uint8_t *data, uint32_t len, const struct ss_vnet *vnet) {
    uint8_t type = vnet->gso_type & (uint8_t)~GSO_ECN;
    c->udp = type == GSO_UDP_L4;
    if ((type != GSO_TCPV4 && type != GSO_TCPV6 && !c->udp) || vnet->gso_size == 0) return false;
    c->l3 = 14;
    while (c->l3 + 4 <= len && (load16(data + c->l3 - 2) == 0x8100 || load16(data + c->l3 - 2) == 0x88a8)) c->l3 += 4;
    c->l4 = vnet->csum_start;
    if (c->l4 < c->l3 + 20 || c->l4 + (c->udp ? 8u : 20u) > len) return false;
    uint8_t *ip = data + c->l3, *tp = data + c->l4;
    c->v6 = ip[0] >> 4 == 6;
    if (c->v6 ? c->l4 < c->l3 + 40 : (ip[0] >> 4 != 4 || c->l3 + 4u * (ip[0] & 15) != c->l4)) return false;
    c->header = c->l4 + (c->udp ? 8u : 4u * (tp[12] >> 4));
    if (c->header > len || (!c->udp && c->header < c->l4 + 20)) return false;
    c->sequence = c->udp ? 0 : load32(tp + 4);
    c->id = c->v6 ? 0 : load16(ip + 4);
    /* a checksum of 0 means that the sender wants none; one to be completed is never 0 */
    c->sums = !c->udp || load16(tp + 6) != 0;
    if (!c->v6) {
        memset(ip + 2, 0, 4);
        store16(ip + 10, 0);
        c->ip_sum = sum16(ip, c->l4 - c->l3);
    }
    c->addresses = pseudo_header(ip, c->v6, c->udp ? IPPROTO_UDP : IPPROTO_TCP, 0);
    store16(tp + (c->udp ? 6 : 16), 0);
    return true;
}

/* Writes the headers of segment `number`, whose `n` bytes of payload are `at` bytes behind those of the first. */
static void finish(const struct cut *c, uint8_t *frame, uint32_t number, uint32_t at, uint32_t n, bool last) {
    uint8_t *ip = frame + c->l3, *tp = frame + c->l4;
    uint32_t l4_len = c->header - c->l4 + n;
    if (c->v6) {
        store16(ip + 4, c->header - c->l3 - 40 + n);
    } else {
        uint32_t length = c->header - c->l3 + n;
        uint16_t id = (uint16_t)(c->id + number);
        store16(ip + 2, length);
        store16(ip + 4, id);
        store16(ip + 10, fold(c->ip_sum + length + id));
    }
    if (c->udp) {
        store16(tp + 4, l4_len);
        if (!c->sums) return;
        uint16_t sum = fold(c->addresses + l4_len + sum16(tp, l4_len));
        store16(tp + 6, sum ? sum : 0xffff);
        return;
    }
    store32(tp + 4, c->sequence + at);
    if (!last) tp[13] &= (uint8_t)~0x09; /* FIN and PSH belong to the last segment */
    if (number) tp[13] &= 0x7f;          /* CWR belongs to the first segment */
    store16(tp + 16, fold(c->addresses + l4_len + sum16(tp, l4_len)));
}

/* Cuts a frame into segments of vnet->gso_size payload bytes each; returns false if it is not what it claims to be. The
 * frame's first `first` bytes are in `buf`, which is used up, the others at `more`. */
bool ss_segment(struct ss_buf *buf, uint32_t first, const uint8_t *more, const struct ss_vnet *vnet,
                struct ss_list *out) {
    struct cut c;
    uint32_t len = buf->len, size = vnet->gso_size;
    if (first > len) first = len;
    if (!cut_init(&c, buf->data, first, vnet)) {
        ss_buf_free(buf);
        return false;
    }
    struct ss_list rest = {0};
    struct ss_buf *head = buf;
    uint32_t number = 0;
    for (uint32_t at = c.header; at < len || number == 0; at += size, number++) {
        uint32_t n = len - at < size ? len - at : size;
        if (number == 0 && c.header + n <= first) continue; /* it stays where it is */
        struct ss_buf *segment = ss_buf_new(c.header + n);
        if (!segment) {
            ss_list_free(&rest);
            if (head != buf) ss_buf_free(head);
            ss_buf_free(buf);
            return false;
        }
        memcpy(segment->data, buf->data, c.header);
        uint32_t here = at >= first ? 0 : first - at < n ? first - at : n;
        memcpy(segment->data + c.header, buf->data + at, here);
        if (here < n) memcpy(segment->data + c.header + here, more + (at + here - first), n - here);
        if (number == 0) {
            head = segment;
            continue;
        }
        finish(&c, segment->data, number, at - c.header, n, at + n >= len);
        ss_push(&rest, segment);
    }
    uint32_t n = len - c.header < size ? len - c.header : size;
    finish(&c, head->data, 0, 0, n, number == 1);
    head->len = c.header + n;
    if (head != buf) ss_buf_free(buf);
    ss_push(out, head);
    if (rest.head) {
        out->tail->next = rest.head;
        out->tail = rest.tail;
        out->n += rest.n;
    }
    return true;
}

/* ---- what goes out ---- */

enum { FIN = 1, SYN = 2, RST = 4, PSH = 8, URG = 32, CWR = 128 };

/* Returns how many bytes of headers a frame has that may be part of a super-frame: one whole UDP datagram, or TCP
 * segment with data, over IPv4, and correct except perhaps for UDP's or TCP's checksum. 0: it is none. */
static uint32_t headers_of(const struct ss_buf *buf) {
    const uint8_t *f = buf->data;
    if (buf->len <= SS_UDP_HEADERS || load16(f + 12) != 0x0800 || f[IP] != 0x45 || (load16(f + IP + 6) & 0x3fff) ||
        load16(f + IP + 2) != buf->len - IP ||
        load16(f + IP + 10) != fold((uint64_t)sum16(f + IP, 20) + (uint16_t)~load16(f + IP + 10)))
        return 0;
    if (f[IP + 9] == IPPROTO_UDP) return load16(f + L4 + 4) == buf->len - L4 ? SS_UDP_HEADERS : 0;
    if (f[IP + 9] != IPPROTO_TCP || buf->len <= L4 + 20 || f[L4 + 13] & (SYN | RST | URG)) return 0;
    uint32_t headers = L4 + 4u * (f[L4 + 12] >> 4);
    return headers >= L4 + 20 && headers < buf->len ? headers : 0;
}

static bool is_tcp(const uint8_t *frame) { return frame[IP + 9] == IPPROTO_TCP; }
static uint32_t checksum_at(const uint8_t *frame) { return is_tcp(frame) ? L4 + 16 : L4 + 6; }

/* Returns whether the checksum is the one that the segmentation of a super-frame would write; UDP's 0 (none) is
 * acceptable, since the correct checksum may replace it. */
static bool checksum_right(const struct ss_buf *buf) {
    const uint8_t *f = buf->data;
    uint16_t given = load16(f + checksum_at(f));
    if (given == 0 && !is_tcp(f)) return true;
    uint32_t len = buf->len - L4;
    uint16_t sum = fold(pseudo_header(f + IP, false, f[IP + 9], len) + sum16(f + L4, len) + (uint16_t)~given);
    return given == (sum || is_tcp(f) ? sum : 0xffff);
}

/* Returns whether the checksum is right; replicas share their bytes and leave by several ports, so it is cached. */
static bool checksum_fits(struct ss_buf *buf) {
    struct ss_buf *bytes = buf->origin ? buf->origin : buf;
    uint8_t known = atomic_load_explicit(&bytes->checksum, memory_order_relaxed);
    if (known == SS_CHECKSUM_UNKNOWN) {
        known = checksum_right(buf) ? SS_CHECKSUM_FITS : SS_CHECKSUM_WRONG;
        atomic_store_explicit(&bytes->checksum, known, memory_order_relaxed);
    }
    return known == SS_CHECKSUM_FITS;
}

/* Returns whether frame `b` is the one that comes after a run that begins with frame `a`. */
static bool follows(const uint8_t *a, const uint8_t *b, const struct ss_run *run) {
    if (memcmp(a, b, IP + 2) || load16(b + IP + 4) != (uint16_t)(load16(a + IP + 4) + run->frames) ||
        memcmp(a + IP + 6, b + IP + 6, 4) || memcmp(a + IP + 12, b + IP + 12, 12))
        return false;
    if (!is_tcp(a)) return true;
    const uint8_t *p = a + L4, *q = b + L4;
    return load32(q + 4) == load32(p + 4) + (uint32_t)run->payload && memcmp(p + 8, q + 8, 5) == 0 &&
           (p[13] & ~CWR) == (q[13] & ~(FIN | PSH)) && memcmp(p + 14, q + 14, 2) == 0 &&
           memcmp(p + 18, q + 18, run->headers - L4 - 18) == 0;
}

/* Finds how many of the frames, from the first on, may leave as one super-frame, with segments of at most `most` bytes
 * (headers from IP on included): its segmentation gives exactly these frames, but for UDP checksums of 0. */
void ss_run_find(struct ss_buf *const *frames, uint32_t n, uint32_t most, struct ss_run *run) {
    struct ss_buf *first = frames[0];
    *run = (struct ss_run){.frames = 1};
    if (n < 2 || first->len > most + IP || !(run->headers = headers_of(first))) return;
    run->payload = run->size = first->len - run->headers;
    bool tcp = is_tcp(first->data);
    if (tcp && first->data[L4 + 13] & (FIN | PSH)) return; /* these belong to the last segment */
    for (uint32_t i = 1; i < n && i < SS_MAX_SEGMENTS; i++) {
        struct ss_buf *next = frames[i];
        if (next->len > first->len || headers_of(next) != run->headers || !follows(first->data, next->data, run))
            return;
        uint32_t payload = next->len - run->headers;
        if (run->payload + payload > UINT16_MAX - run->headers) return;
        if (!checksum_fits(next) || (i == 1 && !checksum_fits(first))) return;
        run->frames++;
        run->payload += payload;
        if (tcp) run->last_flags = next->data[L4 + 13] & (FIN | PSH);
        if (payload < run->size || run->last_flags) return;
    }
}

/* Writes the headers of the super-frame, and the description of it for the kernel. */
void ss_run_headers(const struct ss_buf *first, const struct ss_run *run, struct ss_vnet *vnet, uint8_t *out) {
    uint32_t l4_len = run->headers - L4 + (uint32_t)run->payload;
    memcpy(out, first->data, run->headers);
    bool tcp = is_tcp(out);
    *vnet = (struct ss_vnet){
        .flags = NEEDS_CSUM,
        .gso_type = tcp ? GSO_TCPV4 : GSO_UDP_L4,
        .hdr_len = (uint16_t)run->headers,
        .gso_size = (uint16_t)run->size,
        .csum_start = L4,
        .csum_offset = (uint16_t)(checksum_at(out) - L4),
    };
    store16(out + IP + 2, 20 + l4_len);
    store16(out + IP + 10, 0);
    store16(out + IP + 10, fold(sum16(out + IP, 20)));
    if (tcp) {
        if (out[L4 + 13] & CWR) vnet->gso_type |= GSO_ECN;
        out[L4 + 13] |= run->last_flags;
    } else {
        store16(out + L4 + 4, l4_len);
    }
    store16(out + checksum_at(out), carry(pseudo_header(out + IP, false, out[IP + 9], l4_len)));
}

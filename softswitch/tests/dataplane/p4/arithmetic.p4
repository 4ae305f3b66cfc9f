// Every arithmetic operation of P4 at many widths, for comparison with bmv2.
//
// A frame is one byte that names a width, then the operands a and b of that width and an 8-bit amount n, padded to
// whole bytes. The answer is sent back to where it came from: the same, followed by the results.
#include <core.p4>
#include <v1model.p4>

// W: width. PI, PO: padding of operands and of results, so that each header is whole bytes: 2 W + 8 + PI and
// 27 W + 16 + PO are multiples of 8. S: a narrower width, X: W + 13.
#define EACH_WIDTH(F) \
    F(2, 4, 2, 1, 15) F(3, 2, 7, 2, 16) F(7, 2, 3, 5, 20) F(8, 8, 8, 3, 21) F(9, 6, 5, 8, 22) F(13, 6, 1, 12, 26) \
    F(16, 8, 8, 8, 29) F(17, 6, 5, 16, 30) F(24, 8, 8, 11, 37) F(31, 2, 3, 30, 44) F(32, 8, 8, 31, 45) \
    F(33, 6, 5, 32, 46) F(47, 2, 3, 33, 60) F(48, 8, 8, 47, 61) F(63, 2, 3, 62, 76) F(64, 8, 8, 63, 77) \
    F(65, 6, 5, 64, 78) F(96, 8, 8, 65, 109) F(100, 8, 4, 99, 113) F(127, 2, 3, 1, 140) F(128, 8, 8, 127, 141)

header kind_t {
    bit<8> width;
}

#define DECLARE(W, PI, PO, S, X) \
header in##W##_t { bit<W> a; bit<W> b; bit<8> n; bit<PI> pad; } \
header out##W##_t { \
    bit<W> add; bit<W> sub; bit<W> mul; bit<W> and; bit<W> or; bit<W> xor; bit<W> inv; bit<W> neg; \
    bit<W> shl; bit<W> shr; bit<W> shl1; bit<W> shr1; bit<W> sat_add; bit<W> sat_sub; \
    int<W> s_sat_add; int<W> s_sat_sub; int<W> s_shr; int<W> s_shl; int<W> s_mul; int<W> s_neg; \
    bit<W> chosen; bit<W> narrow; int<W> s_narrow; bit<W> wide; int<W> s_wide; bit<W> sliced; bit<W> mixed; \
    bit<8> compare; bit<8> s_compare; bit<PO> pad; }
EACH_WIDTH(DECLARE)

struct headers_t {
    kind_t kind;
#define MEMBERS(W, PI, PO, S, X) in##W##_t in##W; out##W##_t out##W;
    EACH_WIDTH(MEMBERS)
}

struct metadata_t {
#define LOCALS(W, PI, PO, S, X) bit<W> u##W; int<W> i##W; bit<S> n##W; int<S> m##W; bit<X> x##W; int<X> y##W;
    EACH_WIDTH(LOCALS)
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.kind);
        transition select(hdr.kind.width) {
#define CASES(W, PI, PO, S, X) W: parse_##W;
            EACH_WIDTH(CASES)
            default: accept;
        }
    }
#define STATES(W, PI, PO, S, X) state parse_##W { packet.extract(hdr.in##W); transition accept; }
    EACH_WIDTH(STATES)
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

#define COMPUTE(W, PI, PO, S, X) \
control Compute##W(inout headers_t hdr, inout metadata_t meta) { \
    apply { \
        bit<W> a = hdr.in##W.a; \
        bit<W> b = hdr.in##W.b; \
        bit<8> n = hdr.in##W.n; \
        int<W> sa = (int<W>)a; \
        int<W> sb = (int<W>)b; \
        hdr.out##W.setValid(); \
        hdr.out##W.add = a + b; \
        hdr.out##W.sub = a - b; \
        hdr.out##W.mul = a * b; \
        hdr.out##W.and = a & b; \
        hdr.out##W.or = a | b; \
        hdr.out##W.xor = a ^ b; \
        hdr.out##W.inv = ~a; \
        hdr.out##W.neg = -a; \
        hdr.out##W.shl = a << n; \
        hdr.out##W.shr = a >> n; \
        hdr.out##W.shl1 = a << 1; \
        hdr.out##W.shr1 = a >> 1; \
        hdr.out##W.sat_add = a |+| b; \
        hdr.out##W.sat_sub = a |-| b; \
        hdr.out##W.s_sat_add = sa |+| sb; \
        hdr.out##W.s_sat_sub = sa |-| sb; \
        hdr.out##W.s_shr = sa >> n; \
        hdr.out##W.s_shl = sa << n; \
        hdr.out##W.s_mul = sa * sb; \
        hdr.out##W.s_neg = -sa; \
        hdr.out##W.chosen = (a < b) ? a + 1 : b - 1; \
        meta.n##W = (bit<S>)a; \
        hdr.out##W.narrow = (bit<W>)meta.n##W; \
        meta.m##W = (int<S>)sa; \
        hdr.out##W.s_narrow = (int<W>)meta.m##W; \
        meta.x##W = (bit<X>)a * (bit<X>)b; \
        hdr.out##W.wide = meta.x##W[X-1:X-W]; \
        meta.y##W = (int<X>)sa - (int<X>)sb; \
        hdr.out##W.s_wide = (int<W>)(meta.y##W >> 1); \
        meta.u##W = a; \
        meta.u##W[W-1:1] = b[W-2:0]; \
        hdr.out##W.sliced = meta.u##W; \
        hdr.out##W.mixed = a[0:0] ++ b[W-1:1]; \
        hdr.out##W.compare = (bit<8>)((bit<1>)(a == b) ++ (bit<1>)(a != b) ++ (bit<1>)(a < b) ++ (bit<1>)(a <= b) \
            ++ (bit<1>)(a > b) ++ (bit<1>)(a >= b) ++ (bit<1>)(a == 0 || b == 0) ++ (bit<1>)(a != 0 && b != 0)); \
        hdr.out##W.s_compare = (bit<8>)((bit<1>)(sa == sb) ++ (bit<1>)(sa != sb) ++ (bit<1>)(sa < sb) \
            ++ (bit<1>)(sa <= sb) ++ (bit<1>)(sa > sb) ++ (bit<1>)(sa >= sb) ++ (bit<1>)(sa < 0) ++ (bit<1>)(!(sb < 0))); \
    } \
}
EACH_WIDTH(COMPUTE)

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
#define INSTANCES(W, PI, PO, S, X) Compute##W() compute##W;
    EACH_WIDTH(INSTANCES)
    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
#define CALLS(W, PI, PO, S, X) if (hdr.in##W.isValid()) { compute##W.apply(hdr, meta); }
        EACH_WIDTH(CALLS)
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.kind);
#define EMITS(W, PI, PO, S, X) packet.emit(hdr.in##W); packet.emit(hdr.out##W);
        EACH_WIDTH(EMITS)
    }
}

V1Switch(Parse(), Verify(), MyIngress(), MyEgress(), Update(), Deparse()) main;

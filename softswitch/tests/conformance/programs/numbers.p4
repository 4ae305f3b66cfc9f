// Numbers: saturating, signed, wide, shifts, slices, concatenation; registers and hashes over them.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<16> a; bit<16> b; bit<16> r; }
header wide_t { bit<200> x; bit<200> y; }
struct headers { base_t base; wide_t wide; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.mode) {
            0x80 &&& 0x80: wide;
            default: accept;
        }
    }
    state wide { packet.extract(hdr.wide); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    register<bit<24>>(4) sums;
    apply {
        standard.egress_spec = 1;
        bit<16> a = hdr.base.a;
        bit<16> b = hdr.base.b;
        bit<16> r = 0;
        switch (hdr.base.mode) {
            0: { r = a |+| b; }
            1: { r = a |-| b; }
            2: { r = (bit<16>)((int<16>)a |+| (int<16>)b); }
            3: { r = (bit<16>)((int<16>)a |-| (int<16>)b); }
            4: { r = a * b; }
            5: { r = a << (bit<8>)b; }
            6: { r = a >> (bit<8>)b; }
            7: { r = (bit<16>)((int<16>)a >> (bit<8>)b); }
            8: { r = (int<16>)a < (int<16>)b ? 16w1 : 16w0; }
            9: { r = a[7:0] ++ b[15:8]; }
            10: { r = (bit<16>)(bit<32>)(int<32>)(int<8>)(bit<8>)a; }
            11: { r = ~a ^ -b; }
            12: {
                bit<24> total;
                sums.read(total, (bit<32>)a);
                total = total + (bit<24>)b;
                sums.write((bit<32>)a, total);
                r = (bit<16>)(total >> 8);
            }
            13: { hash(r, HashAlgorithm.crc16, 16w0, { a, b }, 32w65536); }
            14: { hash(r, HashAlgorithm.csum16, 16w0, { a, b }, 32w65536); }
            15: { hash(r, HashAlgorithm.identity, 16w10, { a }, 32w100); }
            16: { hash(r, HashAlgorithm.xor16, 16w0, { a, b }, 32w65536); }
            17: { random(r, a, b); }
            0x80: { hdr.wide.x = hdr.wide.x + hdr.wide.y; }
            0x81: { hdr.wide.x = hdr.wide.x - hdr.wide.y; }
            0x82: { hdr.wide.x = hdr.wide.x << (bit<8>)b; }
            0x83: { hdr.wide.x = hdr.wide.x ^ (hdr.wide.y >> (bit<8>)b); }
            0x84: { r = hdr.wide.x > hdr.wide.y ? 16w1 : 16w0; }
            0x85: { r = hdr.wide.x[135:120]; hdr.wide.y[195:180] = a; }
        }
        hdr.base.r = r;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.wide);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

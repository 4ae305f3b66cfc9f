// Types: enum, serializable enum, error, bool, int<W>, nested structs, type definitions; signed arithmetic.
#include <core.p4>
#include <v1model.p4>

enum Colour { red, green, blue }
enum bit<4> Kind { none = 0, data = 3, ack = 9 }
enum int<8> Level { low = -2, high = 5 }
error { Odd, Even }
type bit<9> Port_t;
typedef int<12> Delta;
header base_t { bit<8> mode; Kind kind; bit<4> rest; int<8> a; int<8> b; bit<16> result; Level level; }
struct inner_t { Colour colour; bool flag; Delta delta; }
struct outer_t { inner_t inner; Port_t port; error fault; }
struct headers { base_t base; }
struct metadata { outer_t outer; int<16> wide; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        verify(hdr.base.mode != 0xf0, error.Odd);
        verify(hdr.base.mode != 0xf1, error.Even);
        transition select(hdr.base.kind) {
            Kind.ack: acknowledged;
            default: accept;
        }
    }
    state acknowledged { meta.outer.inner.flag = true; transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action set(Kind kind, Delta delta, bit<8> colour) {
        hdr.base.kind = kind;
        meta.outer.inner.delta = delta;
        meta.outer.inner.colour = colour == 1 ? Colour.green : Colour.blue;
    }
    table by_kind {
        key = { hdr.base.kind: exact; meta.outer.inner.flag: exact; }
        actions = { set; NoAction; }
        default_action = NoAction;
    }
    apply {
        meta.outer.port = (Port_t)9w1;
        meta.outer.fault = standard.parser_error;
        if (meta.outer.fault == error.Odd) hdr.base.result = 0xeee1;
        else if (meta.outer.fault == error.Even) hdr.base.result = 0xeee2;
        else if (hdr.base.mode == 1) {
            by_kind.apply();
            meta.wide = (int<16>)meta.outer.inner.delta;
            hdr.base.result = (bit<16>)meta.wide;
            if (meta.outer.inner.colour == Colour.green) hdr.base.rest = 5;
            else if (meta.outer.inner.colour == Colour.blue) hdr.base.rest = 6;
        } else if (hdr.base.mode == 2) {
            hdr.base.result = (bit<16>)((int<16>)hdr.base.a * (int<16>)hdr.base.b);
        } else if (hdr.base.mode == 3) {
            hdr.base.result = (bit<16>)((int<16>)(hdr.base.a |+| hdr.base.b));
        } else if (hdr.base.mode == 4) {
            hdr.base.result = (bit<16>)((int<16>)(hdr.base.a |-| hdr.base.b));
        } else if (hdr.base.mode == 5) {
            hdr.base.result = (bit<16>)(int<16>)(hdr.base.a >> 2) << 4;
        } else if (hdr.base.mode == 6) {
            if (hdr.base.a < hdr.base.b) hdr.base.result = 1;
            if (hdr.base.a == -8s1) hdr.base.result = hdr.base.result + 2;
            if (-hdr.base.a > hdr.base.b) hdr.base.result = hdr.base.result + 4;
        } else if (hdr.base.mode == 7) {
            if (hdr.base.level == Level.low) hdr.base.level = Level.high;
            else if (hdr.base.level == Level.high) hdr.base.level = Level.low;
            else hdr.base.result = 0x0bad;
        }
        standard.egress_spec = (bit<9>)meta.outer.port;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

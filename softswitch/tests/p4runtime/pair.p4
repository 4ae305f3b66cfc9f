// Two tables that are changed together, in two versions of the program: what a packet shows tells whether it saw a mix.
#include <core.p4>
#include <v1model.p4>

#ifndef VERSION
#define VERSION 1
#endif

header marks_t {
    bit<8> key;
    bit<8> one;
    bit<8> two;
    bit<8> first;
    bit<8> last;
}

struct headers_t {
    marks_t marks;
}

struct metadata_t {
}

parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.marks);
        transition accept;
    }
}

control V(inout headers_t h, inout metadata_t m) {
    apply {}
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    counter(4, CounterType.packets) seen;
    action set_one(bit<8> value) {
        h.marks.one = value;
    }
    action set_two(bit<8> value) {
        h.marks.two = value;
    }
    table one {
        key = { h.marks.key: exact; }
        actions = { set_one; NoAction; }
        default_action = NoAction();
    }
    table two {
        key = { h.marks.key: exact; }
        actions = { set_two; NoAction; }
        default_action = NoAction();
    }
#if VERSION > 1
    table three {
        key = { h.marks.key: exact; }
        actions = { set_two; NoAction; }
        default_action = NoAction();
    }
#endif
    apply {
        h.marks.first = VERSION;
        seen.count(1);
        one.apply();
        two.apply();
#if VERSION > 1
        three.apply();
#endif
        s.egress_spec = 1;
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {
        h.marks.last = VERSION;
    }
}

control C(inout headers_t h, inout metadata_t m) {
    apply {}
}

control D(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.marks);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

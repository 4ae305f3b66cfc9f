// Learning: every packet tells its source address and port; a second kind of digest is one number.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> kind;
}

struct learn_t {
    bit<48> src;
    bit<9> port;
    int<12> balance;
    bool odd;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {
    bit<12> balance;
}

parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    state start {
        packet.extract(h.ethernet);
        transition accept;
    }
}

control V(inout headers_t h, inout metadata_t m) {
    apply {}
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    action learn() {
        learn_t x = { h.ethernet.src, s.ingress_port, (int<12>)h.ethernet.kind[11:0], h.ethernet.src[0:0] == 1 };
        digest<learn_t>(1, x);
    }
    apply {
        if (h.ethernet.kind[15:15] == 1) {
            learn();
        }
        if (h.ethernet.kind[14:14] == 1) {
            digest<bit<48>>(2, h.ethernet.dst);
        }
        // a digest has the values of the moment of its call
        h.ethernet.src = 0;
        h.ethernet.dst = 0;
        s.egress_spec = 1;
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
    apply {}
}

control C(inout headers_t h, inout metadata_t m) {
    apply {}
}

control D(packet_out packet, in headers_t h) {
    apply {
        packet.emit(h.ethernet);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

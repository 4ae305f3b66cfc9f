// assert and assume: a packet for which they do not hold is dropped (bmv2 aborts there).
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> a; bit<8> b; }
struct headers { base_t base; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        assert(hdr.base.a != 3);
        standard.egress_spec = 1;
        log_msg("a is {}", { hdr.base.a });
        if (hdr.base.b > 8) {
            assume(hdr.base.b < 16);
            hdr.base.b = hdr.base.b - 1;
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { assert(hdr.base.a != 5); }
}
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

// Adds to a number in a frame how many microseconds the frame waits for the line of the port by which it leaves.
#include <core.p4>
#include <v1model.p4>

header told_t { bit<32> number; bit<32> waits; }
struct headers { told_t told; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.told); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }
control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { standard.egress_spec = 2; }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { hdr.told.waits = hdr.told.waits + standard.deq_timedelta; }
}

control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.told); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

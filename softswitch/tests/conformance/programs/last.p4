// The last header of a stack that was extracted, as a whole.
#include <core.p4>
#include <v1model.p4>

header item_t { bit<7> value; bit<1> bottom; }
struct headers { item_t[3] items; item_t copy; }
struct metadata { item_t kept; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.items.next);
        meta.kept = hdr.items.last;
        transition select(hdr.items.last.bottom) {
            0: start;
            default: accept;
        }
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.copy = meta.kept;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.items);
        packet.emit(hdr.copy);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

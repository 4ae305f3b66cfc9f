// mark_to_drop of the standard metadata, of a copy that is copied back (an action's inout parameter), and of one that is
// not. Found with p4c's drop-bmv2 and p4testgen.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> how; }
struct headers { base_t base; }
struct metadata { }

action drop(inout standard_metadata_t which) { mark_to_drop(which); }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    table copied {
        key = { }
        actions = { drop(standard); }
        const default_action = drop(standard);
    }
    apply {
        standard_metadata_t other = standard;
        standard.egress_spec = 1;
        if (hdr.base.how == 1) {
            mark_to_drop(standard);
        } else if (hdr.base.how == 2) {
            standard.mcast_grp = 1;
            copied.apply();
        } else if (hdr.base.how == 3) {
            mark_to_drop(other);
            if (other.egress_spec != 511) { hdr.base.how = 0xff; }
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

// Multicast, clones of both kinds, resubmit, recirculate, each with the fields that it preserves; truncation.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> value; bit<8> note; bit<8> pass; }
struct headers { base_t base; }
struct metadata {
    @field_list(1) bit<8> kept;
    @field_list(2) bit<8> other;
    bit<8> lost;
}

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (hdr.base.mode == 1) {
            standard.mcast_grp = 5;
        } else if (hdr.base.mode == 2) {
            meta.kept = hdr.base.value;
            meta.lost = 0x77;
            clone_preserving_field_list(CloneType.I2E, 3, 1);
            hdr.base.value = 0;
        } else if (hdr.base.mode == 4) {
            if (standard.instance_type == 6) {
                hdr.base.note = meta.other;
                hdr.base.pass = meta.lost;
            } else {
                meta.other = hdr.base.value + 1;
                meta.lost = 0x77;
                hdr.base.value = 0x55;
                resubmit_preserving_field_list(2);
            }
        } else if (hdr.base.mode == 5 && standard.instance_type == 4) {
            hdr.base.note = meta.kept;
            hdr.base.pass = 2;
            standard.egress_spec = 4;
        } else if (hdr.base.mode == 7) {
            mark_to_drop(standard);
            clone(CloneType.I2E, 3);
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        if (standard.instance_type == 5) hdr.base.note = (bit<8>)standard.egress_rid;
        else if (standard.instance_type == 1) {
            hdr.base.note = meta.kept;
            hdr.base.pass = meta.lost + 1;
        } else if (standard.instance_type == 2) {
            hdr.base.note = 0xe2;
        } else if (hdr.base.mode == 3) {
            hdr.base.value = hdr.base.value + 1;
            clone(CloneType.E2E, 3);
        } else if (hdr.base.mode == 5 && hdr.base.pass == 0) {
            meta.kept = 0x99;
            recirculate_preserving_field_list(1);
        } else if (hdr.base.mode == 6) {
            truncate(6);
        }
    }
}

control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

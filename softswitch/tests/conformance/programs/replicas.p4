// Copies of copies: replication ids of several nodes, clones of multicast replicas, recirculated and resubmitted packets
// with preserved fields and truncation, lengths.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> pass; bit<16> rid; bit<8> kept; bit<8> lost; bit<16> note; }
struct headers { base_t base; }
struct inner_t { bit<8> kept; int<16> deep; }
struct metadata {
    @field_list(1, 2) bit<8> kept;
    @field_list(2) inner_t inner;
    bit<8> lost;
}

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (hdr.base.mode == 1) standard.mcast_grp = 7;
        else if (hdr.base.mode == 2) {
            standard.mcast_grp = 7;
            meta.kept = 0x44;
            clone_preserving_field_list(CloneType.I2E, 3, 1);
        } else if (hdr.base.mode == 3) {
            // resubmitted three times: fields live on
            hdr.base.note = (bit<16>)standard.instance_type;
            hdr.base.kept = meta.kept;
            hdr.base.lost = meta.lost;
            meta.lost = 9;
            if (meta.kept < 3) {
                meta.kept = meta.kept + 1;
                resubmit_preserving_field_list(1);
            }
        } else if (hdr.base.mode == 4) {
            if (standard.instance_type == 4) {
                hdr.base.kept = meta.inner.kept;
                hdr.base.lost = meta.kept;
                hdr.base.note = (bit<16>)meta.inner.deep;
            }
        } else if (hdr.base.mode == 5) {
            if (standard.instance_type == 4) hdr.base.note = (bit<16>)standard.packet_length;
        } else if (hdr.base.mode == 6) {
            // a port chosen, then dropped, then a group: the group stays
            mark_to_drop(standard);
            standard.mcast_grp = 8;
        } else if (hdr.base.mode == 7) {
            standard.mcast_grp = 9;
        } else if (hdr.base.mode == 8) {
            hdr.base.note = (bit<16>)standard.packet_length;
        } else if (hdr.base.mode == 10) {
            if (standard.instance_type == 0) clone(CloneType.I2E, 4);
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.base.mode == 1 || hdr.base.mode == 6 || hdr.base.mode == 7) hdr.base.rid = standard.egress_rid;
        else if (hdr.base.mode == 2) {
            hdr.base.rid = standard.egress_rid;
            hdr.base.kept = meta.kept;
            hdr.base.note = (bit<16>)standard.instance_type;
            if (standard.instance_type == 5 && standard.egress_rid == 12) clone(CloneType.E2E, 4);
        } else if (hdr.base.mode == 4 && hdr.base.pass == 0) {
            meta.kept = 0x61;
            meta.inner.kept = 0x62;
            meta.inner.deep = -2;
            meta.lost = 0x63;
            hdr.base.pass = hdr.base.pass + 1;
            recirculate_preserving_field_list(2);
        } else if (hdr.base.mode == 5 && hdr.base.pass == 0) {
            hdr.base.pass = 1;
            truncate(10);
            recirculate_preserving_field_list(1);
        } else if (hdr.base.mode == 8) {
            hdr.base.rid = (bit<16>)standard.packet_length;
        } else if (hdr.base.mode == 10) {
            hdr.base.note = (bit<16>)standard.instance_type;
            hdr.base.rid = standard.egress_rid;
            if (standard.instance_type == 1) truncate(5);
        }
    }
}

control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

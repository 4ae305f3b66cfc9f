// What egress is told of the queue and the time, with a single packet under way.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> priority; bit<32> enq_qdepth; bit<32> deq_qdepth; bit<16> ports; bit<8> wrong; }
struct headers { base_t base; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        standard.priority = hdr.base.priority[2:0];
        if (standard.egress_global_timestamp != 0 || standard.enq_timestamp != 0 || standard.deq_timedelta != 0)
            hdr.base.wrong = 1;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        hdr.base.enq_qdepth = (bit<32>)standard.enq_qdepth;
        hdr.base.deq_qdepth = (bit<32>)standard.deq_qdepth;
        hdr.base.ports = (bit<16>)standard.ingress_port << 8 | (bit<16>)standard.egress_port;
        if (standard.enq_timestamp == 0) hdr.base.wrong = hdr.base.wrong | 2;
        if (standard.egress_global_timestamp < standard.ingress_global_timestamp) hdr.base.wrong = hdr.base.wrong | 4;
        if (standard.egress_global_timestamp < (bit<48>)standard.enq_timestamp) hdr.base.wrong = hdr.base.wrong | 8;
        if (standard.egress_spec != 0) hdr.base.wrong = hdr.base.wrong | 16;
    }
}

control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

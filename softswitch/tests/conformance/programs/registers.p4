// Registers and counters as the control plane sees them (bmv2's P4Runtime cannot read registers).
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> index; bit<24> value; }
struct headers { base_t base; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    register<bit<24>>(4) sums;
    counter(4, CounterType.packets_and_bytes) seen;
    apply {
        bit<24> total = 0x999999;
        seen.count((bit<32>)hdr.base.index);
        sums.read(total, (bit<32>)hdr.base.index);
        total = total + hdr.base.value;
        sums.write((bit<32>)hdr.base.index, total);
        hdr.base.value = total;
        standard.egress_spec = 1;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

// Large tables of four match kinds; the frame says which one is looked up.
#include <core.p4>
#include <v1model.p4>

header key_t {
    bit<48> destination;
    bit<48> source_mac;
    bit<16> ether_type;
    bit<8> which;
    bit<8> protocol;
    bit<32> source;
    bit<32> target;
    bit<16> source_port;
    bit<16> target_port;
}
struct headers { key_t key; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.key); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action to(bit<9> port) { standard.egress_spec = port; }
    action drop() { mark_to_drop(standard); }
    table exact_table {
        key = { hdr.key.source: exact; hdr.key.target: exact; }
        actions = { to; drop; }
        default_action = drop;
        size = 65536;
    }
    table lpm_table {
        key = { hdr.key.target: lpm; }
        actions = { to; drop; }
        default_action = drop;
        size = 131072;
    }
    table ternary_table {
        key = {
            hdr.key.protocol: ternary; hdr.key.source: ternary; hdr.key.target: ternary; hdr.key.source_port: ternary;
            hdr.key.target_port: ternary;
        }
        actions = { to; drop; }
        default_action = drop;
        size = 4096;
    }
    table range_table {
        key = { hdr.key.target: lpm; hdr.key.source_port: range; hdr.key.target_port: range; }
        actions = { to; drop; }
        default_action = drop;
        size = 4096;
    }
    apply {
        if (hdr.key.which == 0) { exact_table.apply(); }
        else if (hdr.key.which == 1) { lpm_table.apply(); }
        else if (hdr.key.which == 2) { ternary_table.apply(); }
        else { range_table.apply(); }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.key); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

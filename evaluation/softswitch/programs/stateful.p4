// What else comes in large numbers: members and groups of an action selector, idle timeouts, digests, multicast groups.
#include <core.p4>
#include <v1model.p4>

header key_t {
    bit<48> destination;
    bit<48> source_mac;
    bit<16> ether_type;
    bit<8> which;
    bit<8> group;
    bit<32> source;
    bit<32> target;
}
struct headers { key_t key; }
struct metadata { }
struct learned_t { bit<32> source; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.key); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action to(bit<9> port) { standard.egress_spec = port; }
    action_selector(HashAlgorithm.crc16, 1048576, 16) selector;
    table selector_table {
        key = { hdr.key.target: exact; hdr.key.source: selector; }
        actions = { to; }
        implementation = selector;
        size = 262144;
    }
    table idle_table {
        key = { hdr.key.target: exact; }
        actions = { to; }
        support_timeout = true;
        size = 262144;
    }
    apply {
        if (hdr.key.which == 0) { selector_table.apply(); }
        else if (hdr.key.which == 1) { idle_table.apply(); }
        else { digest<learned_t>(1, { hdr.key.source }); }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.key); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

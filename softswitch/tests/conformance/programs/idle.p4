// Tables whose entries may have an idle timeout, with and without action profile.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> which; bit<32> key; bit<8> result; }
struct headers { base_t base; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action_selector(HashAlgorithm.crc32, 32w64, 32w16) profile;
    action set(bit<8> result) { hdr.base.result = result; }
    table exact_table {
        key = { hdr.base.key: exact @name("key"); }
        actions = { set; @defaultonly NoAction; }
        default_action = NoAction;
        support_timeout = true;
        size = 100000;
    }
    table ternary_table {
        key = { hdr.base.key: ternary @name("key"); }
        actions = { set; @defaultonly NoAction; }
        default_action = NoAction;
        support_timeout = true;
    }
    table profile_table {
        key = { hdr.base.key: exact @name("key"); hdr.base.which: selector; }
        actions = { set; NoAction; }
        implementation = profile;
        support_timeout = true;
        size = 1024;
    }
    table without_table {
        key = { hdr.base.key: exact @name("key"); }
        actions = { set; @defaultonly NoAction; }
        default_action = NoAction;
    }
    apply {
        standard.egress_spec = 1;
        if (hdr.base.which == 0) exact_table.apply();
        else if (hdr.base.which == 1) ternary_table.apply();
        else if (hdr.base.which == 2) profile_table.apply();
        else without_table.apply();
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

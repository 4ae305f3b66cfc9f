// Action profiles and selectors: members, groups with weights, several tables on one profile, hit and action_run.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> which; bit<32> key; bit<16> flow; bit<4> low; bit<12> high; bit<8> result; bit<8> more; }
struct headers { base_t base; }
struct metadata { bit<9> port; bit<48> wide; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action_profile(8) plain;
    action_selector(HashAlgorithm.crc32, 32w64, 32w16) shared;
    @max_group_size(4)
    action_selector(HashAlgorithm.crc16, 32w16, 32w8) small;
    action_selector(HashAlgorithm.identity, 32w32, 32w16) same;

    action set(bit<8> result) { hdr.base.result = result; }
    action both(bit<8> result, bit<8> more) { hdr.base.result = result; hdr.base.more = more; }
    action drop() { mark_to_drop(standard); }
    table plain_table {
        key = { hdr.base.key: exact @name("key"); }
        actions = { set; both; drop; NoAction; }
        implementation = plain;
        size = 1024;
    }
    table lpm_table {
        key = {
            hdr.base.key: lpm @name("key");
            hdr.base.flow: selector;
            hdr.base.low: selector;
            hdr.base.high: selector;
        }
        actions = { set; both; drop; NoAction; }
        implementation = shared;
        size = 1024;
    }
    table ternary_table {
        key = {
            hdr.base.key: ternary @name("key");
            hdr.base.flow: selector;
            hdr.base.low: selector;
            hdr.base.high: selector;
        }
        actions = { set; both; drop; NoAction; }
        implementation = shared;
        size = 1024;
    }
    table small_table {
        key = { hdr.base.key: exact @name("key"); meta.wide: selector; }
        actions = { set; both; NoAction; }
        implementation = small;
        size = 1024;
    }
    direct_counter(CounterType.packets_and_bytes) hits;
    table counted_table {
        key = { hdr.base.key: exact @name("key"); hdr.base.flow: selector; }
        actions = { set; NoAction; }
        counters = hits;
        implementation = same;
        size = 1024;
    }
    apply {
        standard.egress_spec = 1;
        meta.wide = (bit<48>)hdr.base.flow;
        if (hdr.base.which == 0) {
            plain_table.apply();
        } else if (hdr.base.which == 1) {
            if (lpm_table.apply().hit) hdr.base.more = 0x77;
        } else if (hdr.base.which == 2) {
            switch (ternary_table.apply().action_run) {
                set: { hdr.base.more = 0xa1; }
                both: { hdr.base.which = 0xa2; }
                drop: { hdr.base.more = 0xa0; }
            }
        } else if (hdr.base.which == 3) {
            small_table.apply();
        } else if (hdr.base.which == 4) {
            counted_table.apply();
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

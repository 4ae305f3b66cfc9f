// Every match kind, priorities, default actions, entries from the program, direct counters.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> which; bit<32> key; bit<12> narrow; bit<4> flags; bit<8> result; }
struct headers { base_t base; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    counter(4, CounterType.packets_and_bytes) seen;
    action set(bit<8> result) { hdr.base.result = result; }
    action drop() { mark_to_drop(standard); }
    table exact_table {
        key = { hdr.base.key: exact @name("key"); hdr.base.narrow: exact @name("narrow"); }
        actions = { set; drop; @defaultonly NoAction; }
        default_action = NoAction;
    }
    table lpm_table {
        key = { hdr.base.key: lpm @name("key"); }
        actions = { set; drop; }
        default_action = set(0x0d);
    }
    table ternary_table {
        key = { hdr.base.key: ternary @name("key"); hdr.base.flags: exact @name("flags"); }
        actions = { set; drop; }
        default_action = drop;
    }
    table range_table {
        key = { hdr.base.key: range @name("key"); hdr.base.narrow: range @name("narrow"); }
        actions = { set; drop; @defaultonly NoAction; }
        default_action = NoAction;
    }
    table optional_table {
        key = { hdr.base.key: optional @name("key"); hdr.base.narrow: optional @name("narrow"); }
        actions = { set; drop; @defaultonly NoAction; }
        default_action = NoAction;
    }
    table const_table {
        key = { hdr.base.key: lpm; hdr.base.narrow: ternary; }
        actions = { set; @defaultonly NoAction; }
        const default_action = NoAction;
        const entries = {
            (0x0a000000 &&& 0xff000000, 0x100 &&& 0xf00): set(0xc1);
            (0x0a010000 &&& 0xffff0000, _): set(0xc2);
            (_, 0x123): set(0xc3);
        }
    }
    apply {
        standard.egress_spec = 1;
        seen.count((bit<32>)hdr.base.which);
        switch (hdr.base.which) {
            0: { exact_table.apply(); }
            1: { lpm_table.apply(); }
            2: { ternary_table.apply(); }
            3: { if (range_table.apply().hit) hdr.base.which = 0xff; }
            4: { optional_table.apply(); }
            5: {
                switch (const_table.apply().action_run) {
                    set: { hdr.base.which = 0xfe; }
                    default: { hdr.base.which = 0xfd; }
                }
            }
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

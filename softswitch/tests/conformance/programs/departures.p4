// What P4 says and bmv2 does otherwise: push and pop of a stack of unions, signed action parameters, and action_run after a
// miss in a table with an action profile.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> kinds; bit<8> result; bit<16> number; }
header short_t { bit<8> value; }
header long_t { bit<8> length; varbit<32> data; }
header_union item_t { short_t s; long_t l; }
struct headers { base_t base; item_t[3] items; }
struct metadata { int<12> delta; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition choose; }
    state choose {
        transition select(hdr.base.kinds[1:0]) {
            1: short;
            2: long;
            default: accept;
        }
    }
    state short { packet.extract(hdr.items.next.s); transition following; }
    state long {
        packet.extract(hdr.items.next.l, (bit<32>)packet.lookahead<bit<8>>() * 8);
        transition following;
    }
    state following {
        hdr.base.kinds = hdr.base.kinds >> 2;
        transition choose;
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    action set(int<12> delta) { meta.delta = delta; }
    table by_mode {
        key = { hdr.base.mode: exact; }
        actions = { set; NoAction; }
        default_action = NoAction;
    }
    action mark() { hdr.base.result = 1; }
    action_profile(32w4) profile;
    table by_kinds {
        key = { hdr.base.kinds: exact; }
        actions = { mark; NoAction; }
        implementation = profile;
    }
    apply {
        standard.egress_spec = 1;
        if (hdr.base.mode == 0x20) {
            switch (by_kinds.apply().action_run) {
                mark: { hdr.base.number = 0xa1; }
                default: { hdr.base.number = 0xa0; }
            }
        }
        else if (hdr.base.mode == 1) hdr.items.push_front(1);
        else if (hdr.base.mode == 2) {
            hdr.items.push_front(2);
            hdr.items[1].s.setValid();
            hdr.items[1].s.value = 0x77;
        } else if (hdr.base.mode == 3) hdr.items.pop_front(1);
        else if (hdr.base.mode == 4) hdr.items.pop_front(2);
        else if (by_mode.apply().hit) hdr.base.number = (bit<16>)(int<16>)meta.delta;
        if (hdr.items[0].s.isValid()) hdr.base.result = hdr.base.result + 0x10;
        if (hdr.items[2].l.isValid()) hdr.base.result = hdr.base.result + 0x20;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.items);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

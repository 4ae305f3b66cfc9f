// Stacks of header unions: next, lastIndex, copies, validity, equality of elements.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> kinds; bit<8> result; }
header short_t { bit<8> value; }
header long_t { bit<8> length; varbit<32> data; }
header_union item_t { short_t s; long_t l; }
struct headers { base_t base; item_t[3] items; }
struct metadata { bit<32> index; }

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
        meta.index = hdr.items.lastIndex;
        hdr.base.kinds = hdr.base.kinds >> 2;
        transition choose;
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error != error.NoError) hdr.base.result = 0xee;
        else if (hdr.base.mode == 5) hdr.items[2] = hdr.items[0];
        else if (hdr.base.mode == 6) {
            hdr.items[1].l = hdr.items[0].l;
        } else if (hdr.base.mode == 7) hdr.base.result = (bit<8>)meta.index;
        else if (hdr.base.mode == 8) {
            item_t[3] copy = hdr.items;
            hdr.items[1].s.setInvalid();
            hdr.items[0] = copy[1];
        } else if (hdr.base.mode == 9 && hdr.items[0] == hdr.items[1]) hdr.base.result = 0x99;
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

// Header stacks: next, last, lastIndex, push, pop, indices, and too many headers.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> result; }
header item_t { bit<7> value; bit<1> bottom; }
struct headers { base_t base; item_t[4] items; }
struct metadata { bit<32> index; bit<8> sum; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        meta.sum = 0;
        transition select(hdr.base.mode) {
            0: accept;
            default: item;
        }
    }
    state item {
        packet.extract(hdr.items.next);
        meta.sum = meta.sum + (bit<8>)hdr.items.last.value;
        meta.index = hdr.items.lastIndex;
        transition select(hdr.items.last.bottom) {
            0: item;
            default: accept;
        }
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.StackOutOfBounds) hdr.base.result = 0xff;
        else if (hdr.base.mode == 1) hdr.base.result = meta.sum;
        else if (hdr.base.mode == 2) hdr.base.result = (bit<8>)meta.index;
        else if (hdr.base.mode == 3) {
            hdr.items.push_front(1);
            hdr.items[0].setValid();
            hdr.items[0].value = 0x7f;
        } else if (hdr.base.mode == 4) hdr.items.pop_front(2);
        else if (hdr.base.mode == 5) hdr.items.push_front(2);
        else if (hdr.base.mode == 6) {
            hdr.items[1] = hdr.items[0];
            hdr.items[3] = hdr.items[2];
        } else if (hdr.base.mode == 7) {
            bit<2> at = (bit<2>)meta.index;
            hdr.items[at].value = 0x11;
        } else if (hdr.base.mode == 8) hdr.items[0].setInvalid();
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

// Header unions and stacks of them: at most one header is valid, whatever made it so.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> kinds; bit<8> result; }
header short_t { bit<8> value; }
header long_t { bit<16> value; }
header_union item_t { short_t s; long_t l; }
struct headers { base_t base; item_t[2] items; item_t other; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.kinds) {
            8w0x00 &&& 8w0x0f: last;
            8w0x01 &&& 8w0x0f: short;
            8w0x02 &&& 8w0x0f: long;
            8w0x03 &&& 8w0x0f: three;
            default: accept;
        }
    }
    state short { packet.extract(hdr.items.next.s); transition second; }
    state long { packet.extract(hdr.items.next.l); transition second; }
    state second {
        transition select(hdr.base.kinds) {
            8w0x10 &&& 8w0x30: second_short;
            8w0x20 &&& 8w0x30: second_long;
            default: last;
        }
    }
    state second_short { packet.extract(hdr.items.next.s); transition last; }
    state second_long { packet.extract(hdr.items.next.l); transition last; }
    state three {
        packet.extract(hdr.items.next.s);
        packet.extract(hdr.items.next.s);
        packet.extract(hdr.items.next.s);
        transition last;
    }
    state last {
        transition select(hdr.base.kinds) {
            8w0x40 &&& 8w0xc0: other_short;
            8w0x80 &&& 8w0xc0: other_long;
            default: accept;
        }
    }
    state other_short { packet.extract(hdr.other.s); transition accept; }
    state other_long { packet.extract(hdr.other.l); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.StackOutOfBounds) hdr.base.result = 0x80;
        if (hdr.items[0].s.isValid()) hdr.base.result = hdr.base.result | 1;
        if (hdr.items[0].l.isValid()) hdr.base.result = hdr.base.result | 2;
        if (hdr.items[1].s.isValid()) hdr.base.result = hdr.base.result | 4;
        if (hdr.items[1].l.isValid()) hdr.base.result = hdr.base.result | 8;
        if (hdr.other.s.isValid()) hdr.base.result = hdr.base.result | 16;
        if (hdr.other.l.isValid()) hdr.base.result = hdr.base.result | 32;
        if (hdr.base.mode == 1) {
            hdr.items[0].l.setValid();
            hdr.items[0].l.value = 0xabcd;
        } else if (hdr.base.mode == 2) {
            hdr.other.s.setValid();
            hdr.other.s.value = 0xee;
        } else if (hdr.base.mode == 3) {
            hdr.items[0].s.setInvalid();
        } else if (hdr.base.mode == 4) {
            hdr.other.l = hdr.items[0].l;
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.items);
        packet.emit(hdr.other);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

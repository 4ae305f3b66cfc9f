// lookahead where p4c allows it: in expressions, select, verify, advance; of bits, headers and beyond the packet.
#include <core.p4>
#include <v1model.p4>

error { Marker }
header base_t { bit<8> mode; bit<16> result; bit<8> status; }
header pair_t { bit<4> high; bit<12> low; }
struct headers { base_t base; pair_t pair; }
struct metadata { bit<16> sum; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.mode) {
            1: sum;
            2: select_on_it;
            3: skip;
            4: check;
            5: header_ahead;
            6: last;
            default: accept;
        }
    }
    state sum {
        meta.sum = packet.lookahead<bit<16>>() + (bit<16>)packet.lookahead<bit<8>>() * 2 - 1;
        hdr.base.result = meta.sum;
        transition accept;
    }
    state select_on_it {
        transition select(packet.lookahead<bit<4>>(), packet.lookahead<bit<16>>()[3:0], hdr.base.status) {
            (1, 2, _): first;
            (1 .. 3, 5 &&& 0xd, 7): second;
            default: accept;
        }
    }
    state first { hdr.base.result = 0x1111; transition accept; }
    state second { hdr.base.result = 0x2222; transition accept; }
    state skip {
        packet.advance((bit<32>)packet.lookahead<bit<8>>());
        packet.extract(hdr.pair);
        transition accept;
    }
    state check {
        verify(packet.lookahead<bit<8>>() < 0x10, error.Marker);
        packet.extract(hdr.pair);
        transition accept;
    }
    state header_ahead {
        pair_t ahead = packet.lookahead<pair_t>();
        hdr.base.result = (bit<16>)ahead.low ^ (bit<16>)ahead.high;
        transition accept;
    }
    state last {
        hdr.base.result = packet.lookahead<bit<64>>()[15:0];
        transition accept;
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.Marker) hdr.base.status = 0xf1;
        else if (standard.parser_error == error.PacketTooShort) hdr.base.status = 0xf2;
        else if (standard.parser_error == error.ParserInvalidArgument) hdr.base.status = 0xf3;
        else if (standard.parser_error != error.NoError) hdr.base.status = 0xff;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.pair);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

// Variable-length fields: extraction and its errors, copies, comparison, a checksum over one.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<8> result; bit<16> checksum; }
header option_t { bit<8> length; varbit<64> data; bit<8> tail; }
struct headers { base_t base; option_t first; option_t second; }
struct metadata { }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.mode) {
            0: accept;
            default: first;
        }
    }
    state first {
        packet.extract(hdr.first, (bit<32>)packet.lookahead<bit<8>>() * 8);
        transition second;
    }
    state second {
        packet.extract(hdr.second, (bit<32>)packet.lookahead<bit<8>>());
        transition accept;
    }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.PacketTooShort) hdr.base.result = 1;
        else if (standard.parser_error == error.HeaderTooShort) hdr.base.result = 2;
        else if (standard.parser_error == error.ParserInvalidArgument) hdr.base.result = 3;
        else if (hdr.base.mode == 2) hdr.first = hdr.second;
        else if (hdr.base.mode == 3) hdr.first.data = hdr.second.data;
        else if (hdr.base.mode == 4 && hdr.first.data == hdr.second.data) hdr.base.result = 0xee;
        else if (hdr.base.mode == 5 && hdr.first == hdr.second) hdr.base.result = 0xdd;
        else if (hdr.base.mode == 6) hdr.first.setInvalid();
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }

control C(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum(hdr.first.isValid(), { hdr.base.mode, hdr.first.length, hdr.first.data, hdr.first.tail },
                        hdr.base.checksum, HashAlgorithm.csum16);
    }
}

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.first);
        packet.emit(hdr.second);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

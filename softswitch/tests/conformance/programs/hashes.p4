// hash and checksums over fields, whole headers, varbit fields and the payload, with every algorithm.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> mode; bit<5> odd; bit<3> rest; bit<32> result; bit<16> checksum; }
header option_t { bit<8> length; varbit<64> data; bit<8> tail; }
header short_t { bit<12> a; bit<4> b; }
struct headers { base_t base; option_t option; short_t extra; }
struct metadata { bit<64> wide; bit<16> narrow; bit<1> wrong; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.base);
        packet.extract(hdr.option, (bit<32>)packet.lookahead<bit<8>>() * 8);
        transition select(hdr.base.rest) {
            1: extra;
            default: accept;
        }
    }
    state extra { packet.extract(hdr.extra); transition accept; }
}

control V(inout headers hdr, inout metadata meta) {
    apply {
        verify_checksum_with_payload(hdr.base.mode == 0x40, { hdr.option.data, hdr.option.tail }, hdr.base.checksum,
                                     HashAlgorithm.csum16);
        verify_checksum(hdr.base.mode == 0x41, { hdr.option.length, hdr.option.data }, hdr.base.checksum,
                        HashAlgorithm.crc16);
    }
}

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        if (standard.checksum_error == 1) hdr.base.result = 0xdeadbeef;
        bit<32> top = 0xffffffff;
        if (hdr.base.mode == 1) hash(hdr.base.result, HashAlgorithm.crc32, 32w0, hdr.option, top);
        else if (hdr.base.mode == 2) hash(hdr.base.result, HashAlgorithm.crc16, 32w7, { hdr.option, hdr.extra }, top);
        else if (hdr.base.mode == 3)
            hash(hdr.base.result, HashAlgorithm.crc32, 32w0, { hdr.base.odd, hdr.option.data, hdr.base.rest }, top);
        else if (hdr.base.mode == 4)
            hash(hdr.base.result, HashAlgorithm.csum16, 32w0, { hdr.base.odd, hdr.option.tail, 3w5, hdr.extra }, top);
        else if (hdr.base.mode == 5)
            hash(hdr.base.result, HashAlgorithm.identity, 32w3, { hdr.option.tail, 4w9, hdr.base.odd }, 32w1000);
        else if (hdr.base.mode == 6)
            hash(hdr.base.result, HashAlgorithm.xor16, 32w0, { hdr.option.tail, hdr.base.odd, 16w0x1234 }, top);
        else if (hdr.base.mode == 7)
            hash(meta.narrow, HashAlgorithm.crc32_custom, 16w100, { hdr.option.tail }, 16w50);
        else if (hdr.base.mode == 8)
            hash(hdr.base.result, HashAlgorithm.crc16_custom, 32w0, { hdr.option.data, 3w1 }, top);
        else if (hdr.base.mode == 9) hash(hdr.base.result, HashAlgorithm.crc32, 32w5, { hdr.option.tail }, 32w1);
        else if (hdr.base.mode == 10) hash(hdr.base.result, HashAlgorithm.crc32, 32w5, { hdr.extra }, top);
        if (hdr.base.mode == 7) hdr.base.result = (bit<32>)meta.narrow;
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }

control C(inout headers hdr, inout metadata meta) {
    apply {
        update_checksum_with_payload(hdr.base.mode == 0x50, { hdr.option.data, hdr.option.tail }, hdr.base.checksum,
                                     HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.base.mode == 0x51, { hdr.option.length, hdr.option.data }, hdr.base.checksum,
                                     HashAlgorithm.crc16);
        update_checksum_with_payload(hdr.base.mode == 0x53, { hdr.option.data, hdr.base.odd }, hdr.base.checksum,
                                     HashAlgorithm.csum16);
        update_checksum(hdr.base.mode == 0x52, { hdr.base.odd, hdr.option.data, hdr.base.rest, hdr.option.tail },
                        hdr.base.checksum, HashAlgorithm.csum16);
    }
}

control D(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.base);
        packet.emit(hdr.option);
        packet.emit(hdr.extra);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;

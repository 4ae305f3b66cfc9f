// What the other programs leave out: header stacks, lookahead and advance, wide registers with slices, header copies,
// hash algorithms, jumps in actions, log messages, and a TCP checksum over the payload.
#include <core.p4>
#include <v1model.p4>

header command_t {
    bit<8> operation;
    bit<8> index;
    bit<16> value;
}

header label_t {
    bit<20> label;
    bit<3> class;
    bit<1> bottom;
    bit<8> ttl;
}

header blob_t {
    bit<3> head;
    bit<201> body;
    bit<4> tail;
}

header hashes_t {
    bit<16> crc16;
    bit<32> crc32;
    bit<16> csum16;
    bit<64> identity;
    bit<16> xor16;
    bit<32> limited;
    bit<16> with_payload;
}

struct headers_t {
    command_t command;
    label_t[4] labels;
    blob_t blob;
    blob_t copy;
    hashes_t hashes;
}

struct metadata_t {
    bit<300> wide;
    bit<16> checked;
    bit<8> seen;
}

error {
    TooManyLabels
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.command);
        transition select(hdr.command.operation) {
            0 &&& 0xf0: parse_label;
            0x10 .. 0x1f: parse_blob;
            0x20: skip;
            default: accept;
        }
    }
    state parse_label {
        packet.extract(hdr.labels.next);
        meta.seen = meta.seen + 1;
        verify(hdr.labels.last.ttl != 255, error.TooManyLabels);
        transition select(hdr.labels.last.bottom) {
            0: parse_label;
            default: accept;
        }
    }
    state skip {
        meta.checked = packet.lookahead<bit<32>>()[23:8];
        packet.advance((bit<32>)hdr.command.index * 8);
        transition select(packet.lookahead<bit<8>>(), meta.checked) {
            (0x11, _): parse_blob;
            (_, 0x1234): parse_label;
            default: accept;
        }
    }
    state parse_blob {
        packet.extract(hdr.blob);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum_with_payload(hdr.command.operation == 0x13, { hdr.command.operation, hdr.command.index },
            hdr.command.value, HashAlgorithm.csum16);
    }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<512>>(16) wide_register;
    register<bit<1>>(16) flags;
    register<bit<7>>(16) small;
    register<bit<128>>(16) large;
    bit<512> value;
    bit<1> flag;
    bit<7> little;
    bit<128> big;

    action branches(bit<16> limit) {
        if (hdr.command.value > limit) {
            hdr.command.value = hdr.command.value - limit;
            if (hdr.command.index == 7) {
                hdr.command.index = 8;
            }
        } else {
            hdr.command.value = limit;
            hdr.command.index = (hdr.command.index == 1) ? 8w3 : hdr.command.index + 1;
        }
    }
    action unpack() {
        hdr.blob.head = (bit<3>)hdr.command.index;
        hdr.blob.body[200:100] = hdr.blob.body[100:0];
        hdr.blob.body[7:3] = 0x15;
        hdr.blob.tail = hdr.blob.body[180:177];
    }

    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        if (standard_metadata.parser_error != error.NoError) {
            hdr.command.setValid();
            hdr.command.operation = 0xee;
            if (standard_metadata.parser_error == error.TooManyLabels) {
                hdr.command.operation = 0xef;
            } else if (standard_metadata.parser_error == error.StackOutOfBounds) {
                hdr.command.operation = 0xed;
            } else if (standard_metadata.parser_error == error.PacketTooShort) {
                hdr.command.operation = 0xec;
            }
            return;
        }
        if (hdr.command.operation == 0) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].label = (bit<20>)hdr.command.value;
            hdr.labels[0].ttl = hdr.labels[1].ttl;
        } else if (hdr.command.operation == 1) {
            hdr.labels.pop_front(1);
        } else if (hdr.command.operation == 2) {
            hdr.labels.push_front(2);
        } else if (hdr.command.operation == 3) {
            hdr.labels.pop_front(3);
        } else if (hdr.command.operation == 4) {
            hdr.labels[hdr.command.index & 3].ttl = 0x77;   // may be invalid: then it has no effect
            hdr.command.value = hdr.command.value + (bit<16>)hdr.labels[0].label;
        } else if (hdr.command.operation == 5) {
            hdr.labels[3] = hdr.labels[0];
            hdr.labels[1].setInvalid();
        } else if (hdr.command.operation == 0x10) {
            unpack();
        } else if (hdr.command.operation == 0x11) {
            hdr.copy = hdr.blob;
            hdr.copy.head = hdr.copy.head + 3;
            if (hdr.copy == hdr.blob) {
                hdr.command.value = 1;
            }
            hdr.blob.tail = hdr.blob.tail - 1;
        } else if (hdr.command.operation == 0x12) {
            wide_register.read(value, (bit<32>)hdr.command.index);
            value[400:200] = hdr.blob.body + value[400:200];
            value[15:0] = value[15:0] |+| hdr.command.value;
            value = value << 1;
            wide_register.write((bit<32>)hdr.command.index, value);
            hdr.blob.body = value[401:201] ^ (bit<201>)value[16:1];
        } else if (hdr.command.operation == 0x13) {
            hdr.command.value = (bit<16>)standard_metadata.checksum_error;
            meta.wide = (bit<300>)hdr.blob.body * (bit<300>)hdr.blob.body;
            hdr.blob.body = meta.wide[299:99];
        } else if (hdr.command.operation == 0x14) {
            hdr.hashes.setValid();
            hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0, { hdr.blob.head, hdr.blob.body, hdr.blob.tail }, 32w0xffffff);
            hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0, { hdr.command.value, hdr.blob.body, 7w3 }, 64w0x100000000);
            hash(hdr.hashes.csum16, HashAlgorithm.csum16, 16w0, { hdr.command.operation, hdr.blob.body }, 32w0x10000);
            hash(hdr.hashes.identity, HashAlgorithm.identity, 16w0, { hdr.command.value, hdr.command.index },
                64w0xffffffffffffffff);
            hash(hdr.hashes.xor16, HashAlgorithm.xor16, 16w0, { hdr.blob.body, 7w0 }, 32w0x10000);
            hash(hdr.hashes.limited, HashAlgorithm.crc32, 32w1000, { hdr.command.value }, 32w17);
        } else if (hdr.command.operation == 0x15) {
            flags.read(flag, (bit<32>)hdr.command.index);
            small.read(little, (bit<32>)hdr.command.index);
            large.read(big, (bit<32>)hdr.command.index);
            hdr.blob.body = (bit<201>)(flag ++ little ++ big);
            flags.write((bit<32>)hdr.command.index, flag + 1);
            small.write((bit<32>)hdr.command.index, little + 3);
            large.write((bit<32>)hdr.command.index, big + (bit<128>)hdr.command.value);
        } else if (hdr.command.operation == 0x30) {
            branches(1000);
            log_msg("index {} value {}", {hdr.command.index, hdr.command.value});
        } else {
            hdr.command.value = (bit<16>)meta.seen + meta.checked;
        }
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(hdr.hashes.isValid(), { hdr.command.value, hdr.hashes.crc32, 5w7, 3w1 },
            hdr.hashes.with_payload, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.command);
        packet.emit(hdr.labels);
        packet.emit(hdr.blob);
        packet.emit(hdr.copy);
        packet.emit(hdr.hashes);
    }
}

V1Switch(Parse(), Verify(), MyIngress(), MyEgress(), Update(), Deparse()) main;

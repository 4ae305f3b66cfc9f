// Parser value sets: one field, several fields (of which one is not whole bytes), other match kinds, the same set twice.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<16> kind; bit<4> low; bit<12> high; bit<8> state; bit<7> odd; bit<1> flag; bit<80> wide; }
struct headers { base_t base; }
struct metadata { bit<8> state; }
struct pair_t { bit<12> high; bit<7> odd; }
struct mixed_t {
    bit<4> low;
    @match(ternary) bit<12> high;
    @match(lpm) bit<16> kind;
    @match(range) bit<7> odd;
}

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    value_set<bit<16>>(4) kinds;
    value_set<pair_t>(8) pairs;
    value_set<mixed_t>(1000) mixed;
    value_set<bit<80>>(2) wides;
    state start {
        packet.extract(hdr.base);
        transition select(hdr.base.kind) {
            0x0001: one;
            kinds: in_kinds;
            0x0002: two;
            default: second;
        }
    }
    state one { meta.state = 0x01; transition accept; }
    state two { meta.state = 0x02; transition accept; }
    state in_kinds { meta.state = 0x10; transition accept; }
    state second {
        transition select(hdr.base.high, hdr.base.odd) {
            pairs: in_pairs;
            default: third;
        }
    }
    state in_pairs { meta.state = 0x20; transition accept; }
    state third {
        transition select(hdr.base.low, hdr.base.high, hdr.base.kind, hdr.base.odd) {
            mixed: in_mixed;
            default: fourth;
        }
    }
    state in_mixed { meta.state = 0x30; transition accept; }
    state fourth {
        transition select(hdr.base.wide) {
            wides: in_wides;
            default: none;
        }
    }
    state in_wides { meta.state = 0x40; transition accept; }
    state none { meta.state = 0xff; transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }
control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    apply { standard.egress_spec = 1; hdr.base.state = meta.state; }
}
control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) { apply { } }
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

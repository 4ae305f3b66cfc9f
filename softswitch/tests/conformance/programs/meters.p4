// Meters: arrays in packets and in bytes, at ingress and at egress, and direct ones; colours are 0 green, 1 yellow, 2 red.
#include <core.p4>
#include <v1model.p4>

header base_t { bit<8> which; bit<32> index; bit<8> colour; bit<8> more; }
struct headers { base_t base; }
struct metadata { bit<2> colour; bit<32> wide; }

parser P(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    state start { packet.extract(hdr.base); transition accept; }
}

control V(inout headers hdr, inout metadata meta) { apply { } }

control I(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    meter(4, MeterType.packets) by_packets;
    meter(300, MeterType.bytes) by_bytes;
    direct_meter<bit<2>>(MeterType.packets) each_packets;
    direct_meter<bit<32>>(MeterType.bytes) each_bytes;

    action by_packet() { each_packets.read(meta.colour); hdr.base.more = 0x11; }
    action by_byte(bit<8> more) { each_bytes.read(meta.wide); hdr.base.more = more; }
    table exact_table {
        key = { hdr.base.index: exact @name("index"); }
        actions = { by_packet; @defaultonly NoAction; }
        default_action = NoAction;
        meters = each_packets;
        size = 16;
    }
    table ternary_table {
        key = { hdr.base.index: ternary @name("index"); }
        actions = { by_byte; @defaultonly NoAction; }
        default_action = NoAction;
        meters = each_bytes;
        size = 16;
    }
    apply {
        standard.egress_spec = 1;
        meta.colour = 3;
        meta.wide = 0xee;
        if (hdr.base.which == 0) {
            by_packets.execute_meter(hdr.base.index, hdr.base.colour);
        } else if (hdr.base.which == 1) {
            by_bytes.execute_meter(hdr.base.index, meta.wide);
            hdr.base.colour = (bit<8>)meta.wide;
        } else if (hdr.base.which == 2) {
            exact_table.apply();
            hdr.base.colour = (bit<8>)meta.colour;
        } else if (hdr.base.which == 3) {
            ternary_table.apply();
            hdr.base.colour = (bit<8>)meta.wide;
        }
    }
}

control E(inout headers hdr, inout metadata meta, inout standard_metadata_t standard) {
    meter(2, MeterType.packets) leaving;
    apply { if (hdr.base.which == 4) leaving.execute_meter(hdr.base.index, hdr.base.colour); }
}
control C(inout headers hdr, inout metadata meta) { apply { } }
control D(packet_out packet, in headers hdr) { apply { packet.emit(hdr.base); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;

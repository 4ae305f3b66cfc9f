// Tables of all kinds of keys and widths, for what the runtime writes from the wire format and what it leaves alone.
// wire.json and wire.p4info.txtpb are compiled from it:
//   p4c-bm2-ss --std p4-16 --p4runtime-files wire.p4info.txtpb -o wire.json wire.p4
#include <core.p4>
#include <v1model.p4>

header fields_t {
    bit<4>   nibble;
    bit<12>  twelve;
    bit<32>  address;
    bit<48>  mac;
    bit<128> long;
    bit<200> huge;
}

struct headers { fields_t f; }
struct metadata { bit<9> port; }

parser MyParser(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.f);
        transition accept;
    }
}

control MyVerifyChecksum(inout headers hdr, inout metadata meta) { apply { } }

control MyIngress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) counts;
    direct_meter<bit<2>>(MeterType.packets) colours;
    @id(0x01000001) action drop() { mark_to_drop(std); }
    @id(0x01000002) action forward(bit<9> port) { std.egress_spec = port; }
    @id(0x01000003) action rewrite(bit<48> mac, bit<9> port, bit<4> nibble, bit<128> long, bit<200> huge) {
        hdr.f.mac = mac;
        hdr.f.nibble = nibble;
        hdr.f.long = long;
        hdr.f.huge = huge;
        std.egress_spec = port;
    }
    @id(0x01000004) action metered() { colours.read(hdr.f.twelve[1:0]); }

    @id(0x02000001) table small {
        key = { hdr.f.nibble: exact; hdr.f.isValid(): exact @name("valid"); }
        actions = { forward; drop; @defaultonly NoAction; }
        default_action = NoAction();
        counters = counts;
        size = 4;
    }
    @id(0x02000002) table routes {
        key = { hdr.f.address: lpm; hdr.f.nibble: exact; }
        actions = { @tableonly rewrite; drop; }
        default_action = drop();
    }
    @id(0x02000003) table filters {
        key = { hdr.f.twelve: ternary; hdr.f.mac: optional; hdr.f.address: lpm; }
        actions = { forward; rewrite; NoAction; }
    }
    @id(0x02000004) table wide {
        key = { hdr.f.huge: ternary; hdr.f.long: exact; }
        actions = { forward; rewrite; NoAction; }
    }
    @id(0x02000005) table ranges {
        key = { hdr.f.twelve: range; hdr.f.nibble: exact; }
        actions = { forward; NoAction; }
    }
    @id(0x02000006) table some_bits {
        key = { hdr.f.address & 0xff00: ternary @name("address"); hdr.f.mac & 0xf: exact @name("mac"); }
        actions = { forward; NoAction; }
    }
    @id(0x02000007) table with_meter {
        key = { hdr.f.nibble: exact; }
        actions = { metered; NoAction; }
        meters = colours;
    }
    @id(0x02000008) table timed {
        key = { hdr.f.nibble: exact; }
        actions = { forward; NoAction; }
        support_timeout = true;
    }
    apply {
        small.apply();
        routes.apply();
        filters.apply();
        wide.apply();
        ranges.apply();
        some_bits.apply();
        with_meter.apply();
        timed.apply();
    }
}

control MyEgress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) { apply { } }
control MyComputeChecksum(inout headers hdr, inout metadata meta) { apply { } }
control MyDeparser(packet_out packet, in headers hdr) { apply { packet.emit(hdr.f); } }

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;

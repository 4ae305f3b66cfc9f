// The program of the P4Runtime tests: one table of each kind, counters, registers, packet I/O.
// demo.json and demo.p4info.txtpb are compiled from it:
//   p4c-bm2-ss --std p4-16 --p4runtime-files demo.p4info.txtpb -o demo.json demo.p4
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

@controller_header("packet_in") @id(0x04000001)
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out") @id(0x04000002)
header packet_out_t {
    bit<9> egress_port;
    bit<7> reason;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header demo_t {
    bit<32> address;
    bit<16> protocol;
    bit<16> port;
    bit<8>  class;
}

struct headers {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   eth;
    demo_t       demo;
}

struct metadata { }

parser MyParser(packet_in packet, out headers hdr, inout metadata meta, inout standard_metadata_t std) {
    state start {
        transition select(std.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.eth);
        transition select(hdr.eth.type) {
            0x88B6: parse_demo;
            default: accept;
        }
    }
    state parse_demo {
        packet.extract(hdr.demo);
        transition accept;
    }
}

control MyVerifyChecksum(inout headers hdr, inout metadata meta) {
    apply { }
}

control MyIngress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    @id(0x12000001) counter(8, CounterType.packets_and_bytes) verdicts;
    @id(0x13000001) direct_counter(CounterType.packets_and_bytes) exact_counter;
    @id(0x13000002) direct_counter(CounterType.packets_and_bytes) acl_counter;
    @id(0x13000003) direct_counter(CounterType.packets_and_bytes) const_counter;
    @id(0x16000001) register<bit<32>>(4) sums;
    @id(0x16000002) register<int<12>>(2) signed;

    @id(0x01000002) action drop() {
        mark_to_drop(std);
    }
    @id(0x01000003) action forward(bit<9> port) {
        std.egress_spec = port;
    }
    @id(0x01000004) action route(bit<48> mac, bit<9> port) {
        hdr.eth.dst = mac;
        std.egress_spec = port;
    }
    @id(0x01000005) action replicate(bit<16> group) {
        std.mcast_grp = group;
    }
    @id(0x01000006) action copy(bit<32> session) {
        clone(CloneType.I2E, session);
    }

    @id(0x02000001) table exact_table {
        key = { hdr.eth.dst: exact; std.ingress_port: exact @name("standard_metadata.ingress_port"); }
        actions = { forward; drop; @defaultonly NoAction; }
        default_action = NoAction();
        counters = exact_counter;
        size = 64;
    }
    @id(0x02000002) table lpm_table {
        key = { hdr.demo.address: lpm @name("hdr.ipv4.dst"); }
        actions = { @tableonly route; drop; }
        default_action = drop();
    }
    @id(0x02000003) table acl {
        key = {
            hdr.demo.protocol: ternary @name("hdr.ipv4.protocol");
            hdr.demo.port: range @name("meta.port");
            hdr.demo.class: optional @name("meta.class");
            hdr.demo.isValid(): exact @name("hdr.ipv4.valid");
        }
        actions = { forward; drop; replicate; NoAction; }
        default_action = NoAction();
        counters = acl_counter;
    }
    @id(0x02000004) table const_table {
        key = { hdr.eth.type: exact; }
        actions = { forward; NoAction; }
        const default_action = NoAction();
        counters = const_counter;
        const entries = {
            0x0800: forward(3);
        }
    }
    @id(0x02000005) table keyless {
        actions = { forward; copy; NoAction; }
        default_action = NoAction();
    }

    apply {
        if (hdr.packet_out.isValid()) {
            std.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            verdicts.count(7);
        } else {
            std.egress_spec = 511;
            const_table.apply();
            exact_table.apply();
            if (hdr.demo.isValid()) {
                lpm_table.apply();
                bit<32> sum;
                sums.read(sum, 0);
                sums.write(0, sum + (bit<32>)hdr.demo.port);
                signed.write(1, -12s1);
            }
            acl.apply();
            keyless.apply();
            verdicts.count(1);
        }
    }
}

control MyEgress(inout headers hdr, inout metadata meta, inout standard_metadata_t std) {
    apply {
        if (std.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = std.ingress_port;
            hdr.packet_in.reason = (bit<7>)std.instance_type;
        }
    }
}

control MyComputeChecksum(inout headers hdr, inout metadata meta) {
    apply { }
}

control MyDeparser(packet_out packet, in headers hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.eth);
        packet.emit(hdr.demo);
    }
}

V1Switch(MyParser(), MyVerifyChecksum(), MyIngress(), MyEgress(), MyComputeChecksum(), MyDeparser()) main;

// An L2/L3 switch with most of what v1model offers: parser with VLAN and a masked select, LPM routes with ECMP by hash,
// a ternary ACL with counters, TTL and checksums, multicast, clones to the CPU, packet-in and packet-out headers,
// resubmit, recirculate, truncate and a range table.
#include <core.p4>
#include <v1model.p4>

#define CPU_PORT 500

typedef bit<48> mac_t;
typedef bit<32> ipv4_address_t;
typedef bit<9> port_t;

@controller_header("packet_in")
header packet_in_t {
    port_t ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    port_t egress_port;
    bit<7> pad;
}

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ether_type;
}

header vlan_t {
    bit<3> priority;
    bit<1> drop_eligible;
    bit<12> id;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> words;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_address_t source;
    ipv4_address_t destination;
}

header ports_t {
    bit<16> source;
    bit<16> destination;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    vlan_t vlan;
    ipv4_t ipv4;
    ports_t ports;
}

struct metadata_t {
    bit<16> group;
    bit<16> choice;
    bit<8> clone_reason;
    @field_list(1)
    bit<7> reason;
    @field_list(1)
    port_t ingress_port;
    @field_list(2)
    bit<8> passes;
    bit<1> to_cpu;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            0x8100: parse_vlan;
            0x0800: parse_ipv4;
            default: accept;
        }
    }
    state parse_vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.id, hdr.vlan.ether_type) {
            (0x000 &&& 0xf00, 0x0800): parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4, error.ParserInvalidArgument);
        transition select(hdr.ipv4.words, hdr.ipv4.fragment, hdr.ipv4.protocol, packet.lookahead<bit<16>>()) {
            (5, 0, 6, _): parse_ports;
            (5, 0, 17, 0 &&& 0x8000): parse_ports;
            default: accept;
        }
    }
    state parse_ports {
        packet.extract(hdr.ports);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.words == 5,
            { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length, hdr.ipv4.identification,
              hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
              hdr.ipv4.destination }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) acl_counter;
    counter(512, CounterType.packets_and_bytes) port_counter;
    register<bit<48>>(512) last_source;

    action drop() {
        mark_to_drop(standard_metadata);
    }
    action forward(port_t port) {
        standard_metadata.egress_spec = port;
    }
    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }
    table switching {
        key = { hdr.ethernet.destination: exact; hdr.vlan.isValid(): exact; }
        actions = { forward; flood; drop; NoAction; }
        default_action = NoAction();
        size = 4096;
    }

    action route(mac_t source, mac_t destination, port_t port) {
        hdr.ethernet.source = source;
        hdr.ethernet.destination = destination;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        standard_metadata.egress_spec = port;
    }
    action balance(bit<16> group, bit<16> members) {
        meta.group = group;
        hash(meta.choice, HashAlgorithm.crc16, 16w0,
             { hdr.ipv4.source, hdr.ipv4.destination, hdr.ipv4.protocol },
             members);
    }
    table routes {
        key = { hdr.ipv4.destination: lpm; }
        actions = { route; balance; drop; }
        default_action = drop();
        size = 1024;
    }
    table members {
        key = { meta.group: exact; meta.choice: exact; }
        actions = { route; drop; }
        default_action = drop();
        size = 1024;
    }

    action deny() {
        mark_to_drop(standard_metadata);
        exit;
    }
    action copy_to_cpu(bit<7> reason) {
        meta.reason = reason;
        meta.ingress_port = standard_metadata.ingress_port;
        clone_preserving_field_list(CloneType.I2E, 7, 1);
    }
    action punt(bit<7> reason) {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = standard_metadata.ingress_port;
        hdr.packet_in.reason = reason;
        standard_metadata.egress_spec = CPU_PORT;
    }
    action again() {
        meta.passes = meta.passes + 1;
        resubmit_preserving_field_list(2);
    }
    action cut(bit<32> length) {
        truncate(length);
    }
    table acl {
        key = {
            hdr.ipv4.source: ternary;
            hdr.ipv4.protocol: ternary;
            hdr.ports.destination: range;
            standard_metadata.ingress_port: optional;
            meta.passes: ternary;
        }
        actions = { deny; copy_to_cpu; punt; again; cut; NoAction; }
        default_action = NoAction();
        counters = acl_counter;
        size = 512;
    }

    action classify(bit<6> dscp) {
        hdr.ipv4.dscp = dscp;
    }
    table classes {
        key = { hdr.ipv4.protocol: exact; hdr.ipv4.ttl: ternary; }
        actions = { classify; NoAction; }
        const default_action = NoAction();
        const entries = {
            (17, 0x80 &&& 0x80): classify(10);
            (17, _): classify(20);
            (6, 0x00 &&& 0x01): classify(30);
        }
    }

    apply {
        port_counter.count((bit<32>)standard_metadata.ingress_port);
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            exit;
        }
        last_source.write((bit<32>)standard_metadata.ingress_port, hdr.ethernet.source);
        if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error == 1) {
            drop();
            exit;
        }
        if (!switching.apply().hit) {
            if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                switch (routes.apply().action_run) {
                    balance: { members.apply(); }
                }
                classes.apply();
            } else {
                drop();
            }
        }
        acl.apply();
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set_vlan(bit<12> id) {
        hdr.vlan.setValid();
        hdr.vlan.priority = 0;
        hdr.vlan.drop_eligible = 0;
        hdr.vlan.id = id;
        hdr.vlan.ether_type = hdr.ethernet.ether_type;
        hdr.ethernet.ether_type = 0x8100;
    }
    action strip_vlan() {
        hdr.ethernet.ether_type = hdr.vlan.ether_type;
        hdr.vlan.setInvalid();
    }
    action prune() {
        mark_to_drop(standard_metadata);
    }
    action mirror() {
        clone_preserving_field_list(CloneType.E2E, 8, 1);
    }
    action loop() {
        strip_vlan();
        recirculate_preserving_field_list(2);
    }
    table ports {
        key = { standard_metadata.egress_port: exact; standard_metadata.egress_rid: ternary; hdr.vlan.isValid(): exact; }
        actions = { set_vlan; strip_vlan; prune; mirror; loop; NoAction; }
        default_action = NoAction();
        size = 64;
    }
    apply {
        if (standard_metadata.instance_type == 1) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.ingress_port;
            hdr.packet_in.reason = meta.reason;
        } else if (standard_metadata.instance_type != 2) {
            ports.apply();
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.words == 5,
            { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.length, hdr.ipv4.identification,
              hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
              hdr.ipv4.destination }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ports);
    }
}

V1Switch(Parse(), Verify(), MyIngress(), MyEgress(), Update(), Deparse()) main;

// Headers and metadata.
//
//   ethernet | ipv4 | udp | inart (24 bytes) | values (INART_VALUES x 32 bits)      aggregation
//   ethernet | ipv4 | payload                                                       ordinary traffic
//
// inart_t and all constants come from include/constants.p4, which is generated from protocol.json.
// Limit: every aggregation packet has exactly INART_VALUES values; IPv4 options are not supported.
#ifndef INART_HEADERS_P4
#define INART_HEADERS_P4

typedef bit<9> port_t;
typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;
typedef bit<16> group_t;        // a multicast group of the packet replication engine
typedef bit<32> label_t;        // what switches forward an aggregation packet by, like an MPLS label
typedef bit<32> epoch_t;        // a job's plan and membership; two epochs never share a sum
typedef bit<64> flows_t;        // a bit for each flow into an aggregation point
typedef bit<64> owner_t;        // the chunk that owns a slot: epoch ++ sequence
typedef bit<32> slot_t;         // an index into the registers
typedef bit<8> verdict_t;       // an index into verdict_counter

// Field names are those of the Open-Tofino examples and the RFCs.
header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;             // the header's length in words of 32 bits
    bit<8> diffserv;
    bit<16> total_len;      // bytes, this header included
    bit<16> identification;
    bit<3> flags;
    bit<13> frag_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> hdr_checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> hdr_length;     // bytes, this header included
    bit<16> checksum;
}

#define INART_VALUE_FIELD(i) bit<32> value_##i;
header values_t {
    INART_EACH_VALUE(INART_VALUE_FIELD)
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    inart_t inart;
    values_t values;
}

const bit<3> IPV4_MORE_FRAGMENTS = 1;   // the bit of ipv4_t.flags that all fragments but the last have set

// How the values of the slot and those of the packet are combined: slots.p4 decides it, values.p4 does it.
enum bit<8> operation_t {
    NONE = 0,       // the packet leaves with its own values, or does not leave
    STORE = 1,      // slot = packet
    ADD = 2,        // slot = slot + packet
    ADD_SEND = 3,   // packet = slot + packet
    MAXIMUM = 4,    // slot = packet = max(slot, packet), signed
    SEND = 5        // packet = slot
}

struct metadata_t {
    bool ours;          // sent to our group, and not to a port that is not ours: it has a verdict
    verdict_t verdict;
    bool aggregate;     // label_table chose aggregate; its parameters follow
    slot_t slot_base;
    slot_t slot_mask;
    flows_t flow;
    flows_t everyone;
    label_t next_label;
    label_t partial_label;
    port_t port;
    slot_t slot;
    operation_t operation;
}

#endif

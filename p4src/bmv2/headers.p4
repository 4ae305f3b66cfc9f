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
typedef bit<48> mac_t;

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4> version;
    bit<4> header_words;
    bit<8> service;
    bit<16> total_length;
    bit<16> identification;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_t {
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> length;
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

// What the slot's values and the packet's have to do with each other; decided in slots.p4, done in values.p4.
enum bit<8> operation_t {
    NONE = 0,       // the packet's values are what leaves, or the packet does not leave
    STORE = 1,      // slot = packet
    ADD = 2,        // slot = slot + packet
    ADD_SEND = 3,   // packet = slot + packet
    MAXIMUM = 4,    // slot = packet = max(slot, packet), signed
    SEND = 5        // packet = slot
}

struct metadata_t {
    bool ours;          // UDP to our group, and no port that is not ours: it has a verdict
    bit<8> verdict;
    bool aggregate;     // label_table chose aggregate; its parameters follow
    bit<32> slot_base;
    bit<32> slot_mask;
    bit<64> flow;
    bit<64> everyone;
    bit<32> next_label;
    bit<32> partial_label;
    port_t port;
    bit<32> slot;
    operation_t operation;
}

#endif

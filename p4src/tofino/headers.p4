// Headers and metadata.
//
//   ethernet | outer (IPv4 and UDP) | inart (24 bytes) | first | second (INART_VALUES / 2 x 32 bits each)    aggregation
//   ethernet | ipv4 | payload                                                                           ordinary traffic
//
// inart_t and all constants come from include/constants.p4, which is generated from protocol.json. The values are two
// headers because a stateful ALU holds pairs and gives out one word a pass: the first half leaves with the packet that
// completes a sum, the second half is fetched when that packet comes round again. outer is not ipv4: the deparser computes
// the checksum of ipv4 anew, and outer leaves as it came, but for the UDP checksum of what was for a slot.
// Limit: every aggregation packet has INART_VALUES values; what follows them is not looked at. No IPv4 options.
#ifndef INART_HEADERS_P4
#define INART_HEADERS_P4

typedef bit<9> port_t;
typedef bit<48> mac_t;
typedef bit<16> slot_t;

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ether_type;
}

#define INART_VALUE_FIELD(i) bit<32> value_##i;
header half_t {
    INART_EACH_PAIR(INART_VALUE_FIELD)
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

header outer_t {
    bit<4> version;
    bit<4> header_words;
    bit<8> service;
    bit<16> total_length;
    bit<16> identification;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> ipv4_checksum;
    bit<32> source;
    bit<32> destination;
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> udp_length;
    bit<16> udp_checksum;
}

// What the parser finds behind a frame's values: of a whole frame its check sequence, which leaves in its place.
header tail_t {
    bit<32> check_sequence;
}

#ifdef INART_FOLD
// What a packet takes along from one pass to the next, between its header and its values (fold.p4, fold_flows.p4). Of 6 bytes:
// with 10, byte 173 of a header came from a place in the deparser that early chips of Tofino 2 (A0) get wrong.
header fold_t {
    bit<8> step;
    bit<8> operation;
#ifdef INART_ONE_PASS
    bit<32> ticket;
#else
    bit<32> held;
#endif
}

// The version of such a packet, which no packet of a host has.
const bit<8> FOLDED_VERSION = 0x80 | INART_VERSION;

// Which pass of a packet this is.
const bit<8> STEP_FIRST = 0;        // it comes from a host or another switch
const bit<8> STEP_STAYS = 1;        // its second half is added, and that is all
const bit<8> STEP_LEAVES = 2;       // its second half is added, and then it leaves
const bit<8> STEP_READ = 3;         // it has the second half of a sum and fetches the first (Tofino 1: the rest of it)
#ifndef INART_ONE_PASS
const bit<8> STEP_FETCHES = 4;      // it has half of the first and of the second half, and fetches the second's rest
#endif
#endif

struct headers_t {
    ethernet_t ethernet;
    outer_t outer;
    inart_t inart;
#ifdef INART_FOLD
    fold_t fold;
#ifndef INART_ONE_PASS
    half_t carried;     // what a sum has of its first half while the second is added
#endif
#endif
    half_t first;
    half_t second;
    tail_t tail;
    ipv4_t ipv4;
}

// What label.p4 says that the packet is.
const bit<8> KIND_NONE = 0;         // not for a slot
const bit<8> KIND_FLOW = 1;         // a contribution
const bit<8> KIND_READ = 2;         // a sum of this switch that comes round for its second half
const bit<8> KIND_REFUSED = 3;

// How a packet's sequence compares with the slot's.
const bit<8> AGE_OLDER = 0;         // 0: what a register action gives that sets no other
const bit<8> AGE_SAME = 1;
const bit<8> AGE_NEWER = 2;
const bit<8> AGE_NONE = 3;          // not compared

// What is to be done, as slots.p4 has decided.
const bit<8> DO_NOTHING = 0;        // not for a slot
const bit<8> DO_REFUSE = 1;
const bit<8> DO_PASS = 2;           // stale: send on with its own bits and values
const bit<8> DO_STORE = 3;          // the slot's first contribution
const bit<8> DO_ADD = 4;
const bit<8> DO_MAXIMUM = 5;
const bit<8> DO_FLUSH_FIRST = 6;    // a resend into an empty slot: nothing to merge
const bit<8> DO_FLUSH_KNOWN = 7;    // a resend of what is in the slot
const bit<8> DO_DUPLICATE = 8;
const bit<8> DO_READ = 9;           // fetch the second half and send on
const bit<8> DO_FORGET = 10;        // the slot was taken over before the second half was fetched

// The mark in a slot's flows that says: closed for this chunk.
const bit<32> CLOSED = 0x80000000;

struct metadata_t {
    bool ours;          // UDP to our group, and no port that is not ours: it has a verdict
    bit<8> verdict;
    bit<8> kind;
    bit<8> sequence_age;
    bit<8> operation;
    slot_t slot_base;
    slot_t slot_offset;
    slot_t slot;
    bit<32> flow;       // this flow's bit at this aggregation point
    bit<32> claim;      // the same, with CLOSED for a resend
    bit<32> everyone;   // the bits of all flows
    bit<32> generation; // how often the slot's epoch has changed; 0: it is another than the packet's (and changes now)
    bit<32> held;       // the flows that the slot had before this packet
    bit<32> left;       // the flows that are missing after it (0: complete)
    bit<32> next_label; // what a complete sum leaves with
#ifdef INART_SECOND_PASS
    port_t loopback;
#endif
#ifdef INART_FOLD
    bit<8> step;
#ifdef INART_ONE_PASS
    bit<32> ticket;     // how often the values of the slot's half have changed
    bit<32> previous;   // the one before the packet's
    bit<32> joined;     // whether the second half is that of the same sums as the first
#else
    bit<8> owned;       // whether the second half is of the packet's chunk
    bit<8> joined;      // and of the flows that the first had before
#endif
    slot_t cell;        // where the pass has its half of the values
#endif
    bool routable;      // an IPv4 header without options, and TTL left
    bool checksum_error;
}

#endif

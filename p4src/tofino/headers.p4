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
typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;
typedef bit<16> group_t;        // a multicast group of the packet replication engine
typedef bit<32> label_t;        // what an aggregation packet is switched by, as MPLS packets are
typedef bit<32> epoch_t;        // a job's plan and membership; two epochs never share a sum
typedef bit<32> sequence_t;     // which chunk of a tree
typedef bit<32> flows_t;        // a bit for each flow into an aggregation point; the highest: the slot is closed
typedef bit<32> generation_t;   // how often a slot's epoch has changed; 0: it is another than the packet's
typedef bit<16> slot_t;         // an index into the registers
typedef bit<8> verdict_t;       // an index into verdict_counter
typedef bit<8> operation_t;     // what is to be done: one of DO_...
typedef bit<8> step_t;          // which pass of a packet this is: one of STEP_...
typedef int<32> value_t;

// Names are those of the Open-Tofino examples and the RFCs.
header ethernet_t {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16> ether_type;
}

#define INART_VALUE_FIELD(i) bit<32> value_##i;
header half_t {
    INART_EACH_PAIR(INART_VALUE_FIELD)
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;                     // the header's length in words of 32 bits
    bit<8> diffserv;
    bit<16> total_len;              // bytes, this header included
    bit<16> identification;
    bit<16> flags_frag_offset;      // flags and frag_offset in one: the parser compares them together
    bit<8> ttl;
    bit<8> protocol;
    bit<16> hdr_checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

// IPv4 and UDP of an aggregation packet.
header outer_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> diffserv;
    bit<16> total_len;
    bit<16> identification;
    bit<16> flags_frag_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> hdr_checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> hdr_length;             // of UDP: bytes, its header included
    bit<16> checksum;               // of UDP
}

// What the parser finds behind a frame's values: of a whole frame its check sequence, which leaves in its place.
header tail_t {
    bit<32> check_sequence;
}

#ifdef INART_FOLD
// What a packet takes along from one pass to the next, between its header and its values (fold.p4, fold_flows.p4). Of 6 bytes:
// with 10, byte 173 of a header came from a place in the deparser that early chips of Tofino 2 (A0) get wrong.
header fold_t {
    step_t step;
    operation_t operation;
#ifdef INART_ONE_PASS
    bit<32> ticket;
#else
    flows_t held;
#endif
}

// The version of such a packet, which no packet of a host has.
const bit<8> FOLDED_VERSION = 0x80 | INART_VERSION;

// Which pass of a packet this is.
const step_t STEP_FIRST = 0;        // it comes from a host or another switch
const step_t STEP_STAYS = 1;        // its second half is added, and that is all
const step_t STEP_LEAVES = 2;       // its second half is added, and then it leaves
const step_t STEP_READ = 3;         // it has the second half of a sum and fetches the first (Tofino 1: the rest of it)
#ifndef INART_ONE_PASS
const step_t STEP_FETCHES = 4;      // it has half of the first and of the second half, and fetches the second's rest
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
const operation_t DO_NOTHING = 0;        // not for a slot
const operation_t DO_REFUSE = 1;
const operation_t DO_PASS = 2;           // stale: send on with its own bits and values
const operation_t DO_STORE = 3;          // the slot's first contribution
const operation_t DO_ADD = 4;
const operation_t DO_MAXIMUM = 5;
const operation_t DO_FLUSH_FIRST = 6;    // a resend into an empty slot: nothing to merge
const operation_t DO_FLUSH_KNOWN = 7;    // a resend of what is in the slot
const operation_t DO_DUPLICATE = 8;
const operation_t DO_READ = 9;           // fetch the second half and send on
const operation_t DO_FORGET = 10;        // the slot was taken over before the second half was fetched

// The mark in a slot's flows that says: closed for this chunk.
const flows_t CLOSED = 0x80000000;

struct metadata_t {
    bool ours;          // UDP to our group, and no port that is not ours: it has a verdict
    verdict_t verdict;
    bit<8> kind;
    bit<8> sequence_age;
    operation_t operation;
    slot_t slot_base;
    slot_t slot_offset;
    slot_t slot;
    flows_t flow;       // this flow's bit at this aggregation point
    flows_t claim;      // the same, with CLOSED for a resend
    flows_t everyone;   // the bits of all flows
    generation_t generation; // of the slot; 0: its epoch is another than the packet's (and changes now)
    flows_t held;       // the flows that the slot had before this packet
    flows_t left;       // the flows that are missing after it (0: complete)
    label_t next_label; // what a complete sum leaves with
#ifdef INART_SECOND_PASS
    port_t loopback;
#endif
#ifdef INART_FOLD
    step_t step;
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

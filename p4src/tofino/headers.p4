// Headers and metadata.
//
//   ethernet | outer (IPv4 and UDP) | inart (24 bytes) | first | second (INART_VALUES / 2 x 32 bits each)   aggregation
//   ethernet | ipv4 | payload                                                                          ordinary traffic
//
// inart_t and all constants come from include/constants.p4, which is generated from protocol.json.
// The values are two headers because a stateful ALU's cell has two words, one of each half, and the ALU of Tofino 1
// gives out one word in a pass: the packet that completes a sum gets the first half at once and the second half when it
// comes round again. outer and ipv4 are two headers because the deparser computes the checksum of ipv4 anew, while
// outer leaves as it came, but for the UDP checksum of an aggregated packet.
// Limits: every aggregation packet has INART_VALUES values, and the switch does not look at what follows them. IPv4
// options are not supported.
#ifndef INART_HEADERS_P4
#define INART_HEADERS_P4

typedef bit<9> port_t;
typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;
typedef bit<16> group_t;        // a multicast group of the packet replication engine
typedef bit<32> label_t;        // what switches forward an aggregation packet by, like an MPLS label
typedef bit<32> epoch_t;        // a job's plan and membership; two epochs never share a sum
typedef bit<32> sequence_t;     // the number of a chunk in its tree
typedef bit<32> flows_t;        // a bit for each flow into an aggregation point; the highest bit closes a slot
typedef bit<32> generation_t;   // how often a slot's epoch has changed; 0 says that it is not the packet's
typedef bit<16> slot_t;         // an index into the registers
typedef bit<8> verdict_t;       // an index into verdict_counter
typedef bit<8> operation_t;     // what is done with a packet: one of DO_...
typedef bit<8> step_t;          // which pass of a packet this is: one of STEP_...
typedef int<32> value_t;

// Field names are those of the Open-Tofino examples and the RFCs.
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
    bit<16> flags_frag_offset;      // flags and frag_offset in one field, because the parser compares them together
    bit<8> ttl;
    bit<8> protocol;
    bit<16> hdr_checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

// The IPv4 and UDP headers of an aggregation packet. hdr_length and checksum are those of UDP; the length is in bytes,
// its header included.
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
    bit<16> hdr_length;
    bit<16> checksum;
}

// The four bytes behind a frame's values. Where the frame is whole, they are its check sequence, which is emitted
// behind the values again.
header tail_t {
    bit<32> check_sequence;
}

#ifdef INART_FOLD
// What a packet takes along from one pass to the next, between its header and its values (fold.p4). The header has 6
// bytes: with 10, byte 173 of the packet's headers came from a place in the deparser that early chips of
// Tofino 2 (A0) get wrong.
header fold_t {
    step_t step;
    operation_t operation;
    bit<32> ticket;
}

// The version of a packet on its way from one pass to the next; no host sends it.
const bit<8> FOLDED_VERSION = 0x80 | INART_VERSION;

// The passes of a packet.
const step_t STEP_FIRST = 0;        // the packet comes from a host or another switch
const step_t STEP_STAYS = 1;        // its second half is added, and the packet ends
const step_t STEP_LEAVES = 2;       // its second half is added, and the sum is going to leave
const step_t STEP_READ = 3;         // the first half of a sum is read
#endif

struct headers_t {
    ethernet_t ethernet;
    outer_t outer;
    inart_t inart;
#ifdef INART_FOLD
    fold_t fold;
#endif
    half_t first;
    half_t second;
    tail_t tail;
    ipv4_t ipv4;
}

// The kinds of packets, which label.p4 tells apart.
const bit<8> KIND_NONE = 0;         // a packet that is for no slot
const bit<8> KIND_FLOW = 1;         // a contribution
const bit<8> KIND_READ = 2;         // a sum of this switch that comes round for its second half
const bit<8> KIND_REFUSED = 3;      // a packet that no slot takes, like a result (slots.p4)

// How a packet's sequence compares with the slot's.
const bit<8> AGE_OLDER = 0;         // 0, because a register action that sets nothing gives 0
const bit<8> AGE_SAME = 1;
const bit<8> AGE_NEWER = 2;
const bit<8> AGE_NONE = 3;          // the sequences were not compared

// What is done with a packet; slots.p4 decides it.
const operation_t DO_NOTHING = 0;        // the packet is for no slot
const operation_t DO_REFUSE = 1;
const operation_t DO_PASS = 2;           // a stale packet is sent on with its own flow and values
const operation_t DO_STORE = 3;          // the slot's first contribution is stored
const operation_t DO_ADD = 4;
const operation_t DO_MAXIMUM = 5;
const operation_t DO_FLUSH_FIRST = 6;    // a resend meets an empty slot, with which there is nothing to merge
const operation_t DO_FLUSH_KNOWN = 7;    // a resend of a contribution that is in the slot
const operation_t DO_DUPLICATE = 8;
const operation_t DO_READ = 9;           // the rest of the sum is read
const operation_t DO_FORGET = 10;        // the slot was taken over before the rest of the sum was read

// The bit in a slot's flows that closes the slot for its chunk: it takes no more contributions.
const flows_t CLOSED = 0x80000000;

struct metadata_t {
    bool ours;          // UDP to our group, and not to a port that is not ours: it has a verdict
    verdict_t verdict;
    bit<8> kind;
    bit<8> sequence_age;
    operation_t operation;
    slot_t slot_base;
    slot_t slot_offset;
    slot_t slot;
    flows_t flow;       // the bit of the packet's flow at this aggregation point
    flows_t claim;      // flow, and CLOSED too for a resend
    flows_t everyone;   // the bits of all flows at this aggregation point
    generation_t generation;    // the slot's; 0 where its epoch is not the packet's, which it becomes then
    flows_t held;       // the flows that the slot had before this packet
    flows_t left;       // the flows that are missing after this packet; 0 says that the sum is complete
    label_t next_label; // the label with which a complete sum leaves
#ifdef INART_SECOND_PASS
    port_t loopback;
#endif
#ifdef INART_FOLD
    step_t step;
    bit<32> ticket;     // the number of changes of the first half's values (fold.p4)
    bit<32> previous;   // the ticket before the packet's
    bit<32> joined;     // 1 if the second half has the same contributions as the first
    slot_t cell;        // the index of the cells with the half of the values that this pass works on
#endif
    bool routable;      // the IPv4 header has no options, and a TTL above 1
    bool checksum_error;
}

#endif

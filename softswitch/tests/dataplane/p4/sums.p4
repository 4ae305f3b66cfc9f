// Sums of many values per packet in registers: N arrays indexed alike, as an aggregation program has them.
//
// ethernet | operation, index | N 32-bit values. Operation 0 stores, 1 adds and answers with the sums, 2 takes the
// maximum (signed), 3 reads, 4 adds with saturation in a register of its own per value.
#include <core.p4>
#include <v1model.p4>

#ifndef N16
#define N16 2
#endif
#if N16 == 2
#define EACH_16(F) F(0) F(1)
#elif N16 == 16
#define EACH_16(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(a) F(b) F(c) F(d) F(e) F(f)
#endif
#define EACH_IN(F, h) \
    F(h##0) F(h##1) F(h##2) F(h##3) F(h##4) F(h##5) F(h##6) F(h##7) F(h##8) F(h##9) F(h##a) F(h##b) F(h##c) F(h##d) \
    F(h##e) F(h##f)

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

header command_t {
    bit<8> operation;
    bit<24> index;
}

#define FIELD(i) bit<32> v##i;
#define FIELDS(h) EACH_IN(FIELD, h)
header values_t {
    EACH_16(FIELDS)
}

struct headers_t {
    ethernet_t ethernet;
    command_t command;
    values_t values;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.command);
        packet.extract(hdr.values);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
#define ARRAY(i) register<bit<32>>(1024) sum##i; register<bit<32>>(1024) bounded##i;
#define ARRAYS(h) EACH_IN(ARRAY, h)
    EACH_16(ARRAYS)
    bit<32> held;
    int<32> limited;    // bmv2 forgets the sign of what it reads from a register<int<32>>, so these are bit<32>
    bit<32> index = (bit<32>)hdr.command.index;

#define STORE(i) sum##i.write(index, hdr.values.v##i);
#define STORES(h) EACH_IN(STORE, h)
    action store() {
        EACH_16(STORES)
    }
#define ADD(i) sum##i.read(held, index); held = held + hdr.values.v##i; sum##i.write(index, held); \
    hdr.values.v##i = held;
#define ADDS(h) EACH_IN(ADD, h)
    action add() {
        EACH_16(ADDS)
    }
#define MAXIMUM(i) sum##i.read(held, index); \
    if ((int<32>)held > (int<32>)hdr.values.v##i) { hdr.values.v##i = held; } sum##i.write(index, hdr.values.v##i);
#define MAXIMA(h) EACH_IN(MAXIMUM, h)
    action maximum() {
        EACH_16(MAXIMA)
    }
#define FETCH(i) sum##i.read(hdr.values.v##i, index);
#define FETCHES(h) EACH_IN(FETCH, h)
    action fetch() {
        EACH_16(FETCHES)
    }
#define BOUND(i) bounded##i.read(held, index); limited = (int<32>)held |+| (int<32>)hdr.values.v##i; \
    bounded##i.write(index, (bit<32>)limited); hdr.values.v##i = (bit<32>)limited;
#define BOUNDS(h) EACH_IN(BOUND, h)
    action bound() {
        EACH_16(BOUNDS)
    }
    action drop() {
        mark_to_drop(standard_metadata);
    }
    table operations {
        key = { hdr.command.operation: exact; }
        actions = { store; add; maximum; fetch; bound; drop; }
        const default_action = drop();
        const entries = {
            0: store();
            1: add();
            2: maximum();
            3: fetch();
            4: bound();
        }
    }
    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        if (hdr.values.isValid()) {
            operations.apply();
        } else {
            drop();
        }
    }
}

control MyEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Parse(), Verify(), MyIngress(), MyEgress(), Update(), Deparse()) main;

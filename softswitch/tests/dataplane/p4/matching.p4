// Every kind of table, on keys that are given in the frame; each table's answer is written behind them.
#include <core.p4>
#include <v1model.p4>

header keys_t {
    bit<32> a;
    bit<9> b;
    bit<7> c;
    bit<128> d;
    bit<64> e;
}

header answers_t {
    bit<16> exact_one;
    bit<16> exact_many;
    bit<16> prefix;
    bit<16> prefix_wide;
    bit<16> masked;
    bit<16> ranged;
    bit<16> hits;
    bit<128> parameter;
}

struct headers_t {
    keys_t keys;
    answers_t answers;
}

struct metadata_t {
    bit<16> answer;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.keys);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control MyIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) masked_counter;
    counter(8, CounterType.packets_and_bytes) hit_counter;

    action answer(bit<16> number) {
        meta.answer = number;
    }
    action wide(bit<128> parameter, bit<7> small, bit<16> number) {
        hdr.answers.parameter = parameter ^ (bit<128>)small;
        meta.answer = number;
    }
    table exact_one {
        key = { hdr.keys.a: exact; }
        actions = { answer; wide; NoAction; }
        default_action = NoAction();
        size = 4096;
    }
    table exact_many {
        key = { hdr.keys.b: exact; hdr.keys.d: exact; hdr.keys.c: exact; }
        actions = { answer; NoAction; }
        default_action = answer(9);
        size = 64;
    }
    table prefix {
        key = { hdr.keys.a: lpm; }
        actions = { answer; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table prefix_wide {
        key = { hdr.keys.c: exact; hdr.keys.d: lpm; }
        actions = { answer; NoAction; }
        default_action = NoAction();
        size = 256;
    }
    table masked {
        key = { hdr.keys.a: ternary; hdr.keys.e: ternary; hdr.keys.b: exact; hdr.keys.c: optional; }
        actions = { answer; NoAction; }
        default_action = NoAction();
        counters = masked_counter;
        size = 256;
    }
    table ranged {
        key = { hdr.keys.a: range; hdr.keys.b: range; hdr.keys.c: ternary; }
        actions = { answer; NoAction; }
        default_action = NoAction();
        size = 256;
    }

    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        hdr.answers.setValid();
        meta.answer = 0;
        if (exact_one.apply().hit) {
            hdr.answers.hits = hdr.answers.hits | 1;
            hit_counter.count(0);
        }
        hdr.answers.exact_one = meta.answer;
        meta.answer = 0;
        if (exact_many.apply().miss) {
            hit_counter.count((bit<32>)hdr.keys.b);
        } else {
            hdr.answers.hits = hdr.answers.hits | 2;
        }
        hdr.answers.exact_many = meta.answer;
        meta.answer = 0;
        switch (prefix.apply().action_run) {
            answer: { hdr.answers.hits = hdr.answers.hits | 4; }
            default: { hdr.answers.hits = hdr.answers.hits | 0x400; }
        }
        hdr.answers.prefix = meta.answer;
        meta.answer = 0;
        prefix_wide.apply();
        hdr.answers.prefix_wide = meta.answer;
        meta.answer = 0;
        masked.apply();
        hdr.answers.masked = meta.answer;
        meta.answer = 0;
        ranged.apply();
        hdr.answers.ranged = meta.answer;
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

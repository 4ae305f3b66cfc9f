// The verdict counters say what the switch did with each aggregation packet: one counter (packets, bytes) per verdict.
//
//   forwarded | replicated | absorbed | completed | duplicate | stale | flushed | refused | malformed | unknown
//
// Each aggregation packet, malformed ones included, is counted exactly once. Counters per flow are in label.p4.
//
// Two more counters (packets, bytes) per port count all other traffic, so that plans leave room for it: what came in,
// whatever became of it, and what was sent to one port. What goes to several ports, or is dropped, is counted for port
// 511, which is v1model's port for dropped packets.
#ifndef INART_COUNTERS_P4
#define INART_COUNTERS_P4

#define INART_PORTS 512

control Verdicts(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @name(".verdict_counter") @id(1)
    counter(INART_VERDICTS, CounterType.packets_and_bytes) verdict_counter;

    apply {
        verdict_counter.count((bit<32>)meta.verdict);
    }
}

control OtherReceived(in standard_metadata_t standard_metadata) {
    @name(".other_received") @id(2)
    counter(INART_PORTS, CounterType.packets_and_bytes) other_received;

    apply {
        other_received.count((bit<32>)standard_metadata.ingress_port);
    }
}

control OtherSent(in standard_metadata_t standard_metadata) {
    @name(".other_sent") @id(3)
    counter(INART_PORTS, CounterType.packets_and_bytes) other_sent;

    apply {
        other_sent.count((bit<32>)standard_metadata.egress_spec);
    }
}

#endif

// The verdict counters: what the switch did with each aggregation packet, one counter (packets, bytes) per verdict.
//
//   forwarded | replicated | absorbed | completed | duplicate | stale | flushed | refused | malformed | unknown
//
// Each aggregation packet, malformed ones too, is counted exactly once. Counters per flow are in label.p4.
#ifndef INART_COUNTERS_P4
#define INART_COUNTERS_P4

control Verdicts(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @name(".verdict_counter") @id(1)
    counter(INART_VERDICTS, CounterType.packets_and_bytes) verdict_counter;

    apply {
        verdict_counter.count((bit<32>)meta.verdict);
    }
}

#endif

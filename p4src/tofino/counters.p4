// The verdict counters say what the switch did with each aggregation packet: one counter (packets, bytes) per verdict.
//
//   forwarded | replicated | absorbed | completed | duplicate | stale | flushed | refused | malformed | unknown
//
// Each aggregation packet, malformed ones included, is counted exactly once, when it arrives on a port. A packet that
// goes round by the loopback port is not counted again: its verdict was known when it first arrived. If another chunk
// has taken over its slot meanwhile, the packet is dropped and counted by overtaken_counter.
// Counters per flow are in label.p4.
#ifndef INART_COUNTERS_P4
#define INART_COUNTERS_P4

control Verdicts(in metadata_t meta) {
    Counter<bit<64>, bit<8>>(INART_VERDICTS, CounterType_t.PACKETS_AND_BYTES) verdict_counter;

    action count() {
        verdict_counter.count(meta.verdict);
    }

#ifndef INART_SECOND_PASS
    apply {
        count();
    }
#else
    Counter<bit<64>, bit<8>>(1, CounterType_t.PACKETS_AND_BYTES) overtaken_counter;

    action count_overtaken() {
        overtaken_counter.count(0);
    }

#ifdef INART_FOLD
    table count_table {
        key = {
            meta.step: ternary;
            meta.operation: ternary;
        }
        actions = { count; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (STEP_FIRST, _): count();
            (_, DO_NOTHING): count();   // a malformed packet
            (_, DO_REFUSE): count();
        }
        size = 4;
    }

    apply {
        if (meta.operation == DO_FORGET) {
            count_overtaken();
        } else {
            count_table.apply();
        }
    }
#else
    apply {
        if (meta.operation == DO_FORGET) {
            count_overtaken();
        } else if (meta.operation != DO_READ) {
            count();
        }
    }
#endif
#endif
}

#endif

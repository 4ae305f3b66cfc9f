// What becomes of a packet for a slot, once slots.p4 knows what it did there and whether all flows are there now.
//
//   operation          nobody missing          somebody missing
//   DO_REFUSE          refused: drop           refused: drop
//   DO_PASS            stale: send             stale: send
//   DO_STORE           completed: send         absorbed: drop
//   DO_ADD, _MAXIMUM   completed: go round     absorbed: drop; a resend flushed: go round
//   DO_FLUSH_FIRST     completed: send         flushed: send
//   DO_FLUSH_KNOWN     stale: send             flushed: send
//   DO_DUPLICATE       stale: send             duplicate: drop; a partial sum stale: send
//   DO_READ            send                    send
//   DO_FORGET          drop                    drop
//
// Label, bitmap and port of what is sent were set before. To go round is to leave by the loopback port: what comes back has
// the first half of the sum and of its bitmap, and next_label, for which there is an entry on that port (label.p4).
#ifndef INART_FINISH_P4
#define INART_FINISH_P4

control Finish(inout headers_t hdr, inout metadata_t meta,
               inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
               inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action send(bit<8> verdict) {
        meta.verdict = verdict;
    }

    action drop(bit<8> verdict) {
        meta.verdict = verdict;
        ig_dprsr_md.drop_ctl = 1;
    }

#ifdef INART_ONE_PASS
    action go_round(bit<8> verdict) {
        meta.verdict = verdict;
    }
#else
    action go_round(bit<8> verdict) {
        meta.verdict = verdict;
        ig_tm_md.ucast_egress_port = meta.loopback;
    }
#endif

    table finish_table {
        key = {
            meta.operation: exact;
            meta.left: ternary;
            meta.kind: ternary;
            hdr.inart.flags: ternary;
        }
        actions = { send; drop; go_round; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (DO_REFUSE, _, _, _): drop(INART_VERDICT_REFUSED);
            (DO_PASS, _, _, _): send(INART_VERDICT_STALE);
            (DO_STORE, 0, _, _): send(INART_VERDICT_COMPLETED);
            (DO_STORE, _, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_ADD, 0, _, _): go_round(INART_VERDICT_COMPLETED);
            (DO_ADD, _, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND): go_round(INART_VERDICT_FLUSHED);
            (DO_ADD, _, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_MAXIMUM, 0, _, _): go_round(INART_VERDICT_COMPLETED);
            (DO_MAXIMUM, _, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND): go_round(INART_VERDICT_FLUSHED);
            (DO_MAXIMUM, _, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_FLUSH_FIRST, 0, _, _): send(INART_VERDICT_COMPLETED);
            (DO_FLUSH_FIRST, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_FLUSH_KNOWN, 0, _, _): send(INART_VERDICT_STALE);
            (DO_FLUSH_KNOWN, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_DUPLICATE, 0, _, _): send(INART_VERDICT_STALE);
            (DO_DUPLICATE, _, KIND_PARTIAL, _): send(INART_VERDICT_STALE);
            (DO_DUPLICATE, _, _, _): drop(INART_VERDICT_DUPLICATE);
            (DO_FORGET, _, _, _): drop(0);
        }
        size = 32;
    }

    apply {
        finish_table.apply();
    }
}

#endif

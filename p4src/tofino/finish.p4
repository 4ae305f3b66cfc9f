// The last step for a packet that aggregates: slots.p4 knows by now what it did in its slot (meta.operation) and which
// flows are still missing there (meta.left). Here the packet gets its verdict, and is sent, dropped or sent round.
//
//   operation          nobody missing                     somebody missing
//   DO_REFUSE          refused: drop                      refused: drop
//   DO_PASS            stale: send                        stale: send
//   DO_STORE           completed: send as complete        absorbed: drop
//   DO_ADD, _MAXIMUM   completed: go round as complete    absorbed: drop; a resend flushed: go round
//   DO_FLUSH_FIRST     completed: send as complete        flushed: send
//   DO_FLUSH_KNOWN     stale: send                        flushed: send
//   DO_DUPLICATE       stale: send                        duplicate: drop
//   DO_READ            send                               send
//   DO_FORGET          drop                               drop
//
// label.p4 and slots.p4 have set the bitmap and the port of a packet that is sent, and its label to partial_label; a
// complete sum gets next_label here.
// To go round means to leave by the loopback port and to arrive on it again. Such a packet has the first half of the
// sum, the flows of the sum in the lower half of its bitmap, the slot's generation (slots.p4) in the upper half, and a
// label for which label_table has an entry on the loopback port.
#ifndef INART_FINISH_P4
#define INART_FINISH_P4

control Finish(inout headers_t hdr, inout metadata_t meta,
               inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
               inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    action send(verdict_t verdict) {
        meta.verdict = verdict;
    }

    action drop(verdict_t verdict) {
        meta.verdict = verdict;
        ig_dprsr_md.drop_ctl = 1;
    }

    action send_complete() {
        meta.verdict = INART_VERDICT_COMPLETED;
        hdr.inart.label = meta.next_label;
    }

#ifdef INART_FOLD
    // Send the packet round to the pass that adds its second half. A packet that will end there is counted as absorbed.
    action fold(step_t step) {
        hdr.inart.version = FOLDED_VERSION;
        hdr.fold.setValid();
        hdr.fold.step = step;
        hdr.fold.operation = meta.operation;
        hdr.fold.ticket = meta.ticket;
        hdr.first.setInvalid();
        hdr.second.setInvalid();
        ig_tm_md.ucast_egress_port = meta.loopback;
    }

    action stay() {
        meta.verdict = INART_VERDICT_ABSORBED;
        fold(STEP_STAYS);
    }

    action go_round(verdict_t verdict) {
        meta.verdict = verdict;
        fold(STEP_LEAVES);
    }

    action go_round_complete() {
        meta.verdict = INART_VERDICT_COMPLETED;
        hdr.inart.label = meta.next_label;
        fold(STEP_LEAVES);
    }

    // Send a packet that has the second half of the sum round to the pass that reads the first.
    action fetch() {
        hdr.fold.step = STEP_READ;
        hdr.fold.operation = DO_READ;
        ig_tm_md.ucast_egress_port = meta.loopback;
    }

    action leave() {
        hdr.inart.version = INART_VERSION;
        hdr.fold.setInvalid();
    }
#elif defined(INART_ONE_PASS)
    action go_round(verdict_t verdict) {
        meta.verdict = verdict;
    }

    action go_round_complete() {
        meta.verdict = INART_VERDICT_COMPLETED;
        hdr.inart.label = meta.next_label;
    }
#else
    action go_round(verdict_t verdict) {
        meta.verdict = verdict;
        hdr.inart.bitmap[63:32] = meta.generation;
        ig_tm_md.ucast_egress_port = meta.loopback;
    }

    action go_round_complete() {
        meta.verdict = INART_VERDICT_COMPLETED;
        hdr.inart.bitmap[63:32] = meta.generation;
        hdr.inart.label = meta.next_label;
        ig_tm_md.ucast_egress_port = meta.loopback;
    }
#endif

    table finish_table {
        key = {
            meta.operation: exact;
            meta.left: ternary;
            hdr.inart.flags: ternary;
#ifdef INART_FOLD
            meta.step: ternary;
#endif
        }
        actions = {
            send; send_complete; drop; go_round; go_round_complete; @defaultonly NoAction;
#ifdef INART_FOLD
            stay; fetch; leave;
#endif
        }
        const default_action = NoAction();
        const entries = {
#include INART_ENTRIES_OF_FINISH
        }
        size = 32;
    }

    apply {
        finish_table.apply();
    }
}

#endif

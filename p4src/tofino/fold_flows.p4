// Folding where an ALU gives out one word a pass (Tofino 1): which contributions a second half takes, and when it is read.
//
//   first pass    slots.p4 decides; the first half is added       on: STAYS with the second half only, LEAVES with the first
//                                                                 words of the first half's sum, too
//   STAYS         the second half is added                        the end
//   LEAVES        the second half is added, its first words read  on
//   FETCHES       the second words of the second half are read    on
//   READ          the second words of the first half are read     leaves
//
// Cells of the values: [0, INART_SLOTS) have first halves, those behind them second halves; both are in the same registers.
// A second half knows of what it is the sum: epoch and sequence (half_owner), and which flows (half_flows). A packet takes
// along which flows its first half was added to (held), and is added to a second half of just these; the first of a chunk
// is stored in any case. So a second half is always the sum of the flows that it names, whatever is lost, late or doubled
// between passes; and what is read of it has to name the flows of the first half. If it does not, the packet ends there
// (overtaken_counter): the chunk's sum is not sent, and its workers' resends pass through, as after any loss.
// The first half is closed or complete when a sum goes round, so it stays as it is while slot_epoch and slot_sequence
// are (slots.p4).
// Limit: a flow's contribution to a chunk of an epoch always has the same values.
#ifndef INART_FOLD_FLOWS_P4
#define INART_FOLD_FLOWS_P4

#if defined(INART_FOLD) && !defined(INART_ONE_PASS)
struct owner_t {
    epoch_t epoch;
    sequence_t sequence;
}

control SecondHalf(inout headers_t hdr, inout metadata_t meta) {
    Register<owner_t, slot_t>(INART_SLOTS) half_owner;
    RegisterAction<owner_t, slot_t, bit<8>>(half_owner) put_owner = {
        void apply(inout owner_t half, out bit<8> owned) {
            half.epoch = hdr.inart.epoch;
            half.sequence = hdr.inart.sequence;
            owned = 1;
        }
    };
    RegisterAction<owner_t, slot_t, bit<8>>(half_owner) check_owner = {
        void apply(inout owner_t half, out bit<8> owned) {
            owned = 0;
            if (half.epoch == hdr.inart.epoch && half.sequence == hdr.inart.sequence) {
                owned = 1;
            }
        }
    };

    Register<flows_t, slot_t>(INART_SLOTS) half_flows;
    RegisterAction<flows_t, slot_t, bit<8>>(half_flows) put_flows = {
        void apply(inout flows_t flows, out bit<8> joined) {
            flows = hdr.inart.bitmap[31:0];
            joined = 1;
        }
    };
    RegisterAction<flows_t, slot_t, bit<8>>(half_flows) follow_half = {
        void apply(inout flows_t flows, out bit<8> joined) {
            joined = 0;
            if (flows == hdr.fold.held) {
                flows = hdr.inart.bitmap[31:0];
                joined = 1;
            }
        }
    };
    RegisterAction<flows_t, slot_t, bit<8>>(half_flows) check_flows = {
        void apply(inout flows_t flows, out bit<8> joined) {
            joined = 0;
            if (flows == hdr.inart.bitmap[31:0]) {
                joined = 1;
            }
        }
    };

    action do_put_owner() {
        meta.owned = put_owner.execute(meta.slot);
    }

    action do_check_owner() {
        meta.owned = check_owner.execute(meta.slot);
    }

    table owner_table {
        key = {
            meta.kind: exact;
            meta.step: exact;
            hdr.fold.operation: exact;
        }
        actions = { do_put_owner; do_check_owner; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (KIND_READ, STEP_STAYS, DO_STORE): do_put_owner();
            (KIND_READ, STEP_STAYS, DO_ADD): do_check_owner();
            (KIND_READ, STEP_STAYS, DO_MAXIMUM): do_check_owner();
            (KIND_READ, STEP_LEAVES, DO_ADD): do_check_owner();
            (KIND_READ, STEP_LEAVES, DO_MAXIMUM): do_check_owner();
            (KIND_READ, STEP_FETCHES, DO_READ): do_check_owner();
        }
        size = 8;
    }

    action do_put_flows() {
        meta.joined = put_flows.execute(meta.slot);
    }

    action do_follow_half() {
        meta.joined = follow_half.execute(meta.slot);
    }

    action do_check_flows() {
        meta.joined = check_flows.execute(meta.slot);
    }

    action join_anyway() {
        meta.joined = 1;
    }

    // meta.joined is 0 from the parser on.
    table half_table {
        key = {
            meta.step: ternary;
            meta.owned: ternary;
            hdr.fold.operation: ternary;
        }
        actions = { do_put_flows; do_follow_half; do_check_flows; join_anyway; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (STEP_FIRST, _, _): join_anyway();
            (STEP_READ, _, _): join_anyway();
            (STEP_STAYS, 1, DO_STORE): do_put_flows();
            (STEP_FETCHES, 1, _): do_check_flows();
            (_, 1, _): do_follow_half();
        }
        size = 8;
    }

    action in_second_half() {
        meta.cell = meta.slot | INART_SLOTS;
    }

    action in_first_half() {
        meta.cell = meta.slot;
    }

    table cell_table {
        key = { meta.step: exact; }
        actions = { in_first_half; in_second_half; }
        const default_action = in_first_half();
        const entries = {
            STEP_STAYS: in_second_half();
            STEP_LEAVES: in_second_half();
            STEP_FETCHES: in_second_half();
        }
        size = 4;
    }

    apply {
        owner_table.apply();
        cell_table.apply();
        half_table.apply();
    }
}
#endif

#endif

// Folding on Tofino 1, where an ALU gives out only one word of its cell in a pass. A folded packet has twice the values
// that one pass through the switch can add, so its second half is added in a pass of its own, and two more passes read
// what an ALU could not give out at once.
//
//   step      what happens in the pass                            afterwards
//   FIRST     slots.p4 decides; the first half is added           on as STAYS, with the second half only, or as LEAVES,
//                                                                 with the first words of the first half's sum as well
//   STAYS     the second half is added                            the packet ends
//   LEAVES    the second half is added; its sum's first words are on
//             read
//   FETCHES   the second words of the second half's sum are read  on
//   READ      the second words of the first half's sum are read   the sum leaves
//
// Both halves of the values are in the same registers: cells [0, INART_SLOTS) have first halves, and the INART_SLOTS
// cells behind them second halves. Two registers say of what a second half is the sum: half_owner has the chunk (epoch
// and sequence), half_flows the flows.
// A packet takes along to which flows' sum its first half was added (held), and its second half is added only to a sum
// of exactly those flows; the first contribution of a chunk is always stored. So a second half is always the sum of the
// flows that half_flows names, whatever is lost, late or doubled between passes, and it is read only if these are the
// flows of the first half. Otherwise the packet ends there (overtaken_counter): the chunk's sum is not sent, and its
// workers' resends pass through, as they do after any loss.
// A sum goes round only when its first half is closed or complete, so the first half does not change as long as
// slot_epoch and slot_sequence stay the same (slots.p4).
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

    // The parser sets meta.joined to 0, so a packet that matches nothing here does not join the second half.
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

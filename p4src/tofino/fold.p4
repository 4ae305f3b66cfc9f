// Folding on Tofino 2. A folded packet has twice the values that one pass through the switch can add, so its second
// half is added in a pass of its own. The ALUs of Tofino 1 cannot do this in two passes.
//
//   step      what happens in the pass                          register slot_ticket            afterwards
//   FIRST     slots.p4 decides; the first half is added         cell A: ticket + 1, taken along on, without first half
//   STAYS     the second half is added                          cell B follows                  the packet ends
//   LEAVES    the second half is added, and its sum taken along cell B follows                  on, with that sum
//   READ      the first half of the sum is read                 cell A still has the ticket?    the sum leaves
//
// Both halves of the values are in the same registers: cells A, [0, INART_SLOTS), have first halves, and cells B, the
// INART_SLOTS cells behind them, second halves. A packet that changes no slot leaves after its first pass, as it came.
//
// Both halves of a sum must have the same contributions, even if a packet is lost, late or doubled between two passes.
// Therefore each change of the values in A has a number, its ticket, which the packet takes along. The first
// contribution of a chunk is always stored in B; any other is added to B only if the ticket in B is the one before its
// own. So B with ticket t has the contributions that A had when it gave out t.
// If B has another ticket, nothing is added, and the packet ends there (overtaken_counter). B then stays behind until
// the next chunk takes the slot; its workers' resends pass through, as they do after any loss. A sum also ends where A
// has changed before READ.
#ifndef INART_FOLD_P4
#define INART_FOLD_P4

#ifdef INART_FOLD
control Fold(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, slot_t>(2 * INART_SLOTS) slot_ticket;
    RegisterAction<bit<32>, slot_t, bit<32>>(slot_ticket) next_ticket = {
        void apply(inout bit<32> ticket, out bit<32> given) {
            ticket = ticket + 1;
            given = ticket;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(slot_ticket) put_ticket = {
        void apply(inout bit<32> ticket, out bit<32> joined) {
            ticket = hdr.fold.ticket;
            joined = 1;
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(slot_ticket) follow_ticket = {
        void apply(inout bit<32> ticket, out bit<32> joined) {
            joined = 0;
            if (ticket == meta.previous) {
                ticket = hdr.fold.ticket;
                joined = 1;
            }
        }
    };
    RegisterAction<bit<32>, slot_t, bit<32>>(slot_ticket) check_ticket = {
        void apply(inout bit<32> ticket, out bit<32> joined) {
            joined = 0;
            if (ticket == hdr.fold.ticket) {
                joined = 1;
            }
        }
    };

    action do_next_ticket() {
        meta.ticket = next_ticket.execute(meta.cell);
    }

    action do_put_ticket() {
        meta.joined = put_ticket.execute(meta.cell);
    }

    action do_follow_ticket() {
        meta.joined = follow_ticket.execute(meta.cell);
    }

    action do_check_ticket() {
        meta.joined = check_ticket.execute(meta.cell);
    }

    table ticket_table {
        key = {
            meta.step: exact;
            meta.operation: exact;
        }
        actions = { do_next_ticket; do_put_ticket; do_follow_ticket; do_check_ticket; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (STEP_FIRST, DO_STORE): do_next_ticket();
            (STEP_FIRST, DO_ADD): do_next_ticket();
            (STEP_FIRST, DO_MAXIMUM): do_next_ticket();
            (STEP_STAYS, DO_STORE): do_put_ticket();
            (STEP_STAYS, DO_ADD): do_follow_ticket();
            (STEP_LEAVES, DO_ADD): do_follow_ticket();
            (STEP_STAYS, DO_MAXIMUM): do_follow_ticket();
            (STEP_LEAVES, DO_MAXIMUM): do_follow_ticket();
            (STEP_READ, DO_READ): do_check_ticket();
        }
        size = 16;
    }

    action in_first_half() {
        meta.cell = meta.slot;
    }

    action in_second_half() {
        meta.cell = meta.slot | INART_SLOTS;
        meta.previous = hdr.fold.ticket - 1;
    }

    table cell_table {
        key = { meta.step: exact; }
        actions = { in_first_half; in_second_half; }
        const default_action = in_first_half();
        const entries = {
            STEP_STAYS: in_second_half();
            STEP_LEAVES: in_second_half();
        }
        size = 2;
    }

    action forget() {
        meta.operation = DO_FORGET;
    }

    action fetch_first_half() {
        hdr.first.setValid();
        hdr.second.setValid();
    }

    table settle_table {
        key = {
            meta.kind: ternary;
            meta.step: ternary;
            meta.joined: ternary;
        }
        actions = { forget; fetch_first_half; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (KIND_READ, _, 0): forget();
            (KIND_READ, STEP_READ, _): fetch_first_half();
        }
        size = 2;
    }

    apply {
        cell_table.apply();
        ticket_table.apply();
        settle_table.apply();
    }
}
#endif

#endif

// The slot algorithm: which chunk owns the slot, which flows have contributed, and so what happens to this packet.
//
//   stage  1  slot_epoch     compares the chunk's epoch: the same, or another one (which takes the slot over); counts
//                            how often the slot's epoch has changed
//          2  slot_sequence  compares its sequence: the same, newer (which takes the slot over), or older
//          2  slot_flows     has the flows that contributed, and whether the slot is closed; nothing of both if the
//                            sequence is newer, or of another epoch
//          3  decide_table   chooses what to do (meta.operation)
//
//   older sequence, or closed --> pass through
//   newer, or another epoch   --> the slot is taken over: nobody has contributed
//   flow new    --> slot empty --> store       (a resend has nothing to merge with: close, send on)
//               --> otherwise  --> merge       (a resend closes the slot)
//   flow known                 --> duplicate   (a resend: close, send the packet itself on)
//
// Each register is accessed once per packet and pass. A stateful ALU makes two comparisons and gives out one word,
// therefore the 64 bits of epoch and sequence are compared one after the other. slot_sequence and slot_flows, side by
// side, follow the sequence by the same rule: the first says how it compares, the second what the slot holds. A sum
// that comes round changes none of these registers; it only asks whether the slot still has its chunk. The sequence
// alone does not tell, because another epoch may have had the slot in between. So slot_epoch counts the changes of its
// epoch (the generation, which is not 0), and a sum carries that number round in the half of the bitmap that flows do
// not use.
// Limits: 31 flows; an epoch is never 0.
#ifndef INART_SLOTS_P4
#define INART_SLOTS_P4

struct slot_epoch_t {
    epoch_t epoch;
    generation_t generation;
}

struct slot_flows_t {
    sequence_t sequence;
    flows_t flows;
}

#define INART_EACH_FLOW(F) \
    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19) \
    F(20) F(21) F(22) F(23) F(24) F(25) F(26) F(27) F(28) F(29) F(30)
#define INART_BIT(i) (32w1 << i) &&& (32w1 << i)
#define INART_RESENT INART_FLAG_RESEND &&& INART_FLAG_RESEND

control Slots(inout headers_t hdr, inout metadata_t meta) {
#ifdef INART_ONE_PASS
// Tofino 2 has enough stages to compute the slot in an earlier one. The hash cannot be used there: p4c 11b050578a gives
// it another value on that chip.
#define INART_SLOT meta.slot
#else
#define INART_SLOT slot_hash.get({ meta.slot_base, meta.slot_offset })
    Hash<slot_t>(HashAlgorithm_t.XOR16) slot_hash;
#endif

    Register<slot_epoch_t, slot_t>(INART_SLOTS) slot_epoch;
    RegisterAction<slot_epoch_t, slot_t, generation_t>(slot_epoch) follow_epoch = {
        void apply(inout slot_epoch_t slot, out generation_t generation) {
            generation = 0;
            if (hdr.inart.epoch == slot.epoch) {
                generation = slot.generation;
            } else {
                slot.epoch = hdr.inart.epoch;
                slot.generation = slot.generation + 1;
            }
        }
    };
#ifndef INART_ONE_PASS
    RegisterAction<slot_epoch_t, slot_t, generation_t>(slot_epoch) check_epoch = {
        void apply(inout slot_epoch_t slot, out generation_t generation) {
            generation = 0;
            if (hdr.inart.epoch == slot.epoch && hdr.inart.bitmap[63:32] == slot.generation) {
                generation = slot.generation;
            }
        }
    };
#endif

    Register<sequence_t, slot_t>(INART_SLOTS) slot_sequence;
    RegisterAction<sequence_t, slot_t, bit<8>>(slot_sequence) follow_sequence = {
        void apply(inout sequence_t sequence, out bit<8> age) {
            age = AGE_OLDER;
            if (hdr.inart.sequence > sequence) {
                sequence = hdr.inart.sequence;
                age = AGE_NEWER;
            } else if (hdr.inart.sequence == sequence) {
                age = AGE_SAME;
            }
        }
    };
    RegisterAction<sequence_t, slot_t, bit<8>>(slot_sequence) take_sequence = {
        void apply(inout sequence_t sequence, out bit<8> age) {
            sequence = hdr.inart.sequence;
            age = AGE_NEWER;
        }
    };

    Register<slot_flows_t, slot_t>(INART_SLOTS) slot_flows;
    RegisterAction<slot_flows_t, slot_t, flows_t>(slot_flows) follow_flows = {
        void apply(inout slot_flows_t slot, out flows_t held) {
            held = 0;
            if (hdr.inart.sequence == slot.sequence) {
                held = slot.flows;
            }
            if (hdr.inart.sequence > slot.sequence) {
                slot.sequence = hdr.inart.sequence;
                slot.flows = meta.claim;
            } else if (hdr.inart.sequence == slot.sequence) {
                slot.flows = slot.flows | meta.claim;
            }
        }
    };
    RegisterAction<slot_flows_t, slot_t, flows_t>(slot_flows) take_flows = {
        void apply(inout slot_flows_t slot) {
            slot.sequence = hdr.inart.sequence;
            slot.flows = meta.claim;
        }
    };

    action touch_epoch() {
        meta.generation = follow_epoch.execute(INART_SLOT);
    }

#ifndef INART_ONE_PASS
    action look_at_epoch() {
        meta.generation = check_epoch.execute(INART_SLOT);
    }
#endif

    action refuse() {
        meta.kind = KIND_REFUSED;
    }

    // A result is refused, and so changes no register.
    table epoch_table {
        key = {
            meta.kind: ternary;
            hdr.inart.flags: ternary;
#ifdef INART_FOLD
            meta.step: ternary;
#endif
        }
        actions = {
#ifdef INART_FOLD
            touch_epoch; refuse; NoAction;
#else
            touch_epoch; refuse; @defaultonly NoAction;
#endif
#ifndef INART_ONE_PASS
            look_at_epoch;
#endif
        }
        const default_action = NoAction();
        const entries = {
#include INART_ENTRIES_OF_EPOCH
        }
#ifdef INART_FOLD
        size = 8;
#else
        size = 4;
#endif
    }

    action close() {
        meta.claim = meta.claim | CLOSED;
    }

    action index() {
        meta.slot = meta.slot_base ^ meta.slot_offset;
    }

    action do_follow_sequence() {
        meta.sequence_age = follow_sequence.execute(meta.slot);
    }

    action do_take_sequence() {
        meta.sequence_age = take_sequence.execute(meta.slot);
    }

    table sequence_table {
        key = {
            meta.kind: ternary;
            meta.generation: ternary;
        }
        actions = { do_follow_sequence; do_take_sequence; NoAction; }
        const default_action = NoAction();
        const entries = {
            (KIND_FLOW, 0): do_take_sequence();
            (KIND_FLOW, _): do_follow_sequence();
#ifndef INART_ONE_PASS
            (KIND_READ, 0): NoAction();
            (KIND_READ, _): do_follow_sequence();   // changes nothing: the slot's sequence is the same, or newer
#endif
        }
        size = 4;
    }

    action do_follow_flows() {
        meta.held = follow_flows.execute(meta.slot);
    }

    action do_take_flows() {
        take_flows.execute(meta.slot);  // meta.held stays 0, which the parser has set
    }

    table flows_table {
        key = {
            meta.kind: ternary;
            meta.generation: ternary;
        }
        actions = { do_follow_flows; do_take_flows; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (KIND_FLOW, 0): do_take_flows();
            (KIND_FLOW, _): do_follow_flows();
        }
        size = 2;
    }

    action operate(operation_t operation) {
        meta.operation = operation;
    }

    action merge(operation_t operation) {
        meta.operation = operation;
        hdr.inart.bitmap[31:0] = hdr.inart.bitmap[31:0] | meta.held;
    }

#ifdef INART_FOLD
    action resume() {
        meta.operation = hdr.fold.operation;
    }
#endif

#ifndef INART_ONE_PASS
    action read() {
        meta.operation = DO_READ;
        hdr.inart.bitmap[63:32] = 0;
    }
#endif

    table decide_table {
        key = {
            meta.kind: ternary;
            meta.sequence_age: ternary;
            hdr.inart.flags: ternary;
            meta.flow: ternary;
            meta.held: ternary;
        }
        actions = {
            operate; merge;
#ifdef INART_FOLD
            resume;
#endif
#ifndef INART_ONE_PASS
            read;
#endif
        }
        const default_action = operate(DO_NOTHING);
        const entries = {
#include INART_ENTRIES_OF_DECIDE
        }
        size = 128;
    }

    action join() {
        meta.left = meta.held | meta.flow;
    }

    action compare() {
        meta.left = meta.left ^ meta.everyone;
    }

    apply {
#ifdef INART_ONE_PASS
        index();
        epoch_table.apply();
#else
        epoch_table.apply();
        index();
#endif
        if (hdr.inart.flags & INART_FLAG_RESEND != 0) {
            close();
        }
        sequence_table.apply();
        flows_table.apply();
        decide_table.apply();
        join();
        compare();
    }
}

#endif

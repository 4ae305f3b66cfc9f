// The values: one control Sum for each pair of them, with a register that has one cell of two words per slot.
//
//                     slot 0               slot 1               ...   slot INART_SLOTS - 1
//   sum_00.pairs    [ first  | second    | first  | second    | ... ]        value_00 of first and of second
//   sum_01.pairs    [        |           |        |           | ... ]        value_01 of first and of second
//    ...
//
// slots.p4 has decided what to do (meta.operation). Every register is accessed at most once per packet and pass:
//
//   DO_STORE     cell = packet
//   DO_ADD       cell = cell + packet                 packet.first = cell.first
//   DO_MAXIMUM   cell = max(cell, packet), signed     packet.first = cell.first
//   DO_READ                                           packet.second = cell.second
//
// On Tofino 2 (INART_ONE_PASS) an ALU gives out both words of its cell at once, so a sum that is not folded needs no
// DO_READ. A folded program (fold.p4) adds half of a packet's values in a pass. There, DO_READ gives cell.first and
// cell.second to a packet that has no values.
// Limits: a stateful ALU holds four register actions. Sums are modulo 2^32.
#ifndef INART_VALUES_P4
#define INART_VALUES_P4

struct pair_t {
    value_t first;
    value_t second;
}

// The index of the cells that a pass works on, and their number.
#ifdef INART_FOLD
#define INART_CELL meta.cell
#define INART_CELLS (2 * INART_SLOTS)
#else
#define INART_CELL meta.slot
#define INART_CELLS INART_SLOTS
#endif

// The sums, in all slots, of one value of the first half and one of the second half.
control Sum(inout bit<32> first, inout bit<32> second, in metadata_t meta) {
    Register<pair_t, slot_t>(INART_CELLS) pairs;

    RegisterAction<pair_t, slot_t, bit<32>>(pairs) store = {
        void apply(inout pair_t pair) {
            pair.first = (value_t)first;
            pair.second = (value_t)second;
        }
    };

    action do_store() {
        store.execute(INART_CELL);
    }

#ifdef INART_ONE_PASS
    RegisterAction2<pair_t, slot_t, bit<32>, bit<32>>(pairs) add = {
        void apply(inout pair_t pair, out bit<32> first_sum, out bit<32> second_sum) {
            pair.first = pair.first + (value_t)first;
            pair.second = pair.second + (value_t)second;
            first_sum = (bit<32>)pair.first;
            second_sum = (bit<32>)pair.second;
        }
    };
    RegisterAction2<pair_t, slot_t, bit<32>, bit<32>>(pairs) maximum = {
        void apply(inout pair_t pair, out bit<32> first_sum, out bit<32> second_sum) {
            pair.first = max(pair.first, (value_t)first);
            pair.second = max(pair.second, (value_t)second);
            first_sum = (bit<32>)pair.first;
            second_sum = (bit<32>)pair.second;
        }
    };

    action do_add() {
        first = add.execute(INART_CELL, second);
    }

    action do_maximum() {
        first = maximum.execute(INART_CELL, second);
    }

#ifdef INART_FOLD
    // A folded sum is read in another pass than the one that adds its last contribution.
    RegisterAction2<pair_t, slot_t, bit<32>, bit<32>>(pairs) read = {
        void apply(inout pair_t pair, out bit<32> first_sum, out bit<32> second_sum) {
            first_sum = (bit<32>)pair.first;
            second_sum = (bit<32>)pair.second;
        }
    };

    action do_read() {
        first = read.execute(INART_CELL, second);
    }
#endif
#else
    RegisterAction<pair_t, slot_t, bit<32>>(pairs) add = {
        void apply(inout pair_t pair, out bit<32> first_sum) {
            pair.first = pair.first + (value_t)first;
            pair.second = pair.second + (value_t)second;
            first_sum = (bit<32>)pair.first;
        }
    };
    RegisterAction<pair_t, slot_t, bit<32>>(pairs) maximum = {
        void apply(inout pair_t pair, out bit<32> first_sum) {
            pair.first = max(pair.first, (value_t)first);
            pair.second = max(pair.second, (value_t)second);
            first_sum = (bit<32>)pair.first;
        }
    };
    RegisterAction<pair_t, slot_t, bit<32>>(pairs) read = {
        void apply(inout pair_t pair, out bit<32> second_sum) {
            second_sum = (bit<32>)pair.second;
        }
    };

    action do_add() {
        first = add.execute(INART_CELL);
    }

    action do_maximum() {
        first = maximum.execute(INART_CELL);
    }

    action do_read() {
        second = read.execute(INART_CELL);
    }
#endif

    table sum_table {
        key = {
            meta.operation: exact;
        }
        actions = {
            do_store; do_add; do_maximum; @defaultonly NoAction;
#if defined(INART_FOLD) || !defined(INART_ONE_PASS)
            do_read;
#endif
        }
        const default_action = NoAction();
        const entries = {
#include INART_ENTRIES_OF_SUM
        }
        size = 4;
    }

    apply {
        sum_table.apply();
    }
}

control Values(inout headers_t hdr, in metadata_t meta) {
#define INART_SUM(i) Sum() sum_##i;
    INART_EACH_PAIR(INART_SUM)

#define INART_APPLY_SUM(i) sum_##i.apply(hdr.first.value_##i, hdr.second.value_##i, meta);
    apply {
        INART_EACH_PAIR(INART_APPLY_SUM)
    }
}

#endif

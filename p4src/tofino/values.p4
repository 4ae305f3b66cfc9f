// The values: one register for each pair, one cell of two words per slot.
//
//               slot 0               slot 1               ...   slot INART_SLOTS - 1
//   sum_00    [ first  | second    | first  | second    | ... ]        value_00 of first and of second
//   sum_01    [        |           |        |           | ... ]        value_01 of first and of second
//    ...
//
// slots.p4 has decided what to do (meta.operation). Every register is touched at most once per packet and pass:
//
//   DO_STORE     cell = packet
//   DO_ADD       cell = cell + packet                 packet.first = cell.first
//   DO_MAXIMUM   cell = max(cell, packet), signed     packet.first = cell.first
//   DO_READ                                           packet.second = cell.second
//
// Folded, a pass has half of the values. On Tofino 2 (fold.p4) all that a pass has is given out at once; DO_READ gives
// cell.first and cell.second to a packet that has neither. On Tofino 1 (fold_flows.p4) it is as above in each half.
// Limit: four register actions, which is all that a stateful ALU holds. Sums are modulo 2^32.
#ifndef INART_VALUES_P4
#define INART_VALUES_P4

struct sum_t {
    int<32> first;
    int<32> second;
}

// Where the pass has its values.
#ifdef INART_FOLD
#define INART_CELL meta.cell
#define INART_CELLS (2 * INART_SLOTS)
#else
#define INART_CELL meta.slot
#define INART_CELLS INART_SLOTS
#endif

control Values(inout headers_t hdr, inout metadata_t meta) {
#ifdef INART_ONE_PASS
// A folded sum is given out in another pass than its last contribution's.
#ifdef INART_FOLD
#define INART_READ_ACTION(i) \
    RegisterAction2<sum_t, slot_t, bit<32>, bit<32>>(sum_##i) read_##i = { \
        void apply(inout sum_t sum, out bit<32> first, out bit<32> second) { \
            first = (bit<32>)sum.first; \
            second = (bit<32>)sum.second; \
        } \
    }; \
    action do_read_##i() { hdr.first.value_##i = read_##i.execute(INART_CELL, hdr.second.value_##i); }
#define INART_READ_NAME(i) do_read_##i;
#define INART_READ_ENTRY(i) DO_READ: do_read_##i();
#else
#define INART_READ_ACTION(i)
#define INART_READ_NAME(i)
#define INART_READ_ENTRY(i)
#endif
#define INART_PAIR(i) \
    Register<sum_t, slot_t>(INART_CELLS) sum_##i; \
    RegisterAction<sum_t, slot_t, bit<32>>(sum_##i) store_##i = { \
        void apply(inout sum_t sum) { \
            sum.first = (int<32>)hdr.first.value_##i; \
            sum.second = (int<32>)hdr.second.value_##i; \
        } \
    }; \
    RegisterAction2<sum_t, slot_t, bit<32>, bit<32>>(sum_##i) add_##i = { \
        void apply(inout sum_t sum, out bit<32> first, out bit<32> second) { \
            sum.first = sum.first + (int<32>)hdr.first.value_##i; \
            sum.second = sum.second + (int<32>)hdr.second.value_##i; \
            first = (bit<32>)sum.first; \
            second = (bit<32>)sum.second; \
        } \
    }; \
    RegisterAction2<sum_t, slot_t, bit<32>, bit<32>>(sum_##i) maximum_##i = { \
        void apply(inout sum_t sum, out bit<32> first, out bit<32> second) { \
            sum.first = max(sum.first, (int<32>)hdr.first.value_##i); \
            sum.second = max(sum.second, (int<32>)hdr.second.value_##i); \
            first = (bit<32>)sum.first; \
            second = (bit<32>)sum.second; \
        } \
    }; \
    INART_READ_ACTION(i) \
    action do_store_##i() { store_##i.execute(INART_CELL); } \
    action do_add_##i() { hdr.first.value_##i = add_##i.execute(INART_CELL, hdr.second.value_##i); } \
    action do_maximum_##i() { hdr.first.value_##i = maximum_##i.execute(INART_CELL, hdr.second.value_##i); } \
    table value_##i { \
        key = { meta.operation: exact; } \
        actions = { do_store_##i; do_add_##i; do_maximum_##i; INART_READ_NAME(i) @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            DO_STORE: do_store_##i(); \
            DO_ADD: do_add_##i(); \
            DO_MAXIMUM: do_maximum_##i(); \
            INART_READ_ENTRY(i) \
        } \
        size = 4; \
    }
#else
// A second half is only touched when it is that of the same flows as the first.
#ifdef INART_FOLD
#define INART_JOINED_KEY meta.joined: exact;
#define INART_JOINED(operation) (operation, 1)
#else
#define INART_JOINED_KEY
#define INART_JOINED(operation) operation
#endif
#define INART_PAIR(i) \
    Register<sum_t, slot_t>(INART_CELLS) sum_##i; \
    RegisterAction<sum_t, slot_t, bit<32>>(sum_##i) store_##i = { \
        void apply(inout sum_t sum) { \
            sum.first = (int<32>)hdr.first.value_##i; \
            sum.second = (int<32>)hdr.second.value_##i; \
        } \
    }; \
    RegisterAction<sum_t, slot_t, bit<32>>(sum_##i) add_##i = { \
        void apply(inout sum_t sum, out bit<32> result) { \
            sum.first = sum.first + (int<32>)hdr.first.value_##i; \
            sum.second = sum.second + (int<32>)hdr.second.value_##i; \
            result = (bit<32>)sum.first; \
        } \
    }; \
    RegisterAction<sum_t, slot_t, bit<32>>(sum_##i) maximum_##i = { \
        void apply(inout sum_t sum, out bit<32> result) { \
            sum.first = max(sum.first, (int<32>)hdr.first.value_##i); \
            sum.second = max(sum.second, (int<32>)hdr.second.value_##i); \
            result = (bit<32>)sum.first; \
        } \
    }; \
    RegisterAction<sum_t, slot_t, bit<32>>(sum_##i) read_##i = { \
        void apply(inout sum_t sum, out bit<32> result) { \
            result = (bit<32>)sum.second; \
        } \
    }; \
    action do_store_##i() { store_##i.execute(INART_CELL); } \
    action do_add_##i() { hdr.first.value_##i = add_##i.execute(INART_CELL); } \
    action do_maximum_##i() { hdr.first.value_##i = maximum_##i.execute(INART_CELL); } \
    action do_read_##i() { hdr.second.value_##i = read_##i.execute(INART_CELL); } \
    table value_##i { \
        key = { meta.operation: exact; INART_JOINED_KEY } \
        actions = { do_store_##i; do_add_##i; do_maximum_##i; do_read_##i; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            INART_JOINED(DO_STORE): do_store_##i(); \
            INART_JOINED(DO_ADD): do_add_##i(); \
            INART_JOINED(DO_MAXIMUM): do_maximum_##i(); \
            INART_JOINED(DO_READ): do_read_##i(); \
        } \
        size = 4; \
    }
#endif
    INART_EACH_PAIR(INART_PAIR)

#define INART_APPLY_PAIR(i) value_##i.apply();
    apply {
        INART_EACH_PAIR(INART_APPLY_PAIR)
    }
}

#endif

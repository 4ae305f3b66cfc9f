// The values: one register per value of a packet, one element of each per slot.
//
//               slot 0   slot 1   ...   slot INART_SLOTS - 1
//   sum_00    [ 32 bits | 32 bits | ... ]        value_00
//   sum_01    [         |         | ... ]        value_01
//    ...
//
// slots.p4 has decided what to do (meta.operation). Every register is read and written at most once per packet. A sum
// that leaves is not written back: the slot is closed then, and the values of a closed slot are not read.
// Limit: sums are modulo 2^32; the agents scale so that they do not overflow. The maximum is of signed numbers.
#ifndef INART_VALUES_P4
#define INART_VALUES_P4

control Values(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
#define INART_REGISTER(i) register<bit<32>>(INART_SLOTS) sum_##i;
    INART_EACH_VALUE(INART_REGISTER)

    bit<32> held;

#define INART_STORE(i) \
        sum_##i.write(meta.slot, hdr.values.value_##i);
    action store() {
        INART_EACH_VALUE(INART_STORE)
    }

#define INART_ADD(i) \
        sum_##i.read(held, meta.slot); \
        hdr.values.value_##i = hdr.values.value_##i + held; \
        sum_##i.write(meta.slot, hdr.values.value_##i);
    action add() {
        INART_EACH_VALUE(INART_ADD)
    }

#define INART_ADD_SEND(i) \
        sum_##i.read(held, meta.slot); \
        hdr.values.value_##i = hdr.values.value_##i + held;
    action add_send() {
        INART_EACH_VALUE(INART_ADD_SEND)
    }

#define INART_MAXIMUM(i) \
        sum_##i.read(held, meta.slot); \
        if ((int<32>)held > (int<32>)hdr.values.value_##i) { hdr.values.value_##i = held; } \
        sum_##i.write(meta.slot, hdr.values.value_##i);
    action maximum() {
        INART_EACH_VALUE(INART_MAXIMUM)
    }

#define INART_SEND(i) \
        sum_##i.read(hdr.values.value_##i, meta.slot);
    action send() {
        INART_EACH_VALUE(INART_SEND)
    }

    apply {
        if (meta.operation == operation_t.ADD) {
            add();
        } else if (meta.operation == operation_t.STORE) {
            store();
        } else if (meta.operation == operation_t.ADD_SEND) {
            add_send();
        } else if (meta.operation == operation_t.MAXIMUM) {
            maximum();
        } else if (meta.operation == operation_t.SEND) {
            send();
        }
    }
}

#endif

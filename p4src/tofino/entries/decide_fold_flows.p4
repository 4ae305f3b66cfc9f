// Entries of Slots.decide_table (slots.p4) for folding on Tofino 1. Their columns are: the packet's kind, how its
// sequence compares with the slot's, its flags, its flow, the flows that the slot had, and the pass.
            (KIND_NONE, _, _, _, _, _): operate(DO_NOTHING);
            (KIND_REFUSED, _, _, _, _, _): operate(DO_REFUSE);
            (KIND_READ, AGE_SAME, _, _, _, STEP_READ): read();
            (KIND_READ, _, _, _, _, STEP_READ): operate(DO_FORGET);
            (KIND_READ, _, _, _, _, _): resume();
            (_, AGE_OLDER, _, _, _, _): operate(DO_PASS);
            (_, _, _, _, CLOSED &&& CLOSED, _): operate(DO_PASS);
            (_, _, INART_RESENT, _, 0, _): operate(DO_FLUSH_FIRST);
            (_, _, _, _, 0, _): operate(DO_STORE);
#define INART_KNOWN(i) \
            (_, _, INART_RESENT, INART_BIT(i), INART_BIT(i), _): operate(DO_FLUSH_KNOWN); \
            (_, _, _, INART_BIT(i), INART_BIT(i), _): operate(DO_DUPLICATE);
            INART_EACH_FLOW(INART_KNOWN)
            (_, _, INART_FLAG_MAXIMUM &&& INART_FLAG_MAXIMUM, _, _, _): merge(DO_MAXIMUM);
            (_, _, _, _, _, _): merge(DO_ADD);

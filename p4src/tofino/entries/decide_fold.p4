// Entries of Slots.decide_table (slots.p4) for folding on Tofino 2. Their columns are: the packet's kind, how its
// sequence compares with the slot's, its flags, its flow, and the flows that the slot had.
            (KIND_NONE, _, _, _, _): operate(DO_NOTHING);
            (KIND_REFUSED, _, _, _, _): operate(DO_REFUSE);
            (KIND_READ, _, _, _, _): resume();
            (_, AGE_OLDER, _, _, _): operate(DO_PASS);
            (_, _, _, _, CLOSED &&& CLOSED): operate(DO_PASS);
            (_, _, INART_RESENT, _, 0): operate(DO_FLUSH_FIRST);
            (_, _, _, _, 0): operate(DO_STORE);
#define INART_KNOWN(i) \
            (_, _, INART_RESENT, INART_BIT(i), INART_BIT(i)): operate(DO_FLUSH_KNOWN); \
            (_, _, _, INART_BIT(i), INART_BIT(i)): operate(DO_DUPLICATE);
            INART_EACH_FLOW(INART_KNOWN)
            (_, _, INART_FLAG_MAXIMUM &&& INART_FLAG_MAXIMUM, _, _): merge(DO_MAXIMUM);
            (_, _, _, _, _): merge(DO_ADD);

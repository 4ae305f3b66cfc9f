// Of Sum.sum_table (values.p4), folded on Tofino 1: a second half is only touched when it is that of the same flows as the
// first.
            (DO_STORE, 1): do_store();
            (DO_ADD, 1): do_add();
            (DO_MAXIMUM, 1): do_maximum();
            (DO_READ, 1): do_read();

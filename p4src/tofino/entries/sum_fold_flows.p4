// Entries of Sum.sum_table (values.p4) for folding on Tofino 1: a pass accesses a second half only if it is of the same
// flows as the first (1).
            (DO_STORE, 1): do_store();
            (DO_ADD, 1): do_add();
            (DO_MAXIMUM, 1): do_maximum();
            (DO_READ, 1): do_read();

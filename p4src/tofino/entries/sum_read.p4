// Entries of Sum.sum_table (values.p4) where another pass reads the rest of the sum.
            DO_STORE: do_store();
            DO_ADD: do_add();
            DO_MAXIMUM: do_maximum();
            DO_READ: do_read();

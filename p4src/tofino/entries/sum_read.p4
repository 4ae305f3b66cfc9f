// Of Sum.sum_table (values.p4): the rest of the sum is read in another pass.
            DO_STORE: do_store();
            DO_ADD: do_add();
            DO_MAXIMUM: do_maximum();
            DO_READ: do_read();

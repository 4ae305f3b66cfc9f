// Of Sum.sum_table (values.p4): a pass that adds has both words of the sum at once.
            DO_STORE: do_store();
            DO_ADD: do_add();
            DO_MAXIMUM: do_maximum();

// Entries of Sum.sum_table (values.p4) where a pass that adds gives out both words of the sum: nothing is left to read.
            DO_STORE: do_store();
            DO_ADD: do_add();
            DO_MAXIMUM: do_maximum();

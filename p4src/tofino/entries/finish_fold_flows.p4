// Entries of Finish.finish_table (finish.p4) for folding on Tofino 1. Their columns are: the operation, the flows that
// are missing, the flags, the pass, and whether the second half is of the same flows as the first (1).
            (DO_REFUSE, _, _, _, _): drop(INART_VERDICT_REFUSED);
            (DO_FORGET, _, _, _, _): drop(0);
            (DO_STORE, _, _, STEP_STAYS, _): drop(0);
            (DO_ADD, _, _, STEP_STAYS, _): drop(0);
            (DO_ADD, _, _, STEP_LEAVES, 1): fetch_second();
            (DO_ADD, _, _, STEP_LEAVES, _): drop(0);
            (DO_MAXIMUM, _, _, STEP_STAYS, _): drop(0);
            (DO_MAXIMUM, _, _, STEP_LEAVES, 1): fetch_second();
            (DO_MAXIMUM, _, _, STEP_LEAVES, _): drop(0);
            (DO_READ, _, _, STEP_FETCHES, 1): fetch();
            (DO_READ, _, _, STEP_FETCHES, _): drop(0);
            (DO_READ, _, _, STEP_READ, _): leave();
            (DO_PASS, _, _, _, _): send(INART_VERDICT_STALE);
            (DO_STORE, 0, _, _, _): send_complete();
            (DO_STORE, _, _, _, _): stay();
            (DO_ADD, 0, _, _, _): go_round_complete();
            (DO_ADD, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND, _, _): go_round(INART_VERDICT_FLUSHED);
            (DO_ADD, _, _, _, _): stay();
            (DO_MAXIMUM, 0, _, _, _): go_round_complete();
            (DO_MAXIMUM, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND, _, _): go_round(INART_VERDICT_FLUSHED);
            (DO_MAXIMUM, _, _, _, _): stay();
            (DO_FLUSH_FIRST, 0, _, _, _): send_complete();
            (DO_FLUSH_FIRST, _, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_FLUSH_KNOWN, 0, _, _, _): send(INART_VERDICT_STALE);
            (DO_FLUSH_KNOWN, _, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_DUPLICATE, 0, _, _, _): send(INART_VERDICT_STALE);
            (DO_DUPLICATE, _, _, _, _): drop(INART_VERDICT_DUPLICATE);

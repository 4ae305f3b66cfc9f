// Entries of Finish.finish_table (finish.p4) for folding on Tofino 2. Their columns are: the operation, the flows that
// are missing, the flags, and the pass.
            (DO_REFUSE, _, _, _): drop(INART_VERDICT_REFUSED);
            (DO_FORGET, _, _, _): drop(0);
            (DO_STORE, _, _, STEP_STAYS): drop(0);
            (DO_ADD, _, _, STEP_STAYS): drop(0);
            (DO_ADD, _, _, STEP_LEAVES): fetch();
            (DO_MAXIMUM, _, _, STEP_STAYS): drop(0);
            (DO_MAXIMUM, _, _, STEP_LEAVES): fetch();
            (DO_READ, _, _, STEP_READ): leave();
            (DO_PASS, _, _, _): send(INART_VERDICT_STALE);
            (DO_STORE, 0, _, _): send_complete();
            (DO_STORE, _, _, _): stay();
            (DO_ADD, 0, _, _): go_round_complete();
            (DO_ADD, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND, _): go_round(INART_VERDICT_FLUSHED);
            (DO_ADD, _, _, _): stay();
            (DO_MAXIMUM, 0, _, _): go_round_complete();
            (DO_MAXIMUM, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND, _): go_round(INART_VERDICT_FLUSHED);
            (DO_MAXIMUM, _, _, _): stay();
            (DO_FLUSH_FIRST, 0, _, _): send_complete();
            (DO_FLUSH_FIRST, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_FLUSH_KNOWN, 0, _, _): send(INART_VERDICT_STALE);
            (DO_FLUSH_KNOWN, _, _, _): send(INART_VERDICT_FLUSHED);
            (DO_DUPLICATE, 0, _, _): send(INART_VERDICT_STALE);
            (DO_DUPLICATE, _, _, _): drop(INART_VERDICT_DUPLICATE);

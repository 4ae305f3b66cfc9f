// Entries of Finish.finish_table (finish.p4). Their columns are: the operation, the flows that are missing, and the
// flags.
            (DO_REFUSE, _, _): drop(INART_VERDICT_REFUSED);
            (DO_PASS, _, _): send(INART_VERDICT_STALE);
            (DO_STORE, 0, _): send_complete();
            (DO_STORE, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_ADD, 0, _): go_round_complete();
            (DO_ADD, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND): go_round(INART_VERDICT_FLUSHED);
            (DO_ADD, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_MAXIMUM, 0, _): go_round_complete();
            (DO_MAXIMUM, _, INART_FLAG_RESEND &&& INART_FLAG_RESEND): go_round(INART_VERDICT_FLUSHED);
            (DO_MAXIMUM, _, _): drop(INART_VERDICT_ABSORBED);
            (DO_FLUSH_FIRST, 0, _): send_complete();
            (DO_FLUSH_FIRST, _, _): send(INART_VERDICT_FLUSHED);
            (DO_FLUSH_KNOWN, 0, _): send(INART_VERDICT_STALE);
            (DO_FLUSH_KNOWN, _, _): send(INART_VERDICT_FLUSHED);
            (DO_DUPLICATE, 0, _): send(INART_VERDICT_STALE);
            (DO_DUPLICATE, _, _): drop(INART_VERDICT_DUPLICATE);
            (DO_FORGET, _, _): drop(0);

// Entries of Slots.epoch_table (slots.p4) for folding on Tofino 2. Their columns are: the packet's kind, its flags, and
// the pass.
            (KIND_READ, _, STEP_FIRST): refuse();
            (KIND_READ, _, _): NoAction();
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT, STEP_FIRST): refuse();
            (KIND_FLOW, _, STEP_FIRST): touch_epoch();
            (_, _, STEP_FIRST): NoAction();
            (_, _, _): refuse();    // only a switch sends such packets, to itself

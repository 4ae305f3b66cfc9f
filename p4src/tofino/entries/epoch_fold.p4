// Of Slots.epoch_table (slots.p4), folded on Tofino 2: what the packet is, flags, pass.
            (KIND_READ, _, STEP_FIRST): refuse();
            (KIND_READ, _, _): NoAction();
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT, STEP_FIRST): refuse();
            (KIND_FLOW, _, STEP_FIRST): touch_epoch();
            (_, _, STEP_FIRST): NoAction();
            (_, _, _): refuse();    // nobody but a switch to itself sends such a packet

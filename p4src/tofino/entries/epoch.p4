// Entries of Slots.epoch_table (slots.p4). Their columns are: the packet's kind, and its flags.
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT): refuse();
            (KIND_FLOW, _): touch_epoch();

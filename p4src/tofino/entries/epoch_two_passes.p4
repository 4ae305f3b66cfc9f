// Entries of Slots.epoch_table (slots.p4). Their columns are: the packet's kind, and its flags. A sum that comes round
// asks whether the slot still has its chunk.
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT): refuse();
            (KIND_FLOW, _): touch_epoch();
            (KIND_READ, _): look_at_epoch();

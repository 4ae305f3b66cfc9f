// Of Slots.epoch_table (slots.p4): what the packet is, flags.
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT): refuse();
            (KIND_FLOW, _): touch_epoch();

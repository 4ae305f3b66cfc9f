// Of Slots.epoch_table (slots.p4): what the packet is, flags. A sum that comes round asks whether the slot is still its own.
            (KIND_FLOW, INART_FLAG_RESULT &&& INART_FLAG_RESULT): refuse();
            (KIND_FLOW, _): touch_epoch();
            (KIND_READ, _): look_at_epoch();

// The slot algorithm: who owns a slot, who has contributed, and so what happens to this packet.
//
//                     bits not a non-empty subset of expected, or a result --> refused
//   own < owner  -----------------------------------------------------------> stale: pass through
//   own > owner  --> take over: nobody has contributed, open
//   closed       -----------------------------------------------------------> stale: pass through
//   bits new     --> merge --> all there ------------------------------------> completed: close, send on
//                          --> RESEND ---------------------------------------> flushed: close, send on
//                          --> otherwise ------------------------------------> absorbed
//   bits known   --> RESEND -------------------------------------------------> flushed: close, send what is there
//                --> otherwise ----------------------------------------------> duplicate
//   some of each ------------------------------------------------------------> refused
//
// own is epoch and sequence as one number. To pass through and to send on put bitmap and next label into the packet.
// State per slot: owner, bitmap, closed; each register is read once and written at most once per packet. The values
// themselves are in values.p4, which does what meta.operation says.
// Limit: INART_SLOTS slots (a power of two), 64 contributors.
#ifndef INART_SLOTS_P4
#define INART_SLOTS_P4

control Slots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @name(".slot_owner") @id(1)
    register<bit<64>>(INART_SLOTS) slot_owner;
    @name(".slot_bitmap") @id(2)
    register<bit<64>>(INART_SLOTS) slot_bitmap;
    @name(".slot_closed") @id(3)
    register<bit<1>>(INART_SLOTS) slot_closed;

    bit<64> bits;       // the packet's contributors
    bit<64> own;
    bit<64> owner;
    bit<64> bitmap;     // the slot's contributors, before and after
    bit<1> closed;
    bool resend;
    bool first;

    action send_on(bit<64> contributors, bit<8> verdict) {
        meta.verdict = verdict;
        hdr.inart.bitmap = contributors;
        hdr.inart.label = meta.next_label;
        standard_metadata.egress_spec = meta.port;
    }

    apply {
        bits = meta.contributor;
        if (bits == 0) {
            bits = hdr.inart.bitmap;
        }
        if (bits == 0 || (bits & ~meta.expected) != 0 || (hdr.inart.flags & INART_FLAG_RESULT) != 0) {
            meta.verdict = INART_VERDICT_REFUSED;
        } else {
            own = hdr.inart.epoch ++ hdr.inart.sequence;
            resend = (hdr.inart.flags & INART_FLAG_RESEND) != 0;
            // The last mask keeps a wrong entry inside the registers: bmv2 does not check the index.
            meta.slot = (meta.slot_base + (hdr.inart.sequence & meta.slot_mask)) & (INART_SLOTS - 1);
            slot_owner.read(owner, meta.slot);
            slot_bitmap.read(bitmap, meta.slot);
            slot_closed.read(closed, meta.slot);
            if (own > owner) {
                slot_owner.write(meta.slot, own);
                owner = own;
                bitmap = 0;
                closed = 0;
            }
            if (own < owner || closed == 1) {
                send_on(bits, INART_VERDICT_STALE);
            } else if ((bits & bitmap) == 0) {
                first = bitmap == 0;
                bitmap = bitmap | bits;
                slot_bitmap.write(meta.slot, bitmap);
                if (bitmap == meta.expected || resend) {
                    slot_closed.write(meta.slot, 1);
                    send_on(bitmap, INART_VERDICT_FLUSHED);
                    if (bitmap == meta.expected) {
                        meta.verdict = INART_VERDICT_COMPLETED;
                    }
                    if (first) {
                        meta.operation = operation_t.NONE;
                    } else if ((hdr.inart.flags & INART_FLAG_MAXIMUM) != 0) {
                        meta.operation = operation_t.MAXIMUM;
                    } else {
                        meta.operation = operation_t.ADD_SEND;
                    }
                } else {
                    slot_closed.write(meta.slot, 0);
                    meta.verdict = INART_VERDICT_ABSORBED;
                    if (first) {
                        meta.operation = operation_t.STORE;
                    } else if ((hdr.inart.flags & INART_FLAG_MAXIMUM) != 0) {
                        meta.operation = operation_t.MAXIMUM;
                    } else {
                        meta.operation = operation_t.ADD;
                    }
                }
            } else if ((bits & ~bitmap) != 0) {
                meta.verdict = INART_VERDICT_REFUSED;
            } else if (resend) {
                slot_closed.write(meta.slot, 1);
                send_on(bitmap, INART_VERDICT_FLUSHED);
                meta.operation = operation_t.SEND;
            } else {
                meta.verdict = INART_VERDICT_DUPLICATE;
            }
        }
    }
}

#endif

// The slot algorithm: which chunk owns the slot, which flows have contributed, and so what happens to this packet.
//
//                     a result ------------------------------------------> refused
//   same epoch, sequence < the slot's -----------------------------------> stale: pass through
//   same epoch, sequence > the slot's  --> take over: nobody has contributed, open
//   another epoch                      --> the same
//   closed --------------------------------------------------------------> stale: pass through
//   flow new    --> merge --> all there ---------------------------------> completed: close, send on
//                         --> RESEND ------------------------------------> flushed: close, send on
//                         --> otherwise ---------------------------------> absorbed
//   flow known  --> RESEND ----------------------------------------------> flushed: close, send what is there
//               --> otherwise -------------------------------------------> duplicate
//
// A flow carries the contributions of a worker, or the complete sums of an aggregation point below: each counts once.
// The bitmap has a bit for each flow of this aggregation point. A packet that passes through or is flushed leaves with
// partial_label, under which no switch adds it again before the root; a completed sum leaves with next_label.
// Any other epoch takes a slot over. That is no worse than a switch that forgets its slots, and so no packet can block
// a slot, whatever epoch it claims (docs/protocol.md).
// State per slot: owner (epoch and sequence), bitmap, closed; each register is read once and written at most once per
// packet. The values themselves are in values.p4, which carries out what meta.operation says.
// Limit: INART_SLOTS slots (a power of two), 64 flows into an aggregation point.
#ifndef INART_SLOTS_P4
#define INART_SLOTS_P4

control Slots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @name(".slot_owner") @id(1)
    register<owner_t>(INART_SLOTS) slot_owner;
    @name(".slot_bitmap") @id(2)
    register<flows_t>(INART_SLOTS) slot_bitmap;
    @name(".slot_closed") @id(3)
    register<bit<1>>(INART_SLOTS) slot_closed;

    owner_t own;
    owner_t owner;
    flows_t bitmap;     // the flows in the slot, before this packet and after it
    bit<1> closed;
    bool resend;
    bool first;

    action send_on(flows_t flows, verdict_t verdict) {
        meta.verdict = verdict;
        hdr.inart.bitmap = flows;
        hdr.inart.label = meta.partial_label;
        standard_metadata.egress_spec = meta.port;
    }

    apply {
        if ((hdr.inart.flags & INART_FLAG_RESULT) != 0) {
            meta.verdict = INART_VERDICT_REFUSED;
        } else {
            own = hdr.inart.epoch ++ hdr.inart.sequence;
            resend = (hdr.inart.flags & INART_FLAG_RESEND) != 0;
            // The last mask keeps a wrong entry inside the registers: bmv2 does not check the index.
            meta.slot = (meta.slot_base + (hdr.inart.sequence & meta.slot_mask)) & (INART_SLOTS - 1);
            slot_owner.read(owner, meta.slot);
            slot_bitmap.read(bitmap, meta.slot);
            slot_closed.read(closed, meta.slot);
            if (own > owner || hdr.inart.epoch != owner[63:32]) {
                slot_owner.write(meta.slot, own);
                owner = own;
                bitmap = 0;
                closed = 0;
            }
            if (own < owner || closed == 1) {
                send_on(meta.flow, INART_VERDICT_STALE);
            } else if ((meta.flow & bitmap) == 0) {
                first = bitmap == 0;
                bitmap = bitmap | meta.flow;
                slot_bitmap.write(meta.slot, bitmap);
                if (bitmap == meta.everyone || resend) {
                    slot_closed.write(meta.slot, 1);
                    send_on(bitmap, INART_VERDICT_FLUSHED);
                    if (bitmap == meta.everyone) {
                        meta.verdict = INART_VERDICT_COMPLETED;
                        hdr.inart.label = meta.next_label;
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

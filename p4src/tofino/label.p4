// The label table: one exact match decides an aggregation packet's fate.
//
//   (ingress port, label) --hit--> forward(port)         unchanged, to one port
//                         |        replicate(group)      unchanged, to every port of a multicast group
//                         |        aggregate(...)        a contribution: on to slots.p4
//                         |        read_out(...)         a sum of this switch that comes round: on to slots.p4
//                         --miss-> dropped, counted as unknown
//
// aggregate already gives a packet the label and the bitmap with which it leaves if its sum is not complete:
// partial_label, and its own flow. It also clears the UDP checksum, because the values may be new. flow is this flow's
// bit at this aggregation point, everyone the bits of all flows there, of which there are 31 at most. A sum goes round
// by the port loopback.
// Limits: slot_mask must be one less than a power of two, slot_base a multiple of slot_mask + 1, slot_base + slot_mask
// below INART_SLOTS, and flow one bit of everyone: the control plane ensures it.
#ifndef INART_LABEL_P4
#define INART_LABEL_P4

#ifdef INART_SECOND_PASS
#define INART_LOOPBACK , port_t loopback
#define INART_GO_ROUND meta.loopback = loopback;
#else
#define INART_LOOPBACK
#define INART_GO_ROUND
#endif

control Label(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
              inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
              inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) label_counter;

    action forward(port_t port) {
        label_counter.count();
        meta.verdict = INART_VERDICT_FORWARDED;
        ig_tm_md.ucast_egress_port = port;
        ig_tm_md.bypass_egress = 1;
    }

    action replicate(group_t group) {
        label_counter.count();
        meta.verdict = INART_VERDICT_REPLICATED;
        ig_tm_md.mcast_grp_a = group;
        ig_tm_md.bypass_egress = 1;
    }

    action aggregate(slot_t slot_base, slot_t slot_mask, flows_t flow, flows_t everyone, label_t next_label,
                     label_t partial_label, port_t port INART_LOOPBACK) {
        label_counter.count();
        meta.kind = KIND_FLOW;
        meta.slot_base = slot_base;
        meta.slot_offset = hdr.inart.sequence[15:0] & slot_mask;
        meta.flow = flow;
        meta.claim = flow;
        meta.everyone = everyone;
        meta.next_label = next_label;
        INART_GO_ROUND
        hdr.inart.bitmap = 32w0 ++ flow;
        hdr.inart.label = partial_label;
        hdr.outer.checksum = 0;
        ig_tm_md.ucast_egress_port = port;
        ig_tm_md.bypass_egress = 1;
    }

#ifdef INART_SECOND_PASS
    action read_out(slot_t slot_base, slot_t slot_mask, port_t port) {
        label_counter.count();
        meta.kind = KIND_READ;
        meta.slot_base = slot_base;
        meta.slot_offset = hdr.inart.sequence[15:0] & slot_mask;
#ifdef INART_FOLD
        meta.loopback = ig_intr_md.ingress_port;
#endif
        ig_tm_md.ucast_egress_port = port;
        ig_tm_md.bypass_egress = 1;
    }
#endif

    action unknown() {
        meta.verdict = INART_VERDICT_UNKNOWN;
        ig_dprsr_md.drop_ctl = 1;
    }

    table label_table {
        key = {
            ig_intr_md.ingress_port: exact @name("ingress_port");
            hdr.inart.label: exact @name("label");
        }
        actions = {
            forward; replicate; aggregate; @defaultonly unknown;
#ifdef INART_SECOND_PASS
            read_out;
#endif
        }
        const default_action = unknown();
        size = INART_LABEL_TABLE_SIZE;
        counters = label_counter;
    }

    apply {
        label_table.apply();
    }
}

#endif

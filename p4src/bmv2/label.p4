// The label table: one exact match decides an aggregation packet's fate.
//
//   (ingress port, label) --hit--> forward(port)         unchanged, to one port
//                         |        replicate(group)      unchanged, to every port of a multicast group
//                         |        aggregate(...)        without UDP checksum, on to slots.p4
//                         --miss-> dropped, counted as unknown
//
// A packet that arrives on a port where its flow does not belong is a miss. Each entry has a counter (packets, bytes).
// Limit: INART_LABEL_TABLE_SIZE entries. slot_base + slot_mask must be below INART_SLOTS, slot_mask one less than a
// power of two, flow one bit of everyone, group not 0: the control plane ensures it.
#ifndef INART_LABEL_P4
#define INART_LABEL_P4

control Label(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    @name(".label_counter") @id(1)
    direct_counter(CounterType.packets_and_bytes) label_counter;

    @name(".forward") @id(1)
    action forward(port_t port) {
        meta.verdict = INART_VERDICT_FORWARDED;
        standard_metadata.egress_spec = port;
    }

    @name(".replicate") @id(2)
    action replicate(group_t group) {
        meta.verdict = INART_VERDICT_REPLICATED;
        standard_metadata.mcast_grp = group;
    }

    // flow is this flow's bit at its aggregation point, everyone the bits of all flows there. A complete sum leaves
    // with next_label, anything less with partial_label.
    @name(".aggregate") @id(3)
    action aggregate(slot_t slot_base, slot_t slot_mask, flows_t flow, flows_t everyone,
                     label_t next_label, label_t partial_label, port_t port) {
        meta.aggregate = true;
        hdr.udp.checksum = 0;    // what leaves has another label, other flows and values
        meta.slot_base = slot_base;
        meta.slot_mask = slot_mask;
        meta.flow = flow;
        meta.everyone = everyone;
        meta.next_label = next_label;
        meta.partial_label = partial_label;
        meta.port = port;
    }

    @name(".unknown") @id(4)
    action unknown() {
        meta.verdict = INART_VERDICT_UNKNOWN;
    }

    @name(".label_table") @id(1)
    table label_table {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.inart.label: exact @name("label");
        }
        actions = { forward; replicate; aggregate; @defaultonly unknown; }
        const default_action = unknown();
        size = INART_LABEL_TABLE_SIZE;
        counters = label_counter;
    }

    apply {
        label_table.apply();
    }
}

#endif

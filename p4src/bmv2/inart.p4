// InArt for v1model (bmv2's simple_switch_grpc, softswitch): aggregation by label, and IPv4 forwarding beside it.
//
//   parser -> UDP to our group and ports: well formed? -> label -> forward, replicate
//          |                                                    -> aggregate: slots -> values
//          |                              verdicts (every packet, also malformed ones)
//          -> IPv4 to a host: route
//          -> other:          bridge       (both counted by port)
//
// An aggregation packet keeps its Ethernet, IPv4 and UDP headers; only one that an aggregation point sends on loses its
// UDP checksum (it is 0 then), because its values are new (label.p4).
//
// Build options (python -m p4src.build passes them): INART_VALUES values in a packet, INART_SLOTS slots,
// INART_LABEL_TABLE_SIZE and INART_ROUTE_TABLE_SIZE entries. The behaviour is written down in docs/protocol.md and, as
// a program that this one is tested against, in tests/model/switch.py.
// Limit: while a packet is between slots and values, no other packet of its slot may be there. @atomic says so; bmv2's
// v1model ignores that, but has one thread in ingress, and softswitch works on one packet at a time.
#include <core.p4>
#include <v1model.p4>

#include "../include/constants.p4"
#include "../include/repeat.p4"
#include "headers.p4"
#include "parser.p4"
#include "checksum.p4"
#include "counters.p4"
#include "label.p4"
#include "slots.p4"
#include "values.p4"
#include "route.p4"
#include "bridge.p4"

control InartIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Label() label;
    Slots() slots;
    Values() values;
    Verdicts() verdicts;
    Route() route;
    Bridge() bridge;
    OtherReceived() other_received;
    OtherSent() other_sent;

    apply {
        mark_to_drop(standard_metadata);    // unless something below sends it
        if (meta.ours) {
            meta.verdict = INART_VERDICT_MALFORMED;
            if (hdr.values.isValid() && hdr.inart.version == INART_VERSION &&
                standard_metadata.packet_length == INART_VALUES_OFFSET + 4 * INART_VALUES &&
                hdr.ipv4.total_len == INART_IPV4_LENGTH + 4 * INART_VALUES &&
                hdr.udp.hdr_length == INART_UDP_LENGTH + 4 * INART_VALUES) {
                label.apply(hdr, meta, standard_metadata);
                if (meta.aggregate) {
                    @atomic {
                        slots.apply(hdr, meta, standard_metadata);
                        values.apply(hdr, meta, standard_metadata);
                    }
                }
            }
            verdicts.apply(hdr, meta, standard_metadata);
        } else {
            other_received.apply(standard_metadata);
            if (hdr.ipv4.isValid() && hdr.ethernet.dst_addr[40:40] == 0) {
                route.apply(hdr, meta, standard_metadata);
            } else if (hdr.ipv4.isValid() || (hdr.ethernet.isValid() && hdr.ethernet.ether_type != ETHERTYPE_IPV4)) {
                bridge.apply(hdr, standard_metadata);
            }
            other_sent.apply(standard_metadata);
        }
    }
}

control InartEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {}
}

V1Switch(InartParser(), InartVerifyChecksum(), InartIngress(), InartEgress(), InartComputeChecksum(),
         InartDeparser()) main;

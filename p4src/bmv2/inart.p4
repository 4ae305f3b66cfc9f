// InArt for v1model (bmv2's simple_switch_grpc, softswitch): aggregation by label, and IPv4 forwarding beside it.
//
//   parser -> 0x88B5: well formed? -> label -> forward, replicate
//          |                                -> aggregate: slots -> values
//          |          verdicts (every packet, also malformed ones)
//          -> 0x0800: route
//          -> other:  dropped
//
// Build options (python -m p4src.build passes them): INART_VALUES values in a packet, INART_SLOTS slots,
// INART_LABEL_TABLE_SIZE and INART_ROUTE_TABLE_SIZE entries. The behaviour is written down in docs/protocol.md and, as
// a program that this one is tested against, in tests/model/switch.py.
// Limit: a switch works on one packet at a time; ingress keeps the registers consistent only then.
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

control InartIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Label() label;
    Slots() slots;
    Values() values;
    Verdicts() verdicts;
    Route() route;

    apply {
        mark_to_drop(standard_metadata);    // unless something below sends it
        if (hdr.ethernet.isValid() && hdr.ethernet.ether_type == INART_ETHERTYPE) {
            meta.verdict = INART_VERDICT_MALFORMED;
            if (standard_metadata.parser_error == error.NoError && hdr.inart.version == INART_VERSION &&
                standard_metadata.packet_length == INART_VALUES_OFFSET + 4 * INART_VALUES) {
                label.apply(hdr, meta, standard_metadata);
                if (meta.aggregate) {
                    slots.apply(hdr, meta, standard_metadata);
                    values.apply(hdr, meta, standard_metadata);
                }
            }
            verdicts.apply(hdr, meta, standard_metadata);
        } else if (hdr.ipv4.isValid()) {
            route.apply(hdr, meta, standard_metadata);
        }
    }
}

control InartEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {}
}

V1Switch(InartParser(), InartVerifyChecksum(), InartIngress(), InartEgress(), InartComputeChecksum(),
         InartDeparser()) main;
